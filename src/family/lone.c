/*-------------------------------------------------------------------------
 *
 * lone.c
 *	  Claims of an instance that is alone in its family.
 *
 * Of a family's instances no two claim the same version of a row at a time
 * [one-claim]. Among siblings a heavyweight lock sees to that (claim.c), which is
 * dear for who has none: he notes in the family which version he has claimed,
 * instead. Who is not alone looks there before he takes that lock.
 *
 * To see that one is alone and to note a claim, to look there, and to take the note
 * away, are sections under a spinlock. So let C be the section in which T, alone, has
 * claimed a version, and L the last one in which T' has looked for that version:
 *
 *	- C before L: L finds T's claim, or the section in which T was through came before
 *	  L. Then all that T has done to the version came before what T' does to it.
 *	- L before C: T' was registered before L, and is for as long as he does anything to
 *	  the version. So C has found him counted, and T is not alone.
 *
 * Nothing else about memory is needed: a section sees what was done before the sections
 * that it comes behind, here that `ninstances` had gone up. What registers need not know
 * of any of this. And there is room for one claim in a family: the second one would be of
 * somebody who is alone beside the first, who takes his away before he is unregistered.
 *
 * T' waits for T at the same version only, as with the heavyweight lock, if T hangs. He
 * is in the line of the condition variable before he looks for the last time, so T wakes
 * him, or he has found nothing to wait for: T looks for siblings in the section in which
 * he takes the note away, and who looks behind it finds none. (Before it: he is counted.)
 *
 * PostgreSQL's deadlock detector does not know of this wait. T has no other claim, and waits
 * for nobody's transaction under it; but heap may have to wait for a lock, as on a catalog or
 * the table of out-of-line values, and its holder for T'. So T' looks for that himself,
 * every deadlock_timeout, and fails (40P01), also where PostgreSQL would have let T pass
 * somebody in a line; and he sees to lock_timeout.
 *
 * spec/Claims.tla is a model of this.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "family/current.h"
#include "family/family.h"
#include "family/lone.h"

/* Has this backend a claim, in mip_mine.family? */
static bool claimed;

/*
 * Claims the version if we are alone. Else `in_use`: the process of a sibling that has
 * claimed it and is not through, or 0.
 */
static bool
look(Oid rel, ItemPointer tid, int *in_use)
{
	MipFamily  *family = mip_mine.family;
	MipLone    *lone = &family->lone;
	bool		alone;
	MipLone		was;

	SpinLockAcquire(&lone->lock);	/* [one-claim] */
	alone = family->ninstances == 1;
	if (alone)
	{
		lone->pid = MyProcPid;
		lone->rel = rel;
		lone->tid = *tid;
	}
	was.pid = lone->pid;
	was.rel = lone->rel;
	was.tid = lone->tid;
	SpinLockRelease(&lone->lock);
	*in_use = was.rel == rel && ItemPointerEquals(&was.tid, tid) ? was.pid : 0;
	return alone;
}

/* Does this process wait for us, be it through others? (0 among them: who is prepared.) */
static bool
waits_for_us(int pid)
{
	List	   *pids = list_make1_int(pid);

	for (int i = 0; i < list_length(pids); i++)
	{
		Datum		blocking = DirectFunctionCall1(pg_blocking_pids,
												   Int32GetDatum(list_nth_int(pids, i)));
		ArrayType  *array = DatumGetArrayTypeP(blocking);
		int32	   *blockers = (int32 *) ARR_DATA_PTR(array);

		for (int j = 0; j < ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)); j++)
			pids = list_append_unique_int(pids, blockers[j]);
	}
	return list_member_int(pids, MyProcPid);
}

/*
 * How long to sleep (ms), of a wait that began at `since`: at most what lock_timeout
 * leaves of it.
 */
static long
patience(TimestampTz since)
{
	long		left;

	if (LockTimeout <= 0)
		return DeadlockTimeout;
	left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
										   TimestampTzPlusMilliseconds(since, LockTimeout));
	if (left <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
	return Min(DeadlockTimeout, left);
}

/*
 * In line, until woken; the first call but enters the line. `deadlocked`: whether it was
 * one when this was looked at before. Once is not enough: processes are asked one after
 * the other, so what is found may never have been at one time.
 */
static void
wait_for(int pid, TimestampTz since, bool *deadlocked)
{
	bool		before = *deadlocked;

	*deadlocked = ConditionVariableTimedSleep(&mip_mine.family->lone.over, patience(since),
											  PG_WAIT_EXTENSION) && waits_for_us(pid);
	if (!*deadlocked || !before)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("Process %d waits for process %d, a sibling that is changing the same row, and that waits for process %d.",
					   MyProcPid, pid, MyProcPid)));
}

bool
mip_lone_claim(Oid rel, ItemPointer tid)
{
	int			in_use;
	TimestampTz since = 0;
	bool		deadlocked = false;

	Assert(mip_in_transaction() && !claimed);
	while (!(claimed = look(rel, tid, &in_use)) && in_use)
	{
		if (since == 0)
			since = GetCurrentTimestamp();
		wait_for(in_use, since, &deadlocked);
	}
	if (since != 0)
		(void) ConditionVariableCancelSleep();
	return claimed;
}

bool
mip_lone_claimed(void)
{
	return claimed;
}

void
mip_lone_withdraw(void)
{
	MipLone    *lone;
	bool		siblings;

	if (!claimed)
		return;
	lone = &mip_mine.family->lone;
	SpinLockAcquire(&lone->lock);
	lone->pid = 0;
	siblings = mip_have_siblings();
	SpinLockRelease(&lone->lock);
	claimed = false;
	if (siblings)
		ConditionVariableBroadcast(&lone->over);
}
