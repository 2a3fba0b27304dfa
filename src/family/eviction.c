/*-------------------------------------------------------------------------
 *
 * eviction.c
 *	  Losers: dooming them, and ending what they are doing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/wait_event.h"

#include "base/stats.h"
#include "family/eviction.h"
#include "family/family.h"
#include "family/family_internal.h"
#include "family/family_lock.h"

/*
 * What mip_evict_doomed grants, in milliseconds: to clients that are between
 * two statements, to learn from the next one that they have lost (others wait
 * for their row locks meanwhile, so not for long); to running statements that
 * a cancel does not seem to end; and to all, after which it goes on.
 */
#define IDLE_PATIENCE_MS	10
#define CANCEL_PATIENCE_MS	200
#define EVICT_PATIENCE_MS	2000
#define LONGEST_NAP_MS		50

typedef enum Whom
{
	THIS_ONE,
	ALL_OTHERS
} Whom;

/* Which of the active instances: the one with this XINST, or all but that one? */
static void
doom(const char *xid, Whom whom, int64 xinst, MipDoom why)
{
	MipFamily  *family;
	int			n = 0;

	Assert(mip_family_locked(xid, ExclusiveLock));
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	mip_foreach_instance(inst, family)
	{
		if (MipInstanceIsPrepared(inst) || (inst->xinst == xinst) != (whom == THIS_ONE))
			continue;
		if (!inst->doomed)
			n++;
		inst->doomed = why;
	}
	LWLockRelease(mip_registry->lock);
	mip_count_many(MIP_COUNT_DOOMED, n);
}

void
mip_doom_others(const char *xid, int64 winner)
{
	doom(xid, ALL_OTHERS, winner, MIP_DOOMED_FOR_SIBLING);
}

void
mip_doom_one(const char *xid, int64 loser)
{
	doom(xid, THIS_ONE, loser, MIP_DOOMED_GIVEN_UP);
}

bool
mip_others_are_doomed(const char *xid, int64 winner)
{
	MipFamily  *family;
	bool		doomed = true;

	Assert(mip_family_locked(xid, ExclusiveLock));
	LWLockAcquire(mip_registry->lock, LW_SHARED);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	mip_foreach_instance(inst, family)
	{
		doomed &= MipInstanceIsPrepared(inst) || inst->doomed || inst->xinst == winner;
	}
	LWLockRelease(mip_registry->lock);
	return doomed;
}

/* A cancel does not reach who sends or reads in the middle of a statement. */
static bool
waits_for_client(const MipInstance *inst)
{
	PGPROC	   *proc = BackendPidGetProc(inst->pid);

	return proc != NULL && (proc->wait_event_info & 0xFF000000) == PG_WAIT_CLIENT;
}

/*
 * Ends a cancel the statement? Not one of a function that catches the error,
 * and goes on. On a busy machine it may take its time, and so would the end
 * of the session: the last resort, since functions can catch cancels, too.
 */
static bool
resists_cancel(const MipInstance *inst, int waited)
{
	if (waited < CANCEL_PATIENCE_MS)
		return false;
	return waits_for_client(inst) || inst->told > 1 || waited >= EVICT_PATIENCE_MS;
}

/*
 * Signals the doomed instances of a family once; returns how many there are. The
 * registry lock keeps them: whoever ends takes it before his process goes on to
 * something else, or is gone. A statement that runs is cancelled; if that does not help, the session is
 * ended, and so is one whose transaction stays idle: else its locks would stay
 * for as long as its client hangs.
 */
static int
signal_doomed(const char *xid, int waited)
{
	MipFamily  *family;
	int			n = 0;

	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	mip_foreach_instance(inst, family)
	{
		if (MipInstanceIsPrepared(inst) || !inst->doomed || inst->at_lock)
			continue;
		n++;
		if (inst->running && !resists_cancel(inst, waited))
			(void) kill(inst->pid, SIGINT);
		else if (inst->running || waited >= IDLE_PATIENCE_MS)
			(void) kill(inst->pid, SIGTERM);
	}
	LWLockRelease(mip_registry->lock);
	return n;
}

void
mip_evict_doomed(const char *xid)
{
	int			waited = 0;

	Assert(mip_family_locked(xid, ExclusiveLock));
	for (int nap = 1;
		 signal_doomed(xid, waited) > 0 && waited < EVICT_PATIENCE_MS;
		 nap = Min(nap * 2, LONGEST_NAP_MS))
	{
		pg_usleep(nap * 1000L);
		waited += nap;
	}
}

/*
 * A cancel sent by the winner must not hit what this session does next
 * [cancel-stays-inside]. Who sends one holds the registry lock exclusively and
 * sees that we are running, so after having had the lock ourselves none will
 * come; one already sent is delivered, at the latest, when a system call returns.
 */
void
mip_swallow_cancel(void)
{
	Assert(!LWLockHeldByMe(mip_registry->lock));
	LWLockAcquire(mip_registry->lock, LW_SHARED);
	LWLockRelease(mip_registry->lock);
	(void) getppid();
	QueryCancelPending = false;
}
