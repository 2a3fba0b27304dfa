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

#include "eviction.h"
#include "miscadmin.h"
#include "registry.h"
#include "stats.h"

/*
 * What mip_evict_doomed grants, in milliseconds: to clients that are between
 * two statements, to learn from the next one that they have lost (others wait
 * for their row locks meanwhile, so not for long); to running
 * statements, to be cancelled; and how long it waits for all to be gone.
 */
#define IDLE_PATIENCE_MS	10
#define CANCEL_PATIENCE_MS	200
#define EVICT_PATIENCE_MS	1000

/* Dooms the active instances whose being `xinst` equals `that`. */
static void
doom(const char *xid, int64 xinst, bool that)
{
	MipFamily  *family;
	int			n = 0;

	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	for (int slot = family ? family->first : -1; slot >= 0;
		 slot = mip_registry->slots[slot].next)
	{
		MipInstance *inst = &mip_registry->slots[slot];

		if (MipInstanceIsPrepared(inst) || (inst->xinst == xinst) != that)
			continue;
		if (!inst->doomed)
			n++;
		inst->doomed = true;
	}
	LWLockRelease(mip_registry->lock);
	mip_count_many(MIP_COUNT_DOOMED, n);
}

void
mip_doom_others(const char *xid, int64 winner)
{
	doom(xid, winner, false);
}

void
mip_doom_one(const char *xid, int64 loser)
{
	doom(xid, loser, true);
}

/*
 * Signals the doomed instances of a family once; returns how many there are.
 * A statement that runs is cancelled, unless that is known not to help: it
 * does not reach one that waits for its client (COPY, a result nobody reads).
 * Such a session is ended, and so is one whose transaction stays idle; else
 * its locks would stay for as long as its client hangs.
 */
static int
signal_doomed(const char *xid, int waited)
{
	MipFamily  *family;
	int			n = 0;

	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	for (int slot = family ? family->first : -1; slot >= 0;
		 slot = mip_registry->slots[slot].next)
	{
		MipInstance *inst = &mip_registry->slots[slot];

		if (MipInstanceIsPrepared(inst) || !inst->doomed || inst->at_lock)
			continue;
		n++;
		if (waited >= (inst->running ? CANCEL_PATIENCE_MS : IDLE_PATIENCE_MS))
			(void) kill(inst->pid, SIGTERM);
		else if (inst->running)
			(void) kill(inst->pid, SIGINT);
	}
	LWLockRelease(mip_registry->lock);
	return n;
}

void
mip_evict_doomed(const char *xid)
{
	int			waited = 0;

	for (int nap = 1;
		 signal_doomed(xid, waited) > 0 && waited < EVICT_PATIENCE_MS;
		 nap *= 2)
	{
		pg_usleep(nap * 1000L);
		waited += nap;
	}
}

/*
 * A cancel sent by the winner must not hit what this session does next. Who
 * sends one holds the registry lock and sees that we are running, so after
 * having had the lock ourselves none will come; one already sent is delivered,
 * at the latest, when a system call returns.
 */
void
mip_swallow_cancel(void)
{
	LWLockAcquire(mip_registry->lock, LW_SHARED);
	LWLockRelease(mip_registry->lock);
	(void) getppid();
	QueryCancelPending = false;
}
