/*-------------------------------------------------------------------------
 *
 * tableam_write.c
 *	  Writing callbacks: update, delete and lock beside siblings.
 *
 * Each claims the version first (claim.c). Where nothing of a sibling is in
 * the way heap's callback runs as it is. Else the base version's header gets
 * this transaction as one more locker, so that outsiders wait for us too, and
 * the change itself goes into the overlay.
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
#include "heap/insert.h"
#include "heap/logical.h"
#include "heap/version.h"
#include "family/current.h"
#include "tableam/am.h"
#include "tableam/chain.h"
#include "tableam/claim.h"
#include "tableam/outsider.h"
#include "tableam/overlay.h"
#include "tableam/tableam.h"

/*
 * Serializable isolation would miss the conflicts on the base version. What
 * heap logs of tables that output plugins use as catalogs nobody else can.
 */
static void
check_may_overlay(Relation rel)
{
	if (IsolationIsSerializable())
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access beside a sibling that uses the same row"),
				 errhint("Retry the request as a new instance at REPEATABLE READ.")));
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
 * had to be waited for, and the claim is given up.
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
 * Heap would have waited where the claim has found nobody to wait for. If an
 * update of the version has committed, it would have waited for lockers that do
 * not matter any more; that result is known. Else either somebody has come in,
 * and the next claim will find him. Or the header says of members that have
 * ended that they are in the way: then heap stands in line, and with an
 * outsider at its head that waits for a sibling there would be no end.
 */
static TM_Result
would_block(Relation rel, ItemPointer tid, TM_FailureData *tmfd)
{
	TM_Result	result = mip_update_committed(rel, tid, tmfd);

	if (result != TM_Ok)
		return result;
	(void) mip_drop_dead_members(rel, tid);
	return TM_WouldBlock;
}

/*
 * Heap's update and delete wait for whom they find in xmax, or if told not to
 * wait, give up without a look whether they conflict. So where somebody is
 * there who does not, we lock the row first, without waiting: then nobody who
 * does can come any more. If that is not TM_Ok, the claim is given up:
 * TM_WouldBlock if it has to be made again, else the change has failed.
 *
 * If we have that lock already, beside a sibling's update that is dead now,
 * heap would lock the old version with a multixact that still has the update
 * in it, and an assertion objects.
 */
static TM_Result
lock_first(MipClaim *claim, CommandId cid, TM_FailureData *tmfd)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_Result	result;
	bool		dead_updater;

	if (!claim->used)
		return TM_Ok;
	tuple.t_self = claim->tid;
	result = heap_lock_tuple(claim->rel, &tuple, cid, claim->mode, LockWaitSkip,
							 false, &buffer, tmfd);
	dead_updater = result == TM_Ok &&
		mip_multixact_updates(tuple.t_data->t_infomask);
	ReleaseBuffer(buffer);
	if (dead_updater)
		(void) mip_drop_dead_members(claim->rel, &claim->tid);
	if (result == TM_WouldBlock)
		result = would_block(claim->rel, &claim->tid, tmfd);
	/* what we have changed ourselves heap's own code is to judge */
	if (result != TM_WouldBlock && result != TM_Updated && result != TM_Deleted)
		return TM_Ok;
	mip_release(claim);
	return result;
}

/* What to tell heap's update then; an assertion objects to not waiting at all. */
static bool
update_may_wait(const MipClaim *claim)
{
#ifdef USE_ASSERT_CHECKING
	return true;
#else
	return claim->used;
#endif
}

/* A base version that our own overlay replaced: what heap says of such. */
static TM_Result
self_modified(MipOverlayEntry *entry, CommandId cid, TM_FailureData *tmfd)
{
	if (entry->link.cid < cid)
		return TM_Invisible;
	tmfd->ctid = ItemPointerIsValid(&entry->link.version) ?
		entry->link.version : entry->link.base;
	tmfd->xmax = entry->link.xmax;
	tmfd->cmax = entry->link.cid;
	return TM_SelfModified;
}

/* Does `crosscheck` (foreign keys at REPEATABLE READ) see this version? */
static bool
crosscheck_sees(Relation rel, ItemPointer tid, Snapshot crosscheck)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsBufferHeapTuple);
	bool		sees = mip_heap()->tuple_fetch_row_version(rel, tid, crosscheck, slot);

	ExecDropSingleTupleTableSlot(slot);
	return sees;
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
	MipOverlayEntry *entry = mip_overlay_base_of(rel, version);
	ItemPointerData base;
	MipClaim	claim;

	if (entry == NULL)
		return true;
	base = entry->link.base;
	do
	{
		if (!mip_claim(&claim, rel, &base, LockTupleExclusive, NULL, policy, oper))
			return false;
	} while (!mip_join(&claim));
	mip_release(&claim);
	return true;
}

/*
 * Only siblings are in the way: enters us among the base version's lockers, for
 * the change to go into the overlay. If that is not TM_Ok, the claim is given
 * up: TM_WouldBlock if it has to be made again, else the change has failed.
 */
static TM_Result
begin_overlay(MipClaim *claim, Snapshot crosscheck)
{
	check_may_overlay(claim->rel);
	if (!lock_values(claim))
		return TM_WouldBlock;
	if (crosscheck != InvalidSnapshot &&
		!crosscheck_sees(claim->rel, &claim->tid, crosscheck))
	{
		mip_release(claim);
		return TM_Updated;
	}
	return mip_join(claim) ? TM_Ok : TM_WouldBlock;
}

static TM_Result
overlay_delete(MipClaim *claim, CommandId cid, bool changing_part)
{
	uint32		flags = MIP_LINK_DELETE | MIP_LINK_KEYS;

	if (changing_part)
		flags |= MIP_LINK_MOVED;
	if (RelationIsLogicallyLogged(claim->rel))
		mip_logical_delete(claim->rel, &claim->tid, changing_part);
	mip_overlay_add(claim->rel, &claim->tid, NULL, cid, flags);
	pgstat_count_heap_delete(claim->rel);
	return TM_Ok;
}

static TM_Result
mip_tuple_delete(Relation rel, ItemPointer tid, CommandId cid,
				 Snapshot snapshot, Snapshot crosscheck, bool wait,
				 TM_FailureData *tmfd, bool changing_part)
{
	MipClaim	claim;
	MipOverlayEntry *entry;
	TM_Result	result;

	if (!mip_in_transaction())
		return mip_heap()->tuple_delete(rel, tid, cid, snapshot, crosscheck,
										wait, tmfd, changing_part);
	if ((entry = mip_overlay_find(rel, tid)) != NULL)
		return self_modified(entry, cid, tmfd);
	for (;;)
	{
		if (!mip_claim(&claim, rel, tid, LockTupleExclusive, NULL,
					   wait ? LockWaitBlock : LockWaitSkip, XLTW_Delete))
			return TM_BeingModified;
		if (claim.verdict == MIP_REPLACED)
		{
			mip_release(&claim);
			return mip_update_committed(rel, tid, tmfd);
		}
		if (claim.verdict == MIP_CLEAR)
		{
			result = lock_first(&claim, cid, tmfd);
			if (result == TM_WouldBlock)
				continue;
			if (result != TM_Ok)
				return result;
			result = mip_heap()->tuple_delete(rel, tid, cid, snapshot, crosscheck,
											  claim.used, tmfd, changing_part);
			mip_release(&claim);
			if (result == TM_BeingModified && wait)
				continue;
			if (result == TM_Ok)
				(void) strengthen_base(rel, tid, LockWaitBlock, XLTW_Delete);
			return result;
		}
		result = begin_overlay(&claim, crosscheck);
		if (result == TM_Ok)
			break;
		if (result != TM_WouldBlock)
			return result;
	}
	result = overlay_delete(&claim, cid, changing_part);
	mip_release(&claim);
	return result;
}

/*
 * Heap's update. Beside a running locker that of older minor releases (15.18;
 * not 15.20) takes an updater that a crash has ended, and that has left no trace
 * of its abort, for committed.
 */
static TM_Result
update_by_heap(Relation rel, ItemPointer otid, TupleTableSlot *slot,
			   CommandId cid, Snapshot snapshot, Snapshot crosscheck,
			   bool wait, TM_FailureData *tmfd, LockTupleMode *lockmode,
			   MipUpdateIndexes *update_indexes)
{
	TM_Result	result;

	do
		result = mip_heap()->tuple_update(rel, otid, slot, cid, snapshot,
										  crosscheck, wait, tmfd, lockmode,
										  update_indexes);
	while (result == TM_Updated && !TransactionIdDidCommit(tmfd->xmax) &&
		   mip_drop_dead_members(rel, otid));
	return result;
}

static TM_Result
mip_tuple_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
				 CommandId cid, Snapshot snapshot, Snapshot crosscheck,
				 bool wait, TM_FailureData *tmfd, LockTupleMode *lockmode,
				 MipUpdateIndexes *update_indexes)
{
	MipClaim	claim;
	MipOverlayEntry *entry;
	TM_Result	result;
	ItemPointerData base = *otid;

	if (!mip_in_transaction())
		return update_by_heap(rel, otid, slot, cid, snapshot, crosscheck, wait,
							  tmfd, lockmode, update_indexes);
	if ((entry = mip_overlay_find(rel, &base)) != NULL)
		return self_modified(entry, cid, tmfd);
	for (;;)
	{
		if (!mip_claim(&claim, rel, &base, LockTupleExclusive, slot,
					   wait ? LockWaitBlock : LockWaitSkip, XLTW_Update))
			return TM_BeingModified;
		if (claim.verdict == MIP_REPLACED)
		{
			*lockmode = claim.mode;
			mip_release(&claim);
			return mip_update_committed(rel, &base, tmfd);
		}
		if (claim.verdict == MIP_CLEAR)
		{
			result = lock_first(&claim, cid, tmfd);
			if (result == TM_WouldBlock)
				continue;
			if (result != TM_Ok)
			{
				*lockmode = claim.mode;
				return result;
			}
			result = update_by_heap(rel, &base, slot, cid, snapshot, crosscheck,
									update_may_wait(&claim), tmfd, lockmode,
									update_indexes);
			mip_release(&claim);
			if (result == TM_BeingModified && wait)
				continue;
			if (result == TM_Ok)
			{
				mip_overlay_follow(rel, &base, &slot->tts_tid);
				if (*lockmode == LockTupleExclusive)
					(void) strengthen_base(rel, &base, LockWaitBlock, XLTW_Update);
			}
			return result;
		}
		result = begin_overlay(&claim, crosscheck);
		if (result == TM_Ok)
			break;
		if (result != TM_WouldBlock)
			return result;
	}
	mip_insert_version(rel, &base, slot, cid);
	mip_pgstat_count_heap_update(rel, ItemPointerGetBlockNumber(&base) !=
								 ItemPointerGetBlockNumber(&slot->tts_tid));
	mip_overlay_add(rel, &base, &slot->tts_tid, cid,
					claim.mode == LockTupleExclusive || claim.exclusive ? MIP_LINK_KEYS : 0);
	*lockmode = claim.mode;
	*update_indexes = MIP_UPDATE_ALL_INDEXES;
	mip_release(&claim);
	return TM_Ok;
}

/*
 * Heap's lock of one version; never goes on to later ones. Only for key share
 * locks something is to be done first: see mip_mend_key_share. If a header is
 * spoilt again meanwhile, heap takes a running update for a finished one.
 */
static TM_Result
lock_by_heap(Relation rel, ItemPointer tid, Snapshot snapshot,
			 TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
			 LockWaitPolicy policy, uint8 flags, TM_FailureData *tmfd)
{
	TM_Result	result;

	flags &= ~TUPLE_LOCK_FLAG_FIND_LAST_VERSION;
	do
	{
		if (mode == LockTupleKeyShare && !mip_mend_key_share(rel, tid, policy))
			return TM_WouldBlock;
		result = mip_heap()->tuple_lock(rel, tid, snapshot, slot, cid, mode,
										policy, flags, tmfd);
	} while (result == TM_Updated && TransactionIdIsInProgress(tmfd->xmax));
	return result;
}

/* Locks one version in a MIP transaction. */
static TM_Result
lock_version(Relation rel, ItemPointer tid, Snapshot snapshot,
			 TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
			 LockWaitPolicy policy, uint8 flags, TM_FailureData *tmfd)
{
	MipClaim	claim;
	TM_Result	result;
	bool		later = mode == LockTupleKeyShare &&
		(flags & TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS) != 0;

	/*
	 * Locking later versions as well, heap would wait for siblings there. Only
	 * a key share lock needs that, beside an update: see chain.c.
	 */
	flags &= ~TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS;
	for (;;)
	{
		if (!mip_claim(&claim, rel, tid, mode, NULL, policy, XLTW_Lock))
			return TM_WouldBlock;
		if (claim.verdict == MIP_REPLACED && mode != LockTupleKeyShare)
		{
			mip_release(&claim);
			return mip_update_committed(rel, tid, tmfd);
		}
		if (claim.verdict != MIP_OVERLAP)
		{
			result = lock_by_heap(rel, tid, snapshot, slot, cid, mode,
								  LockWaitSkip, flags, tmfd);
			mip_release(&claim);
			if (result == TM_WouldBlock)
				result = would_block(rel, tid, tmfd);
			if (result == TM_WouldBlock)
				continue;
			if (result == TM_Ok && later)
				result = mip_lock_later_versions(rel, tid, policy, tmfd);
			return result;
		}
		if (mip_join(&claim))
			break;
	}
	mip_release(&claim);
	tmfd->traversed = false;
	if (!mip_heap()->tuple_fetch_row_version(rel, tid, SnapshotAny, slot))
		elog(ERROR, "pg_mip: a version that was just locked is gone");
	return TM_Ok;
}

/*
 * An outsider's lock. Heap's own way to a row's latest version would come upon
 * spoilt headers, too.
 */
static TM_Result
lock_outside(Relation rel, ItemPointer tid, Snapshot snapshot,
			 TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
			 LockWaitPolicy policy, uint8 flags, TM_FailureData *tmfd)
{
	bool		traversed = false;
	TM_Result	result;

	if (mode != LockTupleKeyShare)
		return mip_heap()->tuple_lock(rel, tid, snapshot, slot, cid, mode,
									  policy, flags, tmfd);
	for (;;)
	{
		result = lock_by_heap(rel, tid, snapshot, slot, cid, mode, policy,
							  flags, tmfd);
		if (result != TM_Updated || !(flags & TUPLE_LOCK_FLAG_FIND_LAST_VERSION))
			break;
		traversed = true;
		result = mip_next_version(rel, tid, cid, tmfd);
		if (result != TM_Ok)
			break;
	}
	tmfd->traversed = traversed;
	return result;
}

static TM_Result
mip_tuple_lock(Relation rel, ItemPointer tid, Snapshot snapshot,
			   TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
			   LockWaitPolicy policy, uint8 flags, TM_FailureData *tmfd)
{
	MipOverlayEntry *entry;
	bool		traversed = false;
	TM_Result	result;

	if (!mip_in_transaction())
		return lock_outside(rel, tid, snapshot, slot, cid, mode, policy, flags,
							tmfd);
	tmfd->traversed = false;
	if ((entry = mip_overlay_find(rel, tid)) != NULL)
		return self_modified(entry, cid, tmfd);
	for (;;)
	{
		result = lock_version(rel, tid, snapshot, slot, cid, mode, policy,
							  flags, tmfd);
		if (result != TM_Updated || !(flags & TUPLE_LOCK_FLAG_FIND_LAST_VERSION))
			break;
		traversed = true;
		result = mip_next_version(rel, tid, cid, tmfd);
		if (result != TM_Ok)
			break;
	}
	tmfd->traversed = traversed;
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
