/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  Claiming row versions in a MIP transaction.
 *
 * heap's own update, delete and lock wait for every conflicting transaction,
 * siblings included. So before any of them runs, mip_claim looks at the
 * version's xmax: outsiders in the way are waited for here, with the same
 * queueing as heap's; if only siblings are in the way the caller takes the
 * overlay's path; else heap's code runs and finds nothing to wait for.
 *
 * Between that look and what follows, no sibling may get in: both happen
 * under a mutex on (family, relation, TID), a heavyweight lock of its own
 * kind that only family members take and that is never held while waiting
 * for an outsider; who has no siblings takes another way to the same end, which
 * costs less: lone.c. An outsider can still slip in, so heap is told not to wait:
 * it gives up, and the claim is made again. (Its update and delete cannot be
 * told so of a version that already carries locks; there the row is locked
 * first: see lock_first in tableam_write.c.) The loop of claiming until something
 * has been done is there, too: write_version.
 *
 * An instance with siblings never queues for heap's tuple lock: see queue.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/datum.h"
#include "utils/rel.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/stats.h"
#include "base/stop.h"
#include "heap/version.h"
#include "family/current.h"
#include "family/lone.h"
#include "tableam/claim.h"
#include "tableam/queue.h"

/* Lock manager modes with which heap queues for each tuple lock mode. */
static const LOCKMODE queue_modes[] = {
	[LockTupleKeyShare] = AccessShareLock,
	[LockTupleShare] = RowShareLock,
	[LockTupleNoKeyExclusive] = ExclusiveLock,
	[LockTupleExclusive] = AccessExclusiveLock,
};

static const MultiXactStatus lock_statuses[] = {
	[LockTupleKeyShare] = MultiXactStatusForKeyShare,
	[LockTupleShare] = MultiXactStatusForShare,
	[LockTupleNoKeyExclusive] = MultiXactStatusForNoKeyUpdate,
	[LockTupleExclusive] = MultiXactStatusForUpdate,
};

/* PostgreSQL's row lock conflict table (documentation, 13.3.2). */
static bool
modes_conflict(LockTupleMode a, LockTupleMode b)
{
	return DoLockModesConflict(queue_modes[a], queue_modes[b]);
}

/* ---- who is in the way ---- */

/* Does `update` change a column that a foreign key could refer to? */
static LockTupleMode
update_mode(Relation rel, HeapTuple old, TupleTableSlot *update)
{
	Bitmapset  *keys = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_KEY);
	TupleDesc	desc = RelationGetDescr(rel);
	LockTupleMode mode = LockTupleNoKeyExclusive;
	int			i = -1;

	while ((i = bms_next_member(keys, i)) >= 0)
	{
		AttrNumber	attno = i + FirstLowInvalidHeapAttributeNumber;
		Form_pg_attribute att;
		Datum		was,
					is;
		bool		was_null,
					is_null;

		if (attno <= 0)
		{
			mode = LockTupleExclusive;
			break;
		}
		att = TupleDescAttr(desc, attno - 1);
		was = heap_getattr(old, attno, desc, &was_null);
		is = slot_getattr(update, attno, &is_null);
		if (was_null != is_null ||
			(!was_null && !datumIsEqual(was, is, att->attbyval, att->attlen)))
		{
			mode = LockTupleExclusive;
			break;
		}
	}
	bms_free(keys);
	return mode;
}

/* Who uses a version. */
typedef struct Users
{
	bool		any;			/* somebody who runs, and be it ourselves */
	bool		ourselves;
	bool		exclusive;		/* ourselves, FOR UPDATE */
	TransactionId outsider;		/* with MIP_WAIT: who is in the way */
} Users;

/* Has one of us a version FOR UPDATE? Then an outsider's key share lock does not count: see outsider.c. */
static bool
for_update(const MultiXactMember *members, int n)
{
	for (int i = 0; i < n; i++)
	{
		TransactionId xid = members[i].xid;

		if (members[i].status == MultiXactStatusForUpdate &&
			(TransactionIdIsCurrentTransactionId(xid) ||
			 (TransactionIdIsInProgress(xid) && mip_xid_is_sibling(xid))))
			return true;
	}
	return false;
}

/* Sorts out who is in the way of `mode`. */
static MipVerdict
classify(const MipHeader *header, LockTupleMode mode, Users *users)
{
	MultiXactMember *members = NULL;
	int			n = mip_xmax_members(header, &members);
	MipVerdict	verdict = MIP_CLEAR;

	memset(users, 0, sizeof(*users));
	for (int i = 0; i < n; i++)
	{
		TransactionId xid = members[i].xid;
		bool		update = ISUPDATE_from_mxstatus(members[i].status);
		bool		conflict = modes_conflict(mode, mip_member_mode(&members[i]));

		if (TransactionIdIsCurrentTransactionId(xid))
		{
			users->any = users->ourselves = true;
			users->exclusive |= mip_member_mode(&members[i]) == LockTupleExclusive;
			if (update)
			{
				/* already replaced by ourselves: heap knows what that means */
				verdict = MIP_CLEAR;
				break;
			}
			continue;
		}
		if (!TransactionIdIsInProgress(xid))
		{
			if (update && TransactionIdDidCommit(xid))
			{
				verdict = MIP_REPLACED;
				break;
			}
			continue;
		}
		users->any = true;
		if (mip_xid_is_sibling(xid))
		{
			/* heap would follow a sibling's update to its new version */
			if ((conflict || update) && verdict == MIP_CLEAR)
				verdict = MIP_OVERLAP;
		}
		else if (conflict && members[i].status == MultiXactStatusForKeyShare &&
				 for_update(members, n))
		{
			/* but heap would wait */
			if (verdict == MIP_CLEAR)
				verdict = MIP_OVERLAP;
		}
		else if (conflict)
		{
			verdict = MIP_WAIT;
			users->outsider = xid;
		}
	}
	if (members)
		pfree(members);
	return verdict;
}

/* ---- claims ---- */

/* The mutex that this backend has, if any; there is room for one. No owner: none. */
static LOCKTAG mutex;
static ResourceOwner mutex_owner;

static void
lock_mutex(MipClaim *claim)
{
	Assert(!claim->held && mutex_owner == NULL);
	claim->held = mip_lone_claim(RelationGetRelid(claim->rel), &claim->tid);
	if (claim->held)
		return;
	mutex.locktag_field1 = mip_mine.family->id;
	mutex.locktag_field2 = RelationGetRelid(claim->rel);
	mutex.locktag_field3 = ItemPointerGetBlockNumber(&claim->tid);
	mutex.locktag_field4 = ItemPointerGetOffsetNumber(&claim->tid);
	mutex.locktag_type = LOCKTAG_USERLOCK;
	mutex.locktag_lockmethodid = DEFAULT_LOCKMETHOD;
	(void) LockAcquire(&mutex, ExclusiveLock, false, false);	/* [one-claim] */
	mutex_owner = CurrentResourceOwner;
	claim->held = true;
}

void
mip_claim_let_go(void)
{
	ResourceOwner current = CurrentResourceOwner;

	mip_lone_withdraw();
	if (mutex_owner == NULL)
		return;
	CurrentResourceOwner = mutex_owner;
	mutex_owner = NULL;
	LockRelease(&mutex, ExclusiveLock, false);
	CurrentResourceOwner = current;
}

static void
unlock_mutex(MipClaim *claim)
{
	if (claim->held)
		mip_claim_let_go();
	claim->held = false;
}

static void
leave_queue(MipClaim *claim)
{
	if (claim->queued)
		UnlockTuple(claim->rel, &claim->tid, claim->queue_mode);
	claim->queued = false;
}

void
mip_lock_not_available(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not obtain lock on row in relation \"%s\"",
					RelationGetRelationName(rel))));
}

/*
 * Waits until the outsider is through, in heap's order of arrival if there are
 * no siblings, and if we do not hold a weaker lock: the head of the line may be
 * waiting for that (heap does the same). False: SKIP LOCKED.
 */
static bool
wait_for_outsider(MipClaim *claim, const Users *users,
				  LockWaitPolicy policy, XLTW_Oper oper)
{
	Assert(!claim->held && !mip_lone_claimed() && mutex_owner == NULL); /* [lock-order] */
	Assert(!mip_xid_is_sibling(users->outsider));	/* [siblings-never-wait] */
	if (policy == LockWaitBlock)
	{
		if (mip_have_siblings())
			leave_queue(claim);
		else if (!claim->queued && !users->ourselves)
		{
			claim->queue_mode = queue_modes[claim->mode];
			claim->queued = mip_queue(claim->rel, &claim->tid, claim->queue_mode);
		}
		mip_count(MIP_COUNT_WAITS);
		XactLockTableWait(users->outsider, claim->rel, &claim->tid, oper);
		mip_check_doomed();
		return true;
	}
	if (mip_conditional_xact_wait(users->outsider))
		return true;
	if (policy == LockWaitError)
		mip_lock_not_available(claim->rel);
	return false;
}

bool
mip_claim(MipClaim *claim, Relation rel, ItemPointer tid, LockTupleMode mode,
		  TupleTableSlot *update, LockWaitPolicy policy, XLTW_Oper oper)
{
	Assert(mip_in_transaction());
	Assert(CheckRelationLockedByMe(rel, RowShareLock, true));
	claim->rel = rel;
	claim->tid = *tid;
	claim->mode = mode;
	claim->held = claim->queued = false;

	for (;;)
	{
		MipHeader	header;
		HeapTuple	old;
		Users		users = {0};

		CHECK_FOR_INTERRUPTS();
		mip_check_doomed();
		lock_mutex(claim);
		claim->verdict = MIP_CLEAR;
		if (mip_read_header(rel, tid, &header, NULL))
			claim->verdict = classify(&header, claim->mode, &users);

		/* An update that leaves the key alone conflicts with less. */
		if ((users.any || claim->verdict == MIP_REPLACED) && update)
		{
			if (!mip_read_header(rel, tid, &header, &old))
			{
				unlock_mutex(claim);
				continue;
			}
			claim->mode = update_mode(rel, old, update);
			heap_freetuple(old);
			claim->verdict = classify(&header, claim->mode, &users);
		}
		claim->used = users.any;
		claim->exclusive = users.exclusive;
		if (claim->verdict != MIP_WAIT)
		{
			mip_stop_point("claimed");
			return true;
		}

		unlock_mutex(claim);
		if (!wait_for_outsider(claim, &users, policy, oper))
		{
			leave_queue(claim);
			return false;
		}
	}
}

void
mip_release(MipClaim *claim)
{
	unlock_mutex(claim);
	leave_queue(claim);
}

/* ---- joining ---- */

bool
mip_join(MipClaim *claim)
{
	TransactionId xid = GetCurrentTransactionId();
	MipPinned	pinned = mip_pin_version(claim->rel, &claim->tid);
	MipHeader	header = mip_header(pinned.htup);
	MultiXactMember *members;
	int			n;
	bool		held,
				updated;
	Users		users;
	bool		valid;

	Assert(claim->held);

	/*
	 * An outsider may have come in since the claim was made. In this order:
	 * his update may commit at any time, and is to be in the way before and
	 * after.
	 */
	valid = classify(&header, claim->mode, &users) != MIP_WAIT;
	mip_stop_point("join");
	n = mip_running_members(&header, claim->mode, &members, &held, &updated);
	valid &= !updated;
	if (valid && !held)
	{
		members[n].xid = xid;
		members[n].status = lock_statuses[claim->mode];
		mip_set_multixact(claim->rel, &claim->tid, &pinned, members, n + 1);
	}
	mip_unpin_version(&pinned);
	pfree(members);
	return valid;
}
