/*-------------------------------------------------------------------------
 *
 * tableam_write.c
 *	  Writing callbacks: update, delete and lock beside siblings.
 *
 * Each claims the version first (sibling.c). Where nothing of a sibling is in
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
#include "sibling.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "tableam.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * Logical decoding would see an overlay's UPDATE as an INSERT and lose its
 * DELETE. Serializable isolation would miss the conflicts on the base version.
 */
static void
check_may_overlay(Relation rel)
{
	if (IsolationIsSerializable())
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access beside a sibling that uses the same row"),
				 errhint("Retry the request as a new instance at REPEATABLE READ.")));
	if (RelationIsLogicallyLogged(rel))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot change a row of table \"%s\" that a sibling has in use while wal_level is \"logical\"",
						RelationGetRelationName(rel)),
				 errdetail("Logical decoding would not see the change as it was made."),
				 errhint("Commit or roll back the other instances of this family first.")));
}

/*
 * Should heap's update or delete wait for whom it finds in xmax? If it must
 * not, it does not look whether they conflict either; so only where there was
 * nobody. (An assertion in heap_update objects to not waiting at all.)
 */
static bool
heap_may_wait(const MipClaim *claim)
{
#ifdef USE_ASSERT_CHECKING
	return true;
#else
	return !claim->untouched;
#endif
}

/* A base version that our own overlay replaced: what heap says of such. */
static TM_Result
self_modified(MipOverlayEntry *entry, CommandId cid, TM_FailureData *tmfd)
{
	if (entry->cid < cid)
		return TM_Invisible;
	tmfd->ctid = ItemPointerIsValid(&entry->link.version) ?
		entry->link.version : entry->link.base;
	tmfd->xmax = entry->link.xmax;
	tmfd->cmax = entry->cid;
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
 * We have changed the key of, or deleted, a version that stands for a base
 * version in the overlay. Outsiders that hold a key share lock can only have
 * it on the base: the same change to the base would have waited for them.
 */
static void
strengthen_base(Relation rel, ItemPointer version)
{
	MipOverlayEntry *entry = mip_overlay_base_of(rel, version);
	ItemPointerData base;
	MipClaim	claim;

	if (entry == NULL)
		return;
	base = entry->link.base;
	do
	{
		(void) mip_claim(&claim, rel, &base, LockTupleExclusive, NULL,
						 LockWaitBlock, XLTW_Update);
	} while (!mip_join(&claim));
	mip_release(&claim);
}

static TM_Result
overlay_delete(MipClaim *claim, CommandId cid, bool changing_part)
{
	uint32		flags = MIP_LINK_DELETE | MIP_LINK_KEYS;

	if (changing_part)
		flags |= MIP_LINK_MOVED;
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
		if (claim.verdict == MIP_CLEAR)
		{
			result = mip_heap()->tuple_delete(rel, tid, cid, snapshot, crosscheck,
											  heap_may_wait(&claim), tmfd,
											  changing_part);
			mip_release(&claim);
			if (result == TM_BeingModified && wait)
				continue;
			if (result == TM_Ok)
				strengthen_base(rel, tid);
			return result;
		}
		check_may_overlay(rel);
		if (crosscheck != InvalidSnapshot && !crosscheck_sees(rel, tid, crosscheck))
		{
			mip_release(&claim);
			return TM_Updated;
		}
		if (mip_join(&claim))
			break;
	}
	result = overlay_delete(&claim, cid, changing_part);
	mip_release(&claim);
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
		return mip_heap()->tuple_update(rel, otid, slot, cid, snapshot, crosscheck,
										wait, tmfd, lockmode, update_indexes);
	if ((entry = mip_overlay_find(rel, &base)) != NULL)
		return self_modified(entry, cid, tmfd);
	for (;;)
	{
		if (!mip_claim(&claim, rel, &base, LockTupleExclusive, slot,
					   wait ? LockWaitBlock : LockWaitSkip, XLTW_Update))
			return TM_BeingModified;
		if (claim.verdict == MIP_CLEAR)
		{
			result = mip_heap()->tuple_update(rel, &base, slot, cid, snapshot,
											  crosscheck, heap_may_wait(&claim),
											  tmfd, lockmode, update_indexes);
			mip_release(&claim);
			if (result == TM_BeingModified && wait)
				continue;
			if (result == TM_Ok)
			{
				mip_overlay_follow(rel, &base, &slot->tts_tid);
				if (*lockmode == LockTupleExclusive)
					strengthen_base(rel, &base);
			}
			return result;
		}
		check_may_overlay(rel);
		if (crosscheck != InvalidSnapshot && !crosscheck_sees(rel, &base, crosscheck))
		{
			mip_release(&claim);
			return TM_Updated;
		}
		if (mip_join(&claim))
			break;
	}
	mip_heap()->tuple_insert(rel, slot, cid, 0, NULL);
	mip_overlay_add(rel, &base, &slot->tts_tid, cid,
					claim.mode == LockTupleExclusive ? MIP_LINK_KEYS : 0);
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

	/*
	 * Locking later versions as well, heap would wait for siblings there. Only
	 * a key share lock needs that, beside an update that still runs.
	 */
	if (mode != LockTupleKeyShare)
		flags &= ~TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS;
	for (;;)
	{
		if (!mip_claim(&claim, rel, tid, mode, NULL, policy, XLTW_Lock))
			return TM_WouldBlock;
		if (claim.verdict == MIP_CLEAR)
		{
			result = lock_by_heap(rel, tid, snapshot, slot, cid, mode,
								  LockWaitSkip, flags, tmfd);
			mip_release(&claim);
			if (result == TM_WouldBlock)
				continue;		/* somebody came in: claim it again */
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
 * The version after an updated one. TM_Ok: *tid is to be locked next;
 * TM_Deleted, TM_SelfModified: the end of the chain, as heap reports it.
 */
static TM_Result
next_version(Relation rel, ItemPointer tid, CommandId cid, TM_FailureData *tmfd)
{
	TransactionId prior = tmfd->xmax;
	ItemPointerData from = *tid;

	*tid = tmfd->ctid;
	if (ItemPointerEquals(tid, &from))
		return TM_Deleted;
	for (;;)
	{
		HeapTupleData tuple;
		Buffer		buffer;
		MipOverlayEntry *entry;
		TransactionId xmin,
					updater;
		CommandId	cmin = FirstCommandId;
		ItemPointerData ctid;

		if (ItemPointerIndicatesMovedPartitions(tid))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("tuple to be locked was already moved to another partition due to concurrent update")));
		tuple.t_self = *tid;
		if (!heap_fetch(rel, SnapshotAny, &tuple, &buffer, false))
			return TM_Deleted;
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		xmin = HeapTupleHeaderGetXmin(tuple.t_data);
		updater = (tuple.t_data->t_infomask & HEAP_XMAX_INVALID) ||
			HEAP_XMAX_IS_LOCKED_ONLY(tuple.t_data->t_infomask) ?
			InvalidTransactionId : HeapTupleHeaderGetUpdateXid(tuple.t_data);
		if (TransactionIdIsCurrentTransactionId(xmin))
			cmin = HeapTupleHeaderGetCmin(tuple.t_data);
		ctid = tuple.t_data->t_ctid;
		UnlockReleaseBuffer(buffer);

		/* a recycled line pointer: the row was deleted */
		if (!TransactionIdEquals(xmin, prior))
			return TM_Deleted;
		if (TransactionIdIsCurrentTransactionId(xmin) && cmin >= cid)
		{
			tmfd->xmax = xmin;
			tmfd->cmax = cmin;
			return TM_SelfModified;
		}
		entry = mip_overlay_find(rel, tid);
		if (entry)
		{
			/* our own overlay goes on from here */
			if (!ItemPointerIsValid(&entry->link.version))
				return TM_Deleted;
			prior = entry->link.xmax;
			*tid = entry->link.version;
			continue;
		}
		if (!TransactionIdIsCurrentTransactionId(updater))
			return TM_Ok;
		/* replaced by ourselves */
		if (ItemPointerEquals(tid, &ctid))
			return TM_Deleted;
		prior = updater;
		*tid = ctid;
	}
}

/* An outsider's lock. */
static TM_Result
lock_outside(Relation rel, ItemPointer tid, Snapshot snapshot,
			 TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
			 LockWaitPolicy policy, uint8 flags, TM_FailureData *tmfd)
{
	if (mode == LockTupleKeyShare)
	{
		TM_Result	result = lock_by_heap(rel, tid, snapshot, slot, cid, mode,
										  policy, flags, tmfd);

		if (result != TM_Updated || !(flags & TUPLE_LOCK_FLAG_FIND_LAST_VERSION))
			return result;
	}
	return mip_heap()->tuple_lock(rel, tid, snapshot, slot, cid, mode, policy,
								  flags, tmfd);
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
		result = next_version(rel, tid, cid, tmfd);
		if (result != TM_Ok)
			break;
	}
	tmfd->traversed = traversed;
	return result;
}

void
mip_tableam_write(TableAmRoutine *routine)
{
	routine->tuple_delete = mip_tuple_delete;
	routine->tuple_update = mip_tuple_update;
	routine->tuple_lock = mip_tuple_lock;
}
