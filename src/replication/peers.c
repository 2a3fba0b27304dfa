/*-------------------------------------------------------------------------
 *
 * peers.c
 *	  The members of a replicated site, and how far they are.
 *
 * A member tells of itself by a message of the log, whose snapshot is the position that it
 * has applied, and flushed. It does so when it has taken part in something since, once a
 * second, or more often if flow control needs it; until the message has come back it is sent
 * again. So all know how much of the log is still needed, how far the slowest one is
 * behind, and, since such a message carries its member's history, that nobody has
 * diverged. Who is not heard any more keeps nobody waiting; but the log is kept for him until
 * somebody says that he has left.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/compat.h"
#include "base/flush.h"
#include "replication/member.h"
#include "replication/peers.h"
#include "replication/positions.h"

#define TELL_EVERY_MS		1000

/* Who has not been heard for so long is not waited for. */
#define SILENT_AFTER_MS		10000

/* So long waits, at most, who is slowed down. */
#define LONGEST_WAIT_MS		100

static int	flow_control;		/* positions; 0: off */

void
mip_peers_init(void)
{
	DefineCustomIntVariable("mip.flow_control",
							"So many positions of the log may a replica be behind before others are slowed down.",
							"Behind by twice as many, they are refused. 0: never.",
							&flow_control, 50000, 0, INT_MAX / 2, PGC_SIGHUP, 0,
							NULL, NULL, NULL);
}

/* ---- telling ---- */

/* Behind it, in what it knows of the log, there is nothing but what members tell of themselves. */
static bool
has_to_tell(void)
{
	return mip_member->worth_telling > mip_member->told &&
		mip_member->applied >= mip_member->worth_telling;
}

/* Else others would take this member for behind. */
static bool
is_urgent(void)
{
	return flow_control > 0 && mip_member->applied > mip_member->told_last + flow_control / 4;
}

static bool
next_message(MipMessage *message, char *leaving)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		found;

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	strlcpy(leaving, mip_member->leaving, NAMEDATALEN);
	found = (leaving[0] != '\0' || has_to_tell()) &&
		(TimestampDifferenceExceeds(mip_member->told_at, now, TELL_EVERY_MS) || is_urgent());
	if (found)
	{
		message->kind = leaving[0] != '\0' ? MIP_MESSAGE_LEAVES : MIP_MESSAGE_MEMBER;
		mip_member_stamp(message);
		message->first = message->snapshot;
		mip_member->told_at = now;
		mip_member->told_last = mip_member->applied;
	}
	LWLockRelease(mip_member->lock);
	return found;
}

bytea *
mip_peers_tell(MipMessageId *id)
{
	MipMessage	message = {.member = pstrdup(mip_member_name())};
	char		leaving[NAMEDATALEN];

	if (!next_message(&message, leaving))
		return NULL;
	/* what has been applied by then has its commit record before that */
	(void) mip_flush_wal();
	message.body = (const uint8 *) leaving;
	message.length = strlen(leaving);
	*id = message.id;
	return mip_message_encode(&message);
}

void
mip_peers_leave(const char *member)
{
	bool		busy;

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	busy = mip_member->leaving[0] != '\0';
	if (!busy)
		strlcpy(mip_member->leaving, member, NAMEDATALEN);
	LWLockRelease(mip_member->lock);
	if (busy)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another member's leave has not been told yet"),
				 errhint("Is the agent at work? Try again.")));
	ConditionVariableBroadcast(&mip_member->arrived);
}

/* ---- hearing ---- */

bool
mip_is_news(const MipMessage *message)
{
	return message->kind == MIP_MESSAGE_MEMBER || message->kind == MIP_MESSAGE_LEAVES;
}

MipNews
mip_peers_receive(const MipMessage *message)
{
	bool		leaves = message->kind == MIP_MESSAGE_LEAVES;
	MipNews		news = {.applied = leaves ? 0 : message->snapshot};

	strlcpy(news.member, leaves ? pnstrdup((const char *) message->body, message->length) : message->member,
			NAMEDATALEN);
	mip_members_write(news.member, news.applied);
	return news;
}

static MipPeer *
find(const char *name)
{
	MipPeer    *free = NULL;

	for (int i = 0; i < MIP_PEERS_MAX; i++)
	{
		MipPeer    *peer = &mip_member->peers[i];

		if (strcmp(peer->name, name) == 0)
			return peer;
		if (peer->name[0] == '\0' && free == NULL)
			free = peer;
	}
	return free;
}

void
mip_peers_received(const MipNews *news)
{
	MipPeer    *peer;

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	peer = find(news->member);
	if (peer && news->applied > 0)
	{
		strlcpy(peer->name, news->member, NAMEDATALEN);
		peer->applied = news->applied;
		peer->heard = GetCurrentTimestamp();
	}
	else if (peer)
		memset(peer, 0, sizeof(MipPeer));
	if (news->applied == 0 && strcmp(mip_member->leaving, news->member) == 0)
		mip_member->leaving[0] = '\0';
	if (strcmp(news->member, mip_member_name()) == 0)
		mip_member->told = Max(mip_member->told, news->applied);
	LWLockRelease(mip_member->lock);
}

/* ---- what follows from it ---- */

/*
 * One window for the certifiers of those that are there, and one for who joins: his copy
 * has been begun when this replica was not as far as it is now.
 */
uint64
mip_peers_trim(void)
{
	MipLogSettings settings;
	uint64		slowest = mip_members_slowest();

	if (!mip_log_settings(&settings) || slowest < 2 * settings.window)
		return 0;
	return slowest - 2 * settings.window;
}

/* By how many positions is the slowest one behind that can be heard? */
static uint64
lag(void)
{
	TimestampTz now = GetCurrentTimestamp();
	uint64		result = 0;

	LWLockAcquire(mip_member->lock, LW_SHARED);
	for (int i = 0; i < MIP_PEERS_MAX; i++)
	{
		const MipPeer *peer = &mip_member->peers[i];

		if (peer->name[0] != '\0' && strcmp(peer->name, mip_member_name()) != 0 &&
			mip_member->applied > peer->applied &&
			!TimestampDifferenceExceeds(peer->heard, now, SILENT_AFTER_MS))
			result = Max(result, mip_member->applied - peer->applied);
	}
	LWLockRelease(mip_member->lock);
	return result;
}

static void
count(MipReplicationCounter what)
{
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_member->counters[what]++;
	LWLockRelease(mip_member->lock);
}

void
mip_peers_slow_down(void)
{
	uint64		behind = flow_control > 0 ? lag() : 0;
	bool		stops = behind >= 2 * (uint64) flow_control;

	if (behind <= flow_control)
		return;
	count(stops ? MIP_REPLICATION_STOPPED : MIP_REPLICATION_SLOWED);
	if (stops)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("a replica is " UINT64_FORMAT " positions of the log behind", behind),
				 errdetail("No more than twice mip.flow_control (%d) are allowed.", flow_control),
				 errhint("Try again later; mip.members says which one it is.")));
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 1 + (behind - flow_control) * LONGEST_WAIT_MS / flow_control, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}
