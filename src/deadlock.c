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
 * of the siblings for longer than deadlock_timeout is cancelled, and reports
 * 40P01 (guard.c). One victim at a time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "deadlock.h"
#include "family.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

static bool
same_lock(const LockInstanceData *a, const LockInstanceData *b)
{
	return memcmp(&a->locktag, &b->locktag, sizeof(LOCKTAG)) == 0;
}

static bool
conflict(LOCKMASK held, LOCKMODE wanted)
{
	for (LOCKMODE mode = 1; mode <= MaxLockMode; mode++)
	{
		if ((held & LOCKBIT_ON(mode)) && DoLockModesConflict(mode, wanted))
			return true;
	}
	return false;
}

/* Is this entry of the lock table one of the waiter's siblings? */
static bool
is_sibling(const LockData *locks, const LockInstanceData *entry,
		   const MipWaiter *waiter)
{
	if (entry->pid != 0)
		return list_member_int(waiter->active, entry->pid);

	/* a prepared transaction is known by the lock on its own id */
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *other = &locks->locks[i];

		if (other->pid == 0 && mip_same_vxid(other, entry) &&
			other->locktag.locktag_type == LOCKTAG_TRANSACTION &&
			list_member_xid(waiter->prepared, other->locktag.locktag_field1))
			return true;
	}
	return false;
}

/*
 * Looks at what `wait` waits for. True if one of the siblings holds it; adds
 * the backends that hold it, or wait for it as well, to `pids`.
 */
static bool
waits_for_sibling(const LockData *locks, const LockInstanceData *wait,
				  const MipWaiter *waiter, List **pids)
{
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *entry = &locks->locks[i];

		if (entry == wait || !same_lock(entry, wait))
			continue;
		/* siblings hold these among themselves, and never for long */
		if (entry->locktag.locktag_type == LOCKTAG_USERLOCK)
			continue;
		if (conflict(entry->holdMask, wait->waitLockMode) &&
			is_sibling(locks, entry, waiter))
			return true;
		if (entry->pid != 0)
			*pids = list_append_unique_int(*pids, entry->pid);
	}
	return false;
}

static bool
waits_too_long(const LockInstanceData *wait)
{
	return wait->waitStart != 0 &&
		TimestampDifferenceExceeds(wait->waitStart, GetCurrentTimestamp(),
								   DeadlockTimeout);
}

/* The backend that has to give way so that `waiter` can go on, or 0. */
static int
find_victim(const LockData *locks, const MipWaiter *waiter)
{
	List	   *pids = list_make1_int(waiter->pid);

	for (int i = 0; i < list_length(pids); i++)
	{
		int			pid = list_nth_int(pids, i);

		for (int j = 0; j < locks->nelements; j++)
		{
			const LockInstanceData *wait = &locks->locks[j];

			if (wait->pid == pid && wait->waitLockMode != NoLock &&
				waits_for_sibling(locks, wait, waiter, &pids) &&
				pid != waiter->pid && !list_member_int(waiter->active, pid) &&
				waits_too_long(wait))
				return pid;
		}
	}
	return 0;
}

static void
break_deadlocks(void)
{
	List	   *waiters = mip_waiters();
	LockData   *locks;
	ListCell   *lc;

	if (waiters == NIL || mip_deadlock_victim_pending(2 * DeadlockTimeout))
		return;
	locks = GetLockStatusData();
	foreach(lc, waiters)
	{
		int			victim = find_victim(locks, lfirst(lc));

		if (victim != 0)
		{
			ereport(LOG,
					(errmsg("deadlock through an instance"),
					 errdetail("Process %d waits for it; its retry in process %d waits for process %d.",
							   victim, ((MipWaiter *) lfirst(lc))->pid, victim)));
			mip_set_deadlock_victim(victim);
			(void) kill(victim, SIGINT);
			break;
		}
	}
}

void
mip_deadlock_main(Datum arg)
{
	MemoryContext context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	context = AllocSetContextCreate(TopMemoryContext, "pg_mip deadlocks",
									ALLOCSET_DEFAULT_SIZES);
	while (!ShutdownRequestPending)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 DeadlockTimeout, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		MemoryContextSwitchTo(context);
		break_deadlocks();
		MemoryContextReset(context);
	}
	proc_exit(0);
}

void
mip_deadlock_init(void)
{
	BackgroundWorker worker = {0};

	snprintf(worker.bgw_name, BGW_MAXLEN, "pg_mip deadlock detector");
	snprintf(worker.bgw_type, BGW_MAXLEN, "pg_mip deadlock detector");
	snprintf(worker.bgw_library_name, sizeof(worker.bgw_library_name), "pg_mip");
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name), "mip_deadlock_main");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 5;
	RegisterBackgroundWorker(&worker);
}
