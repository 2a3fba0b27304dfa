/*-------------------------------------------------------------------------
 *
 * skip.c
 *	  Definitions that fail at this replica, and are left out.
 *
 * What is in the log does not go again: a definition that can be executed nowhere would keep all
 * replicas at its position for ever. Whoever answers for them leaves it out at each. It is certified
 * nevertheless, as who was in its way has been told; that it was not executed is in the history: a
 * replica that has executed it, and those that have not, do not go on together (MP030).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"

#include "replication/member.h"
#include "replication/positions.h"
#include "replication/skip.h"

uint32
mip_definition_failed(void)
{
	uint32		failures;

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	if (mip_member->failed != mip_member->defining)
		mip_member->failures = 0;
	mip_member->failed = mip_member->defining;
	failures = ++mip_member->failures;
	LWLockRelease(mip_member->lock);
	return failures;
}

/* Whatever has ended it, as a FATAL, or the end of its transaction */
void
mip_definition_undone(void)
{
	Assert(LWLockHeldByMeInMode(mip_member->lock, LW_EXCLUSIVE));
	if (mip_member->applied < mip_member->defining)
		mip_member->failed = mip_member->defining;
}

static bool
has_failed(uint64 position)
{
	return position != 0 && mip_member->applied < position && mip_member->failed == position;
}

/* Since a crash forgets what has failed. If it is no definition nothing comes of it. */
static bool
is_next(uint64 position)
{
	return mip_member->applier == 0 && position == mip_member->applied + 1 && !RecoveryInProgress();
}

void
mip_definition_skip(uint64 position)
{
	bool		failed;
	bool		next;

	mip_positions_load();
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	failed = has_failed(position);
	next = is_next(position);
	if (failed || next)
		mip_member->skipped = position;
	LWLockRelease(mip_member->lock);
	if (next && !failed)
		ereport(WARNING,
				(errmsg("a definition that comes at position %llu is left out at this replica", (unsigned long long) position),
				 errdetail("None is known to have failed there since the server has started.")));
	if (!failed && !next)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no definition has failed at position %llu", (unsigned long long) position),
				 errdetail("Only one that this replica cannot execute can be left out."),
				 errhint("The log of its agent says which position it waits at. If that crashes the server, stop the agent first.")));
}

/* Whoever comes too late is told so. */
void
mip_definition_executed(uint64 position)
{
	bool		skipped;

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	skipped = mip_member->skipped == position;
	if (!skipped)
		mip_member->failed = 0;
	LWLockRelease(mip_member->lock);
	if (skipped)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the definition at position %llu is to be left out", (unsigned long long) position),
				 errdetail("Somebody has called mip.replica_skip() while it was executed.")));
}

bool
mip_definition_is_skipped(uint64 position)
{
	bool		result;

	LWLockAcquire(mip_member->lock, LW_SHARED);
	result = mip_member->skipped == position;
	LWLockRelease(mip_member->lock);
	return result;
}
