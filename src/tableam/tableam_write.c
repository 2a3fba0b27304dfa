/*-------------------------------------------------------------------------
 *
 * tableam_write.c
 *	  Writing callbacks: update, delete and lock beside siblings.
 *
 * Each claims the version first (claim.c). Where nothing of a sibling is in
 * the way heap's callback runs as it is. Else the base version's header gets
 * this transaction as one more locker, so that outsiders wait for us too, and
 * the change itself goes into the overlay. That is the same for all three, and
 * in one place: write_version.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/transam.h"
#include "catalog/catalog.h"
#include "executor/tuptable.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/stop.h"
#include "heap/insert.h"
#include "heap/logical.h"
#include "heap/version.h"
#include "family/current.h"
#include "tableam/am.h"
#include "tableam/chain.h"
#include "tableam/claim.h"
#include "tableam/outsider.h"
#include "tableam/overlay.h"
#include "tableam/predicate.h"
#include "tableam/tableam.h"

/* ---- claim, change, and again if somebody has come in ---- */

/*
 * What a callback is to do to a version, and its two ways of doing it, under a
 * claim: TM_WouldBlock from them means that it has to be made again.
 */
typedef struct Write
{
	Relation	rel;
	ItemPointer tid;
	LockTupleMode mode;			/* of updates: the strongest; see lockmode */
	LockWaitPolicy policy;
	XLTW_Oper	oper;
	TM_Result	(*by_heap) (struct Write *w, MipClaim *claim);
	TM_Result	(*beside_siblings) (struct Write *w, MipClaim *claim);

	/* arguments of the callback */
	CommandId	cid;
	Snapshot	snapshot;
	TM_FailureData *tmfd;
	Snapshot	crosscheck;		/* updates, deletes */
	TupleTableSlot *update;		/* updates: the new version */
	MipUpdateIndexes *update_indexes;
	bool		changing_part;	/* deletes */
	TupleTableSlot *locked;		/* locks: for the version */
	uint8		flags;

	LockTupleMode lockmode;		/* out: the mode that was needed */
} Write;

/* A base version that our own overlay replaced: what heap says of such. */
static TM_Result
self_modified(const MipLink *link, CommandId cid, TM_FailureData *tmfd)
{
	if (link->cid < cid)
		return TM_Invisible;
	tmfd->ctid = ItemPointerIsValid(&link->version) ? link->version : link->base;
	tmfd->xmax = link->xmax;
	tmfd->cmax = link->cid;
	return TM_SelfModified;
}

static TM_Result
write_version(Write *w)
{
	const MipLink *link = mip_overlay_find(w->rel, w->tid);
	MipClaim	claim;
	TM_Result	result;

	Assert(mip_in_transaction());
	if (link)
		return self_modified(link, w->cid, w->tmfd);
	do
	{
		if (!mip_claim(&claim, w->rel, w->tid, w->mode, w->update, w->policy, w->oper))
			return TM_WouldBlock;
		w->lockmode = claim.mode;
		if (claim.verdict == MIP_OVERLAP)
			result = w->beside_siblings(w, &claim);

		/*
		 * a key share lock can be had beside an update that has left the key
		 * alone
		 */
		else if (claim.verdict == MIP_REPLACED && w->mode != LockTupleKeyShare)
			result = mip_update_committed(w->rel, w->tid, w->tmfd);
		else
			result = w->by_heap(w, &claim);
		mip_release(&claim);
	} while (result == TM_WouldBlock ||
			 (result == TM_BeingModified && w->policy == LockWaitBlock));
	mip_check_doomed();
	return result;
}

/* ---- before heap's code, or the overlay's, changes a version ---- */

/*
 * Heap would have waited where the claim has found nobody to wait for. If an
 * update of the version has committed, it would have waited for lockers that do
 * not matter any more; that result is known. Else either somebody has come in,
 * and the next claim will find him. Or the header says of members that have
 * ended that they are in the way: then heap stands in line, and with an
 * outsider at its head that waits for a sibling there would be no end.
 */
static TM_Result
would_block(const Write *w)
{
	TM_Result	result = mip_update_committed(w->rel, w->tid, w->tmfd);

	if (result != TM_Ok)
		return result;
	(void) mip_drop_dead_members(w->rel, w->tid);
	return TM_WouldBlock;
}

/*
 * Heap's update and delete wait for whom they find in xmax, or if told not to
 * wait, give up without a look whether they conflict. So where somebody is
 * there who does not, we lock the row first, without waiting: then nobody who
 * does can come any more (but for a key share lock that heap gives beside ours, and
 * that is given up: between two looks it is waited for all the same, and as its holder
 * waits for us one may fail, as in a deadlock). If that is not TM_Ok, the claim has to be
 * made again (TM_WouldBlock), or the change has failed.
 *
 * If we have that lock already, beside a sibling's update that is dead now,
 * heap would lock the old version with a multixact that still has the update
 * in it, and an assertion objects.
 */
static TM_Result
lock_first(const Write *w, const MipClaim *claim)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_Result	result;
	bool		dead_updater;

	Assert(claim->held && claim->verdict == MIP_CLEAR);
	if (!claim->used)
		return TM_Ok;
	tuple.t_self = *w->tid;
	result = heap_lock_tuple(w->rel, &tuple, w->cid, claim->mode, LockWaitSkip,
							 false, &buffer, w->tmfd);
	dead_updater = result == TM_Ok &&
		mip_multixact_updates(tuple.t_data->t_infomask);
	ReleaseBuffer(buffer);
	if (dead_updater)
		(void) mip_drop_dead_members(w->rel, w->tid);
	if (result == TM_WouldBlock)
		result = would_block(w);
	/* what we have changed ourselves heap's own code is to judge */
	if (result != TM_WouldBlock && result != TM_Updated && result != TM_Deleted)
		return TM_Ok;
	return result;
}

/* What heap logs of tables that output plugins use as catalogs nobody else can. */
static void
check_may_overlay(Relation rel)
{
	if (RelationIsAccessibleInLogicalDecoding(rel))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot change a row of table \"%s\" that a sibling has in use",
						RelationGetRelationName(rel)),
				 errdetail("Output plugins use the table as a catalog."),
				 errhint("Reset its storage parameter \"user_catalog_table\".")));
}

/*
 * The hand-over will delete the replaced version's out-of-line values, so as
 * the table itself their table must not be rewritten until then. False: it
 * had to be waited for, and nothing is claimed any more.
 */
static bool
lock_values(MipClaim *claim)
{
	Oid			toast = claim->rel->rd_rel->reltoastrelid;

	if (!OidIsValid(toast) || ConditionalLockRelationOid(toast, RowExclusiveLock))
		return true;
	mip_release(claim);
	LockRelationOid(toast, RowExclusiveLock);
	return false;
}

/*
 * Does `crosscheck` (foreign keys at REPEATABLE READ) see this version? It is the
 * transaction's own snapshot; siblings can be hidden from who reads with a copy.
 */
static bool
crosscheck_sees(Relation rel, ItemPointer tid, Snapshot crosscheck)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsBufferHeapTuple);
	bool		sees;

	PushCopiedSnapshot(crosscheck);
	mip_hide_siblings(GetActiveSnapshot());
	sees = mip_heap()->tuple_fetch_row_version(rel, tid, GetActiveSnapshot(), slot);
	mip_show_siblings();
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	return sees;
}

/*
 * Only siblings are in the way: enters us among the base version's lockers, for
 * the change to go into the overlay. If that is not TM_Ok, the claim has to be
 * made again (TM_WouldBlock), or the change has failed.
 */
static TM_Result
begin_overlay(const Write *w, MipClaim *claim)
{
	Assert(claim->held && claim->verdict == MIP_OVERLAP);
	check_may_overlay(w->rel);
	if (!lock_values(claim))
		return TM_WouldBlock;
	if (w->crosscheck != InvalidSnapshot &&
		!crosscheck_sees(w->rel, w->tid, w->crosscheck))
		return TM_Updated;
	mip_overlay_announce();
	if (!mip_join(claim))
		return TM_WouldBlock;
	/* a hand-over leaves out losers, which have been doomed before */
	Assert(mip_is_in_xmax(w->rel, w->tid) || mip_mine.inst->doomed);
	mip_predicate_check_overlay(w->rel, w->tid);
	return TM_Ok;
}

/*
 * We have changed the key of, deleted, or locked for such, a version that
 * stands for a base version in the overlay. Outsiders that hold a key share
 * lock can only have it on the base: the same done to the base would have
 * waited for them. False: SKIP LOCKED.
 */
static bool
strengthen_base(Relation rel, ItemPointer version, LockWaitPolicy policy,
				XLTW_Oper oper)
{
	const MipLink *link = mip_overlay_base_of(rel, version);
	ItemPointerData base;
	MipClaim	claim;
	bool		joined;

	if (link == NULL)
		return true;
	base = link->base;
	do
	{
		if (!mip_claim(&claim, rel, &base, LockTupleExclusive, NULL, policy, oper))
			return false;
		joined = mip_join(&claim);
		mip_release(&claim);
	} while (!joined);
	return true;
}

/* ---- delete ---- */

static TM_Result
delete_by_heap(Write *w, MipClaim *claim)
{
	TM_Result	result = lock_first(w, claim);

	if (result != TM_Ok)
		return result;
	return mip_heap()->tuple_delete(w->rel, w->tid, w->cid, w->snapshot,
									w->crosscheck, claim->used, w->tmfd,
									w->changing_part);
}

static TM_Result
delete_beside_siblings(Write *w, MipClaim *claim)
{
	uint32		flags = MIP_LINK_DELETE | MIP_LINK_KEYS;
	TM_Result	result = begin_overlay(w, claim);

	if (result != TM_Ok)
		return result;
	if (w->changing_part)
		flags |= MIP_LINK_MOVED;
	if (RelationIsLogicallyLogged(w->rel))
		mip_logical_delete(w->rel, w->tid, w->changing_part);
	mip_overlay_add(w->rel, w->tid, NULL, w->cid, flags);
	pgstat_count_heap_delete(w->rel);
	return TM_Ok;
}

static TM_Result
mip_tuple_delete(Relation rel, ItemPointer tid, CommandId cid,
				 Snapshot snapshot, Snapshot crosscheck, bool wait,
				 TM_FailureData *tmfd, bool changing_part)
{
	Write		w = {
		.rel = rel,.tid = tid,.mode = LockTupleExclusive,
		.policy = wait ? LockWaitBlock : LockWaitSkip,.oper = XLTW_Delete,
		.by_heap = delete_by_heap,.beside_siblings = delete_beside_siblings,
		.cid = cid,.snapshot = snapshot,.crosscheck = crosscheck,.tmfd = tmfd,
		.changing_part = changing_part,
	};
	TM_Result	result;

	if (!mip_in_transaction())
		return mip_heap()->tuple_delete(rel, tid, cid, snapshot, crosscheck,
										wait, tmfd, changing_part);
	result = write_version(&w);
	if (result == TM_Ok)
		(void) strengthen_base(rel, tid, LockWaitBlock, XLTW_Delete);
	return result == TM_WouldBlock ? TM_BeingModified : result;
}

/* ---- update ---- */

/*
 * Heap's update. Beside a running locker that of older minor releases (15.18;
 * not 15.20) takes an updater that a crash has ended, and that has left no trace
 * of its abort, for committed.
 */
static TM_Result
heaps_update(Write *w, bool wait)
{
	TM_Result	result;

	do
		result = mip_heap()->tuple_update(w->rel, w->tid, w->update, w->cid,
										  w->snapshot, w->crosscheck, wait,
										  w->tmfd, &w->lockmode, w->update_indexes);
	while (result == TM_Updated && !TransactionIdDidCommit(w->tmfd->xmax) &&
		   mip_drop_dead_members(w->rel, w->tid));
	return result;
}

/* What to tell it of waiting where nobody is to be waited for; an assertion objects to not waiting at all. */
static bool
update_may_wait(const MipClaim *claim)
{
#ifdef USE_ASSERT_CHECKING
	return true;
#else
	return claim->used;
#endif
}

static TM_Result
update_by_heap(Write *w, MipClaim *claim)
{
	TM_Result	result = lock_first(w, claim);

	if (result == TM_Ok)
		result = heaps_update(w, update_may_wait(claim));
	if (result == TM_Ok)
		mip_overlay_follow(w->rel, w->tid, &w->update->tts_tid);
	return result;
}

static TM_Result
update_beside_siblings(Write *w, MipClaim *claim)
{
	ItemPointer version = &w->update->tts_tid;
	bool		keys = claim->mode == LockTupleExclusive || claim->exclusive;
	TM_Result	result = begin_overlay(w, claim);

	if (result != TM_Ok)
		return result;
	mip_insert_version(w->rel, w->tid, w->update, w->cid);
	mip_pgstat_count_heap_update(w->rel, ItemPointerGetBlockNumber(w->tid) !=
								 ItemPointerGetBlockNumber(version));
	mip_overlay_add(w->rel, w->tid, version, w->cid, keys ? MIP_LINK_KEYS : 0);
	*w->update_indexes = MIP_UPDATE_ALL_INDEXES;
	return TM_Ok;
}

static TM_Result
mip_tuple_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
				 CommandId cid, Snapshot snapshot, Snapshot crosscheck,
				 bool wait, TM_FailureData *tmfd, LockTupleMode *lockmode,
				 MipUpdateIndexes *update_indexes)
{
	ItemPointerData base = *otid;
	Write		w = {
		.rel = rel,.tid = &base,.mode = LockTupleExclusive,
		.policy = wait ? LockWaitBlock : LockWaitSkip,.oper = XLTW_Update,
		.by_heap = update_by_heap,.beside_siblings = update_beside_siblings,
		.cid = cid,.snapshot = snapshot,.crosscheck = crosscheck,.tmfd = tmfd,
		.update = slot,.update_indexes = update_indexes,
	};
	TM_Result	result;

	result = mip_in_transaction() ? write_version(&w) : heaps_update(&w, wait);
	*lockmode = w.lockmode;
	if (mip_in_transaction() && result == TM_Ok && w.lockmode == LockTupleExclusive)
		(void) strengthen_base(rel, &base, LockWaitBlock, XLTW_Update);
	return result == TM_WouldBlock ? TM_BeingModified : result;
}

/* ---- lock ---- */

/*
 * Heap's lock of one version; never goes on to later ones. Only for key share
 * locks something is to be done before and after it: see mip_mend_key_share and
 * mip_confirm_key_share. If a header is spoilt again meanwhile, heap takes a running
 * update for a finished one; it may be rolled back by now.
 */
static TM_Result
heaps_lock(Write *w, LockWaitPolicy policy)
{
	uint8		flags = w->flags & ~TUPLE_LOCK_FLAG_FIND_LAST_VERSION;
	TM_Result	result;

	/*
	 * Locking later versions as well, heap would wait for siblings there.
	 * Only a key share lock needs that, beside an update: see chain.c.
	 */
	if (mip_in_transaction())
		flags &= ~TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS;
	do
	{
		if (w->mode == LockTupleKeyShare &&
			!mip_mend_key_share(w->rel, w->tid, policy))
			return TM_WouldBlock;
		mip_stop_point("mended");
		result = mip_heap()->tuple_lock(w->rel, w->tid, w->snapshot, w->locked,
										w->cid, w->mode, policy, flags, w->tmfd);
		mip_stop_point("locked");
		if (w->mode == LockTupleKeyShare && result == TM_Ok)
			result = mip_confirm_key_share(w->rel, w->tid, policy);
	} while (result == TM_BeingModified ||
			 (result == TM_Updated && !TransactionIdDidCommit(w->tmfd->xmax)));
	return result;
}

static TM_Result
lock_by_heap(Write *w, MipClaim *claim)
{
	TM_Result	result = heaps_lock(w, LockWaitSkip);

	return result == TM_WouldBlock ? would_block(w) : result;
}

static TM_Result
lock_beside_siblings(Write *w, MipClaim *claim)
{
	if (!mip_join(claim))
		return TM_WouldBlock;
	if (!mip_heap()->tuple_fetch_row_version(w->rel, w->tid, SnapshotAny, w->locked))
		elog(ERROR, "pg_mip: a version that was just locked is gone");
	return TM_Ok;
}

static TM_Result
lock_version(Write *w)
{
	TM_Result	result = write_version(w);

	if (result == TM_Ok && w->mode == LockTupleKeyShare &&
		(w->flags & TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS))
		result = mip_lock_later_versions(w->rel, w->tid, w->policy, w->tmfd);
	return result;
}

/* A key share lock: on the later versions that heap has missed, if there are any, too. */
static TM_Result
lock_missed(const Write *w)
{
	ItemPointerData tid = *w->tid;
	Write		missed = *w;
	TM_Result	result = mip_missed_version(w->rel, &tid, w->policy);

	if (result != TM_Updated)
		return result;
	missed.tid = &tid;
	missed.locked = MakeSingleTupleTableSlot(RelationGetDescr(w->rel), &TTSOpsBufferHeapTuple);
	do
		result = heaps_lock(&missed, w->policy);
	while (result == TM_Ok &&
		   (result = mip_missed_version(w->rel, &tid, w->policy)) == TM_Updated);
	ExecDropSingleTupleTableSlot(missed.locked);
	return result;
}

/* An outsider's key share lock. */
static TM_Result
lock_version_outside(Write *w)
{
	TM_Result	result = heaps_lock(w, w->policy);

	if (result == TM_Ok && (w->flags & TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS))
		result = lock_missed(w);
	return result;
}

/* Locks a version or, where that is asked for, the row's latest one. */
static TM_Result
lock_row(Write *w, TM_Result (*lock_one) (Write *w))
{
	bool		traversed = false;
	TM_Result	result;

	while ((result = lock_one(w)) == TM_Updated &&
		   (w->flags & TUPLE_LOCK_FLAG_FIND_LAST_VERSION))
	{
		traversed = true;
		result = mip_next_version(w->rel, w->tid, w->cid, w->tmfd);
		if (result != TM_Ok)
			break;
	}
	w->tmfd->traversed = traversed;
	return result;
}

/*
 * Outsiders need what is ours for a key share lock only: heap's own way to a
 * row's latest version would come upon spoilt headers, too.
 */
static TM_Result
mip_tuple_lock(Relation rel, ItemPointer tid, Snapshot snapshot,
			   TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
			   LockWaitPolicy policy, uint8 flags, TM_FailureData *tmfd)
{
	Write		w = {
		.rel = rel,.tid = tid,.mode = mode,.policy = policy,.oper = XLTW_Lock,
		.by_heap = lock_by_heap,.beside_siblings = lock_beside_siblings,
		.cid = cid,.snapshot = snapshot,.tmfd = tmfd,.locked = slot,
		.flags = flags,
	};
	TM_Result	result;

	if (!mip_in_transaction())
		return mode == LockTupleKeyShare ? lock_row(&w, lock_version_outside) :
			mip_heap()->tuple_lock(rel, tid, snapshot, slot, cid, mode, policy,
								   flags, tmfd);
	result = lock_row(&w, lock_version);
	if (result == TM_Ok && mode == LockTupleExclusive &&
		!strengthen_base(rel, tid, policy, XLTW_Lock))
		return TM_WouldBlock;
	return result;
}

void
mip_tableam_write(TableAmRoutine *routine)
{
	routine->tuple_delete = mip_tuple_delete;
	routine->tuple_update = mip_tuple_update;
	routine->tuple_lock = mip_tuple_lock;
}
