/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  Standing in line for a row version, as heap's code does.
 *
 * Who wants a version that somebody else is using takes heap's tuple lock and
 * holds it until that one is through; all others wait for the tuple lock, in
 * order of arrival. A sibling must not stand in that line: an outsider before
 * it may come to wait for another sibling, and then so would it, through the
 * outsider.
 *
 * A sibling can begin while we stand in line. Nobody wakes us then, so we look
 * up from time to time. PostgreSQL's lock manager lets go of a waiter only by
 * an error: we make it believe that the statement is being cancelled, and
 * catch that. Nothing but the lock manager runs in between, and it has cleaned
 * up behind itself before it throws (LockErrorCleanup).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "family/current.h"
#include "tableam/queue.h"

static TimeoutId look_up_timeout = MAX_TIMEOUTS;
static volatile sig_atomic_t leaving;

/* A signal handler: reads a counter in shared memory, sets flags. */
static void
look_up(void)
{
	/* once: what comes after the wait would be cancelled */
	if (!leaving && mip_in_transaction() && mip_have_siblings())
	{
		leaving = true;
		InterruptPending = true;
		QueryCancelPending = true;
	}
}

/* Did the cancel that has just been reported come from look_up? */
static bool
is_leaving(bool statement_timeout)
{
	/* a statement that has run out of time is over, whoever cancelled it */
	return leaving && geterrcode() == ERRCODE_QUERY_CANCELED &&
		statement_timeout == get_timeout_active(STATEMENT_TIMEOUT);
}

static bool
holds_lock(Relation rel, ItemPointer tid, LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_TUPLE(tag, rel->rd_lockInfo.lockRelId.dbId,
					  rel->rd_lockInfo.lockRelId.relId,
					  ItemPointerGetBlockNumber(tid),
					  ItemPointerGetOffsetNumber(tid));
	return mip_lock_held_by_me(&tag, mode);
}

bool
mip_queue(Relation rel, ItemPointer tid, LOCKMODE mode)
{
	MemoryContext context = CurrentMemoryContext;
	bool		statement_timeout = get_timeout_active(STATEMENT_TIMEOUT);
	int			interval = Max(DeadlockTimeout / 2, 1);
	volatile bool queued = false;

	Assert(mip_in_transaction());
	if (mip_have_siblings())
		return false;			/* [siblings-never-wait] */
	if (mip_conditional_lock_tuple(rel, tid, mode))
		return true;
	if (look_up_timeout == MAX_TIMEOUTS)
		look_up_timeout = RegisterTimeout(USER_TIMEOUT, look_up);
	leaving = false;
	enable_timeout_every(look_up_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), interval),
						 interval);
	PG_TRY();
	{
		LockTuple(rel, tid, mode);
		queued = true;
	}
	PG_CATCH();
	{
		disable_timeout(look_up_timeout, false);
		if (!is_leaving(statement_timeout))
		{
			/* another error was faster: not to hit who catches that */
			if (leaving)
				QueryCancelPending = false;
			PG_RE_THROW();
		}
		MemoryContextSwitchTo(context);
		FlushErrorState();
		/* it may have been granted in that moment */
		queued = holds_lock(rel, tid, mode);
	}
	PG_END_TRY();
	disable_timeout(look_up_timeout, false);
	/* came with the lock: not to hit what follows */
	if (queued && leaving)
		QueryCancelPending = false;
	return queued;
}
