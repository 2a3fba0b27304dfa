/*-------------------------------------------------------------------------
 *
 * durable.c
 *	  What is told must not be lost: neither in a crash nor with this server.
 *
 * Commits that are not flushed yet (unflushed.c) are visible already. With
 * synchronous replication PostgreSQL lets nobody see what its standby does not
 * have yet: a transaction waits for that before it counts as over, and an
 * instance that is being prepared holds the family lock until then. But what a
 * crash interrupts in that wait, everybody sees after the restart, and so they
 * do where somebody cancels the wait. A decision, or the answer of a request,
 * must not be based on it: should this server be lost now, its successor knows
 * nothing of it.
 *
 * mip.prepare and mip.commit_one_phase need nothing of this: their own flush and
 * wait are for WAL behind all that they have read. mip.commit does not either:
 * a commit that is lost leaves the winner prepared.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/flush.h"
#include "mipt/durable.h"

/* WAL of commits that are visible may not be flushed up to here. */
static pg_atomic_uint64 *unflushed;

void
mip_durable_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(pg_atomic_uint64));
}

void
mip_durable_shmem_startup(void)
{
	bool		found;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	unflushed = ShmemInitStruct("pg_mip unflushed", sizeof(pg_atomic_uint64), &found);
	if (!found)
		pg_atomic_init_u64(unflushed, 0);
}

static bool
standbys_are_wanted(void)
{
	return SyncRepRequested() && SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';
}

static bool
standbys_have(XLogRecPtr lsn)
{
	bool		have;

	LWLockAcquire(SyncRepLock, LW_SHARED);
	have = lsn <= WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH];
	LWLockRelease(SyncRepLock);
	return have;
}

void
mip_note_unflushed(XLogRecPtr lsn)
{
	uint64		last = pg_atomic_read_u64(unflushed);

	Assert(CritSectionCount > 0);	/* before clog tells of it:
									 * [told-is-durable] */
	while (last < lsn &&
		   !pg_atomic_compare_exchange_u64(unflushed, &last, lsn))
		;
}

void
mip_wait_until_durable(void)
{
	XLogRecPtr	mine;

	Assert(INTERRUPTS_CAN_BE_PROCESSED());
	if (RecoveryInProgress())
		return;
	XLogFlush(pg_atomic_read_u64(unflushed));
	if (!standbys_are_wanted() || standbys_have(GetFlushRecPtr(NULL)))
		return;
	CHECK_FOR_INTERRUPTS();
	mine = mip_flush_wal();		/* waiters want a place that is theirs */
	HOLD_INTERRUPTS();
	SyncRepWaitForLSN(mine, true);
	RESUME_INTERRUPTS();

	/*
	 * An interrupt ends the wait with a mere warning, and if it was to cancel
	 * the query it counts as dealt with.
	 */
	if (InterruptPending && !standbys_have(mine))
	{
		CHECK_FOR_INTERRUPTS();
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("canceling statement while it waits for synchronous replication"),
				 errdetail("What it would have returned might be lost with this server.")));
	}
}

void
mip_make_durable(void)
{
	(void) mip_flush_wal();
	mip_wait_until_durable();
}
