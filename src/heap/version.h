/*-------------------------------------------------------------------------
 *
 * version.h
 *	  Row versions on their pages: who is in a header's xmax, and the means
 *	  to change it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_VERSION_H
#define MIP_VERSION_H

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/tableam.h"
#include "nodes/lockoptions.h"
#include "storage/buf.h"
#include "utils/rel.h"

#include "heap/wal.h"

/* Who made a version, who locks or updates it, and which one comes next. */
typedef struct MipHeader
{
	TransactionId xmin;
	TransactionId xmax;			/* raw: may be a multixact */
	ItemPointerData ctid;
	uint16		infomask;
	uint16		infomask2;
} MipHeader;

/*
 * A version under the exclusive buffer lock, with its map page pinned if there
 * are bits to clear.
 */
typedef struct MipPinned
{
	Buffer		buffer;
	Buffer		vmbuffer;
	HeapTupleHeader htup;
} MipPinned;

/*
 * Reads a header, and with `copy` the whole version (palloc'd), under the
 * buffer lock. False if there is no version (any more).
 */
extern bool mip_read_header(Relation rel, ItemPointer tid, MipHeader *header,
							HeapTuple *copy);
extern MipHeader mip_header(HeapTupleHeader htup);

/* An error if there is no version. */
extern MipPinned mip_pin_version(Relation rel, ItemPointer tid);
extern void mip_unpin_version(MipPinned *pinned);

/*
 * The transactions in a version's xmax, running or not; 0 if there are none.
 * The array is palloc'd.
 */
extern int	mip_xmax_members(const MipHeader *header, MultiXactMember **members);

/* The one of them that updates or deletes the version. False if there is none. */
extern bool mip_update_member(const MipHeader *header, MultiXactMember *update);

/* The same; invalid if there is none. *keys: it changes the key, or deletes. */
extern TransactionId mip_updater(const MipHeader *header, bool *keys);

/* Is xmax a multixact with an update in it, which may have ended? */
static inline bool
mip_multixact_updates(uint16 infomask)
{
	return !(infomask & HEAP_XMAX_INVALID) && (infomask & HEAP_XMAX_IS_MULTI) &&
		!HEAP_XMAX_IS_LOCKED_ONLY(infomask);
}

/*
 * Those that stay when one is added: all that run, with room for one more.
 * Sets *held if this transaction is among them with `mode` or more, *updated
 * if the version is not the row's latest any more.
 */
extern int	mip_running_members(const MipHeader *header, LockTupleMode mode,
								MultiXactMember **members, bool *held,
								bool *updated);

/*
 * Those that run and hold a key share lock, with room for one more. None beside a FOR
 * UPDATE locker who runs: there they are not to be kept (mip_confirm_key_share).
 */
extern int	mip_key_share_lockers(const MipHeader *header, MultiXactMember **lockers);

/*
 * Puts these members into a change, n > 0: as heap, a multixact where there are
 * several.
 */
extern void mip_xmax_of(MipXmaxChange *change, MultiXactMember *members, int n);

/*
 * Writes these members, n > 0, to the header of a version: all that matter of
 * those that run, and the update that has committed, if any.
 */
extern void mip_set_members(Relation rel, ItemPointer tid, MipPinned *pinned,
							MultiXactMember *members, int n);

/* The same, always as a multixact: mip_pending_owner relies on it. */
extern void mip_set_multixact(Relation rel, ItemPointer tid, MipPinned *pinned,
							  MultiXactMember *members, int n);

/*
 * Takes those that have ended, except by a commit of their update, out of a
 * multixact that others are running in. True if there were any.
 */
extern bool mip_drop_dead_members(Relation rel, ItemPointer tid);

/*
 * Takes this transaction's locks out of a multixact, in which others are that run or have
 * committed an update. False: nobody is any more, and nothing is changed.
 */
extern bool mip_leave(Relation rel, ItemPointer tid, MipPinned *pinned);

/*
 * TM_Updated or TM_Deleted, as heap's code reports it, if an update of this
 * version has committed; else TM_Ok. Heap would wait first until those who lock
 * the version, too, have ended.
 */
extern TM_Result mip_update_committed(Relation rel, ItemPointer tid,
									  TM_FailureData *tmfd);

/* Is this transaction in a version's xmax, of which the header is known, or not? */
extern bool mip_holds(const MipHeader *header);
extern bool mip_is_in_xmax(Relation rel, ItemPointer tid);

/* The same transactions, as updaters and lockers? A multixact may have the number of one. */
static inline bool
mip_same_xmax(const MipHeader *a, const MipHeader *b)
{
	const uint16 kind = HEAP_XMAX_IS_MULTI | HEAP_XMAX_LOCK_ONLY;

	return TransactionIdEquals(a->xmax, b->xmax) &&
		(a->infomask & kind) == (b->infomask & kind);
}

/* The row lock that a member holds. */
extern LockTupleMode mip_member_mode(const MultiXactMember *member);

#endif							/* MIP_VERSION_H */
