/*-------------------------------------------------------------------------
 *
 * predicate.h
 *	  Serializable snapshot isolation (SSI) beside siblings and overlays.
 *
 * All of this does nothing in transactions that are not SERIALIZABLE.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PREDICATE_H
#define MIP_PREDICATE_H

#include "access/xact.h"
#include "executor/tuptable.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "family/current.h"

extern void mip_predicate_shmem_request(void);
extern void mip_predicate_shmem_startup(void);

/*
 * The instance that has just been registered, and each of its siblings, are no
 * rivals. The caller holds the family lock. An error (MP006) if this server's SSI
 * is not as we know it and there are siblings.
 */
extern void mip_predicate_begin(void);

/*
 * This instance reads and writes no more, and is about to be prepared or to be
 * committed in one phase. The caller holds the family lock exclusively.
 */
extern void mip_predicate_before_end(void);

/*
 * An error (40001) if SSI does not let this transaction commit; else it will,
 * and is taken for prepared from now on.
 */
extern void mip_predicate_let_commit(void);

/* Is this server's SSI as we know it? */
extern bool mip_predicate_is_known(void);

/* The overlay replaces `base`: after this instance has become its locker. */
extern void mip_predicate_check_overlay(Relation rel, ItemPointer base);

/*
 * Lets all instances in doubt say so that PostgreSQL can name the one that it fails
 * others for; returns the transaction of the first that has not done so before.
 */
extern TransactionId mip_predicate_name_summaries(void);

/* At the end of a transaction, and of a subtransaction that has failed. */
extern void mip_predicate_at_eoxact(void);
extern void mip_predicate_at_abort_sub(void);

/* ---- around heap's reading callbacks ---- */

extern void mip_hide_siblings_slowly(Snapshot scanned);
extern void mip_show_siblings_slowly(void);
extern void mip_look_slowly(Relation rel, ItemPointer tid, Snapshot snapshot);
extern Snapshot mip_bare_snapshot;	/* the transaction's, while siblings are
									 * hidden */

/*
 * Between these two heap's code, which reads with the snapshot `scanned`, takes no
 * sibling for a concurrent writer. No error may be caught in between, but by a
 * subtransaction.
 */
static inline void
mip_hide_siblings(Snapshot scanned)
{
	if (IsolationIsSerializable() && mip_in_transaction() && mip_have_siblings())
		mip_hide_siblings_slowly(scanned);
}

static inline void
mip_show_siblings(void)
{
	if (mip_bare_snapshot)
		mip_show_siblings_slowly();
}

/*
 * The version in `slot`, which heap has found visible, may be replaced in an
 * overlay, of which heap's own check sees no more than a lock.
 */
static inline void
mip_look(Relation rel, TupleTableSlot *slot, Snapshot snapshot)
{
	HeapTupleHeader header;

	if (!IsolationIsSerializable())
		return;
	/* unlocked: whoever comes into xmax behind this finds our SIREAD lock */
	header = ((BufferHeapTupleTableSlot *) slot)->base.tuple->t_data;
	if ((header->t_infomask & HEAP_XMAX_INVALID) ||
		(!(header->t_infomask & HEAP_XMAX_IS_MULTI) &&
		 HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask)))
		return;
	mip_look_slowly(rel, &slot->tts_tid, snapshot);
}

#endif							/* MIP_PREDICATE_H */
