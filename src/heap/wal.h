/*-------------------------------------------------------------------------
 *
 * wal.h
 *	  The one change of heap pages that is all our own: who locks or updates a
 *	  tuple (xmax, infomask, ctid), logged by a resource manager of our own
 *	  together with the visibility map. And what our insertions (insert.c), which
 *	  are logged as heap's, share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WAL_H
#define MIP_WAL_H

#include "access/heapam_xlog.h"
#include "access/htup_details.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/* To be reserved on the PostgreSQL wiki before a release. */
#define RM_MIP_ID	RM_EXPERIMENTAL_ID

#define XLOG_MIP_SET_XMAX	0x00
#define XLOG_MIP_BEGIN		0x10	/* only with wal_level = logical */

/* flags */
#define MIP_XMAX_SET_CTID	0x01	/* ctid is to be written */
#define MIP_XMAX_CLEAR_HOT	0x02	/* the next version is not in the HOT
									 * chain */
#define MIP_XMAX_CLEAR_VM	0x04	/* page was all-visible */
#define MIP_XMAX_UPDATED	0x08	/* `updater` replaces or deletes the tuple */

/* A tuple's new xmax; the payload of the WAL record as well. */
typedef struct MipXmaxChange
{
	TransactionId xmax;			/* raw: may be a multixact */
	TransactionId updater;		/* with MIP_XMAX_UPDATED */
	ItemPointerData ctid;
	OffsetNumber offnum;
	uint16		infomask;		/* HEAP_XMAX_BITS to set */
	uint16		infomask2;		/* HEAP_KEYS_UPDATED or 0 */
	uint8		flags;
	CommandId	cid;			/* with MIP_XMAX_UPDATED; as by heap, not
								 * logged */
} MipXmaxChange;

#define SizeOfMipXmaxChange \
	(offsetof(MipXmaxChange, flags) + sizeof(uint8))

extern void mip_wal_register(void);

/* What heap's records say of a tuple's header. */
static inline xl_heap_header
mip_xl_heap_header(HeapTupleHeader htup)
{
	xl_heap_header header = {
		.t_infomask2 = htup->t_infomask2,
		.t_infomask = htup->t_infomask,
		.t_hoff = htup->t_hoff,
	};

	return header;
}

/* Is a tuple that has just been put on a page alone there? */
static inline bool
mip_is_only_tuple(Buffer buffer, HeapTuple tuple)
{
	return ItemPointerGetOffsetNumber(&tuple->t_self) == FirstOffsetNumber &&
		PageGetMaxOffsetNumber(BufferGetPage(buffer)) == FirstOffsetNumber;
}

/* To be called once in each instance, before anything else that logs. */
extern void mip_log_begin(int64 xinst);

/*
 * Applies and logs a change. Caller: buffer pinned and exclusively locked,
 * vmbuffer pinned for its block, not in a critical section; it marks
 * MIP_XMAX_CLEAR_VM itself.
 */
extern void mip_set_xmax(Relation rel, Buffer buffer, Buffer vmbuffer,
						 MipXmaxChange *change);

#endif							/* MIP_WAL_H */
