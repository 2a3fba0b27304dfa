/*-------------------------------------------------------------------------
 *
 * outsider.c
 *	  What heap's own code cannot see in the headers of versions that an
 *	  overlay has replaced, on behalf of everybody else.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"

#include "base/compat.h"
#include "base/stop.h"
#include "heap/version.h"
#include "family/current.h"
#include "tableam/claim.h"
#include "tableam/outsider.h"

/*
 * Among the members of a version's xmax: an instance, as `is_one` has it, that runs, is
 * no sibling of ours, and locks the version in `mode` or more.
 */
static TransactionId
locking_instance(const MipHeader *header, LockTupleMode mode,
				 bool (*is_one) (TransactionId xid))
{
	MultiXactMember *members = NULL;
	TransactionId instance = InvalidTransactionId;
	int			n = mip_xmax_members(header, &members);

	for (int i = 0; i < n; i++)
	{
		TransactionId xid = members[i].xid;

		if (mip_member_mode(&members[i]) >= mode &&
			!ISUPDATE_from_mxstatus(members[i].status) &&
			!TransactionIdIsCurrentTransactionId(xid) &&
			TransactionIdIsInProgress(xid) &&
			is_one(xid) && !mip_xid_is_sibling(xid))
			instance = xid;
	}
	if (members)
		pfree(members);
	return instance;
}

/* ---- unique checks ---- */

/*
 * An instance's overlay may have deleted this live version, or changed the
 * columns of a unique or exclusion constraint (which need not be key columns
 * in the sense of row locks: partial and expression indexes are not), while
 * the header shows no more than a lock. Whoever asks whether a row is in the
 * way has to wait for that instance, as for a delete or update of heap's. An
 * overlay's locker is a member of a multixact, always; it may hold no more
 * than that lock, though, on this version.
 */
static TransactionId
pending_owner(const MipHeader *header)
{
	return locking_instance(header, LockTupleNoKeyExclusive, mip_xid_may_overlay);
}

/*
 * Whoever was an overlay's locker when heap looked is in the header that is read
 * here, or has been handed over since, and is the updater in this header or in the
 * next one: he may have ended since this one was read (and a multixact of lockers
 * that have all ended has no members). So what heap says holds if it has looked
 * behind a header that has nobody pending, and that still stands.
 */
bool
mip_pending_owner(Relation rel, ItemPointer tid, MipSeen *seen, TransactionId *owner)
{
	MipHeader	header;
	bool		same;

	*owner = InvalidTransactionId;
	mip_stop_point("found");
	if (!mip_read_header(rel, tid, &header, NULL) ||
		(header.infomask & HEAP_XMAX_INVALID) ||
		(!(header.infomask & HEAP_XMAX_IS_MULTI) &&
		 HEAP_XMAX_IS_LOCKED_ONLY(header.infomask)))
		return true;
	mip_stop_point("header read");
	*owner = pending_owner(&header);
	same = mip_same_xmax(&header, &seen->header) && ItemPointerEquals(tid, &seen->tid);
	seen->tid = *tid;
	seen->header = header;
	return TransactionIdIsValid(*owner) || same;
}

/* ---- key share locks ---- */

/* False: SKIP LOCKED. */
static bool
wait_for(TransactionId xid, Relation rel, ItemPointer tid, LockWaitPolicy policy)
{
	if (policy == LockWaitBlock)
		XactLockTableWait(xid, rel, tid, XLTW_Lock);
	else if (!mip_conditional_xact_wait(xid))
	{
		if (policy == LockWaitError)
			mip_lock_not_available(rel);
		return false;
	}
	return true;
}

/*
 * Among the members of an updated version's xmax: a running locker that is in
 * the way of a key share lock. *spoilt: the header says that the key is changing
 * although the update, running or committed, leaves it alone.
 */
static TransactionId
key_locker(const MipHeader *header, bool *spoilt)
{
	MultiXactMember *members = NULL;
	TransactionId locker = InvalidTransactionId;
	int			n = mip_xmax_members(header, &members);

	*spoilt = false;
	for (int i = 0; i < n; i++)
	{
		bool		running = TransactionIdIsInProgress(members[i].xid);

		if (members[i].status == MultiXactStatusNoKeyUpdate &&
			(running || TransactionIdDidCommit(members[i].xid)))
			*spoilt = true;
		if (!running)
			continue;
		if (members[i].status == MultiXactStatusForUpdate &&
			!TransactionIdIsCurrentTransactionId(members[i].xid))
			locker = members[i].xid;
	}
	if (members)
		pfree(members);
	return locker;
}

/*
 * heap never sees an update that leaves the key alone beside a FOR UPDATE
 * locker, as a sibling's overlay makes one: it would wait for the locker and
 * then, since the header still says that the key is changing, take the update,
 * which is running, for finished; and one that has committed for one that it must
 * not follow. So wait for the locker here, and mend the header when it is gone.
 */
bool
mip_mend_key_share(Relation rel, ItemPointer tid, LockWaitPolicy policy)
{
	/*
	 * an instance has claimed the version: its mutex is not to be held for
	 * long
	 */
	Assert(!mip_in_transaction() || policy == LockWaitSkip);
	for (;;)
	{
		MipHeader	header;
		TransactionId locker;
		bool		spoilt;

		if (!mip_read_header(rel, tid, &header, NULL) ||
			!mip_multixact_updates(header.infomask) ||
			!(header.infomask2 & HEAP_KEYS_UPDATED))
			return true;
		locker = key_locker(&header, &spoilt);
		if (!spoilt)
			return true;
		if (!TransactionIdIsValid(locker))
		{
			/* and with them the hint */
			(void) mip_drop_dead_members(rel, tid);
			return true;
		}
		if (!wait_for(locker, rel, tid, policy))
			return false;
	}
}

/*
 * Gives our key share lock up if an instance has the version FOR UPDATE, which is
 * returned. *held: we have the lock. The page is locked: an instance that has been handed
 * over meanwhile is not to be taken for one that has lost.
 */
static TransactionId
give_up(Relation rel, ItemPointer tid, bool *held)
{
	MipPinned	pinned;
	MipHeader	header;
	TransactionId instance;

	MultiXactIdSetOldestMember();
	pinned = mip_pin_version(rel, tid);
	header = mip_header(pinned.htup);
	instance = locking_instance(&header, LockTupleExclusive, mip_xid_is_instance);
	*held = mip_holds(&header);
	if (*held && TransactionIdIsValid(instance))
		*held = !mip_leave(rel, tid, &pinned);
	mip_unpin_version(&pinned);
	return instance;
}

/*
 * heap does not have the page locked all the time that it takes to give a key share
 * lock, and may wait for who has a later version; and when it looks once more, it looks
 * for updates only. So it gives one beside a FOR UPDATE locker, whose update or delete
 * has to wait for it then. But not an overlay's, which may be done; and where a sibling's
 * update was that has been rolled back meanwhile, there is nothing to be seen but the
 * overlay's lock.
 *
 * Such a lock counts for nothing: siblings of the instance, and itself, do not wait for
 * it (claim.c), the hand-over drops it (mip_key_share_lockers), and who has it gives it
 * up here. All three know it by the same sign, a key share lock beside an instance that
 * runs and has the version FOR UPDATE: neither can come to be there beside the other in
 * another way. An instance has begun before it locks anything, so it is one to all three.
 */
TM_Result
mip_confirm_key_share(Relation rel, ItemPointer tid, LockWaitPolicy policy)
{
	MipHeader	header;
	TransactionId instance;
	bool		held;

	if (!mip_read_header(rel, tid, &header, NULL))
		elog(ERROR, "pg_mip: a version that was just locked is gone");
	/* the mark of who has, or had, it FOR UPDATE */
	if (!(header.infomask2 & HEAP_KEYS_UPDATED) && mip_holds(&header))
		return TM_Ok;
	mip_stop_point("not alone");
	instance = give_up(rel, tid, &held);
	if (held)
		return TM_Ok;
	if (!TransactionIdIsValid(instance))
		return TM_BeingModified;
	return wait_for(instance, rel, tid, policy) ? TM_BeingModified : TM_WouldBlock;
}

/* The update of this version that has committed or may commit, and what it leads to */
static TransactionId
next_version(Relation rel, ItemPointer tid, ItemPointer next)
{
	MipHeader	header;
	MipHeader	later;
	TransactionId updater;
	bool		keys;

	if (!mip_read_header(rel, tid, &header, NULL))
		return InvalidTransactionId;
	*next = header.ctid;
	updater = mip_updater(&header, &keys);
	if (!TransactionIdIsValid(updater) || ItemPointerEquals(next, tid) ||
		ItemPointerIndicatesMovedPartitions(next) ||
		TransactionIdIsCurrentTransactionId(updater) ||
		!(TransactionIdIsInProgress(updater) || TransactionIdDidCommit(updater)) ||
		!mip_read_header(rel, next, &later, NULL) ||
		!TransactionIdEquals(later.xmin, updater))
		return InvalidTransactionId;
	return updater;
}

/*
 * heap locks the versions that a running update has made before it locks the one
 * that it was asked for, which is unlocked meanwhile; then it takes any update there
 * for the one that it has followed. If that has been rolled back, and a hand-over
 * has put the winner's in its place, nobody has locked the winner's version, nor has
 * the hand-over seen us. What is locked takes the lock along to later versions; but
 * heap may also have locked some, and then met one that it could not lock, whose key
 * has changed: and what is locked already it does not follow a second time. So go
 * along all that have the lock.
 */
TM_Result
mip_missed_version(Relation rel, ItemPointer tid, LockWaitPolicy policy)
{
	for (;;)
	{
		ItemPointerData next;
		TransactionId updater = next_version(rel, tid, &next);

		CHECK_FOR_INTERRUPTS();
		if (!TransactionIdIsValid(updater))
			return TM_Ok;
		if (mip_is_in_xmax(rel, &next))
			*tid = next;
		else if (TransactionIdIsInProgress(updater))
		{
			/* heap does not lock what is not visible yet */
			if (!wait_for(updater, rel, tid, policy))
				return TM_WouldBlock;
		}
		else if (TransactionIdDidCommit(updater))
		{
			*tid = next;
			return TM_Updated;
		}
		/* else it has just been rolled back */
	}
}
