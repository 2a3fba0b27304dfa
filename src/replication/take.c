/*-------------------------------------------------------------------------
 *
 * take.c
 *	  Messages of transactions at their COMMIT, for who takes them to the log.
 *
 * Each session that takes some has a number. What another one has taken, and nobody has
 * received since, is given out again: that session may have ended in between, and the log knows
 * by its id what it has already.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/compat.h"
#include "base/stop.h"
#include "replication/member.h"
#include "replication/peers.h"
#include "replication/take.h"

static uint64 me;				/* this session as a taker, or 0 */

static void
become_taker(void)
{
	if (me != 0)
		return;
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	me = ++mip_member->takers;
	LWLockRelease(mip_member->lock);
}

static bool
is_to_be_taken(const MipCommit *commit)
{
	return commit->state == MIP_COMMIT_QUEUED ||
		(commit->state == MIP_COMMIT_TAKEN && commit->taker != me);
}

/* The one that came first, or NULL */
static MipCommit *
find_first(void)
{
	MipCommit  *first = NULL;

	for (int i = 0; i < mip_member->ncommits; i++)
	{
		MipCommit  *commit = &mip_member->commits[i];

		if (is_to_be_taken(commit) && (first == NULL || mip_message_order(&commit->id) < mip_message_order(&first->id)))
			first = commit;
	}
	return first;
}

/* What another taker has had may be in a log that has taken it. */
static void
refuse_long(Size max_message)
{
	for (int i = 0; i < mip_member->ncommits; i++)
	{
		MipCommit  *commit = &mip_member->commits[i];

		if (is_to_be_taken(commit) && commit->length > max_message)
			mip_commit_set(commit, commit->state == MIP_COMMIT_QUEUED ? MIP_COMMIT_TOO_LONG : MIP_COMMIT_IN_THE_WAY);
	}
}

/* NULL: there is none, or it has no room in so many bytes. */
static bytea *
take_first(Size room, Size max_message, MipMessageId *id)
{
	MipCommit  *commit;
	bytea	   *message;

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	refuse_long(max_message);
	commit = find_first();
	if (commit == NULL || commit->length > room)
	{
		LWLockRelease(mip_member->lock);
		return NULL;
	}
	message = palloc(VARHDRSZ + commit->length);
	SET_VARSIZE(message, VARHDRSZ + commit->length);
	memcpy(VARDATA(message), dsa_get_address(mip_member_memory(), commit->message), commit->length);
	*id = commit->id;
	commit->taker = me;
	commit->state = MIP_COMMIT_TAKEN;
	LWLockRelease(mip_member->lock);
	return message;
}

typedef void (*Put) (const MipMessageId *id, bytea *message, void *arg);

static bool
take_all(int64 max_bytes, Size max_message, Put put, void *arg)
{
	MipMessageId id;
	bytea	   *message = mip_peers_tell(&id);
	bool		found = message != NULL;

	if (message == NULL)
		message = take_first(MIP_MESSAGE_MAX, max_message, &id);
	while (message != NULL)
	{
		max_bytes -= VARSIZE(message);
		put(&id, message, arg);
		pfree(message);
		found = true;
		message = take_first(Max(max_bytes, 0), max_message, &id);
	}
	return found;
}

/* What has been taken may not have got to the client: another taker is to get it again. */
static void
xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT)
		me = 0;
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		me = 0;
}

void
mip_take_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}

void
mip_take(int64 max_bytes, int timeout_ms, int64 max_message, Put put, void *arg)
{
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);

	become_taker();
	(void) mip_member_memory();
	ConditionVariablePrepareToSleep(&mip_member->arrived);
	while (!take_all(max_bytes, Max(max_message, 0), put, arg))
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);

		if (left <= 0 || ConditionVariableTimedSleep(&mip_member->arrived, left, PG_WAIT_EXTENSION))
			break;
	}
	ConditionVariableCancelSleep();
	mip_stop_point("taken");
}
