/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Deadlocks that pass through a sibling.
 *
 * Outsider U waits for T, an instance that is prepared, or whose client hangs.
 * T ends when its family is decided, which may take a retry T'. T' waits for
 * U. Nobody moves, and PostgreSQL's detector sees no cycle, since T itself
 * waits for nothing. Nor would it help to make T' the victim: its retry would
 * meet U again. U must give way.
 *
 * Both may be waiting for anything: rows, index entries, tables. So a
 * background worker looks at the lock table as a whole, every
 * deadlock_timeout, and only while there are siblings. It follows the waits
 * of each active instance that has some; who is found to have waited for one
 * of the siblings for longer than deadlock_timeout is taken out of the line, as
 * PostgreSQL's detector does with its own process, and reports 40P01. One
 * victim at a time.
 *
 * Two retries of two families may wait for each other's prepared instance.
 * One has to give way again and again then, until either request is given up
 * (an instance that does nothing wins), but nobody hangs without a word.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/locks.h"
#include "family/family.h"
#include "family/family_internal.h"
#include "workers/deadlock.h"
#include "workers/worker.h"

/*
 * Fails the wait, if the process is still waiting for that lock. It is told
 * what to say about it (guard.c) and has `patience` milliseconds to do so, see
 * below.
 */
static bool
fail_wait(const LockInstanceData *wait)
{
	uint32		hashcode = LockTagHashCode(&wait->locktag);
	LWLock	   *partition = LockHashPartitionLock(hashcode);
	PGPROC	   *proc = BackendPidGetProc(wait->pid);
	bool		waits;

	if (proc == NULL)
		return false;
	LWLockAcquire(partition, LW_EXCLUSIVE);
	waits = proc->pid == wait->pid && proc->waitLock != NULL &&
		proc->waitStatus == PROC_WAIT_STATUS_WAITING &&
		memcmp(&proc->waitLock->tag, &wait->locktag, sizeof(LOCKTAG)) == 0;
	/* told before it wakes up, and by no more than one detector */
	if (waits)
	{
		mip_registry->victim_since = GetCurrentTimestamp();
		mip_registry->deadlock_victim = wait->pid;
		RemoveFromWaitQueue(proc, hashcode);
		SetLatch(&proc->procLatch);
	}
	LWLockRelease(partition);
	return waits;
}

static bool
victim_pending(int patience)
{
	return mip_registry->deadlock_victim != 0 &&
		BackendPidGetProc(mip_registry->deadlock_victim) != NULL &&
		!TimestampDifferenceExceeds(mip_registry->victim_since, GetCurrentTimestamp(),
									patience);
}

bool
mip_is_deadlock_victim(void)
{
	if (mip_registry == NULL || mip_registry->deadlock_victim != MyProcPid)
		return false;
	mip_registry->deadlock_victim = 0;
	return true;
}

/* Is this entry of the lock table one of the waiter's siblings? */
static bool
is_sibling(const LockData *locks, const LockInstanceData *entry,
		   const MipWaiter *waiter)
{
	if (entry->pid != 0)
		return list_member_int(waiter->active, entry->pid);

	return list_member_xid(waiter->prepared, mip_lock_prepared(locks, entry));
}

/*
 * Whoever ends `entry`, which is in the way: its backend; and if it is an
 * instance, that may take a retry of its family.
 */
static void
add_those_who_end(List **pids, const LockData *locks,
				  const LockInstanceData *entry, const List *waiters)
{
	ListCell   *lc;

	if (entry->pid != 0)
		*pids = list_append_unique_int(*pids, entry->pid);
	foreach(lc, waiters)
	{
		const MipWaiter *waiter = lfirst(lc);

		if (is_sibling(locks, entry, waiter))
			*pids = list_append_unique_int(*pids, waiter->pid);
	}
}

/*
 * Looks at what `wait` waits for. True if one of the siblings holds it; adds
 * the backends that are in the way otherwise to `pids`.
 */
static bool
waits_for_sibling(const LockData *locks, const LockInstanceData *wait,
				  const MipWaiter *waiter, const List *waiters, List **pids)
{
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *entry = &locks->locks[i];

		if (entry == wait || !mip_same_lock(entry, wait) || !mip_lock_blocks(locks, entry, wait))
			continue;
		/* siblings hold these among themselves, and never for long */
		if (entry->locktag.locktag_type == LOCKTAG_USERLOCK)
			continue;
		if (mip_modes_conflict(entry->holdMask, wait->waitLockMode) &&
			is_sibling(locks, entry, waiter))
			return true;
		add_those_who_end(pids, locks, entry, waiters);
	}
	return false;
}

static bool
waits_longer(const LockInstanceData *wait, int ms)
{
	return wait->waitStart != 0 &&
		TimestampDifferenceExceeds(wait->waitStart, GetCurrentTimestamp(), ms);
}

/* The wait that has to end so that `waiter` can go on, or NULL. */
static const LockInstanceData *
find_victim(const LockData *locks, const MipWaiter *waiter, const List *waiters)
{
	List	   *pids = list_make1_int(waiter->pid);

	for (int i = 0; i < list_length(pids); i++)
	{
		int			pid = list_nth_int(pids, i);

		for (int j = 0; j < locks->nelements; j++)
		{
			const LockInstanceData *wait = &locks->locks[j];

			if (wait->pid != pid || wait->waitLockMode == NoLock)
				continue;

			/*
			 * An instance with siblings leaves the line of a mip table's row
			 * (queue.c) well before that; that of another table it may only
			 * be in for a share lock, and stays.
			 */
			if (pid == waiter->pid && wait->locktag.locktag_type == LOCKTAG_TUPLE &&
				!waits_longer(wait, 2 * DeadlockTimeout))
				continue;
			if (waits_for_sibling(locks, wait, waiter, waiters, &pids) &&
				pid != waiter->pid && !list_member_int(waiter->active, pid) &&
				waits_longer(wait, DeadlockTimeout))
				return wait;
		}
	}
	return NULL;
}

static void
break_deadlocks(void)
{
	List	   *waiters = mip_waiters();
	LockData   *locks;
	ListCell   *lc;

	if (waiters == NIL || victim_pending(2 * DeadlockTimeout))
		return;
	locks = GetLockStatusData();
	foreach(lc, waiters)
	{
		const MipWaiter *waiter = lfirst(lc);
		const LockInstanceData *victim = find_victim(locks, waiter, waiters);

		if (victim && fail_wait(victim))
		{
			ereport(LOG,
					(errmsg("deadlock through an instance"),
					 errdetail("Process %d waits for it; its retry in process %d waits for process %d.",
							   victim->pid, waiter->pid, victim->pid)));
			break;
		}
	}
}

void
mip_deadlock_main(Datum arg)
{
	MemoryContext context;

	mip_worker_listen();
	context = AllocSetContextCreate(TopMemoryContext, "pg_mip deadlocks",
									ALLOCSET_DEFAULT_SIZES);
	while (!ShutdownRequestPending)
	{
		(void) mip_worker_wait(DeadlockTimeout);
		MemoryContextSwitchTo(context);
		break_deadlocks();
		MemoryContextReset(context);
	}
	proc_exit(1);				/* comes back if the server stays */
}

void
mip_deadlock_init(void)
{
	BackgroundWorker worker;

	mip_worker_describe(&worker, "pg_mip deadlock detector", "mip_deadlock_main",
						BGWORKER_SHMEM_ACCESS);
	RegisterBackgroundWorker(&worker);
}
