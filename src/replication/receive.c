/*-------------------------------------------------------------------------
 *
 * receive.c
 *	  The log as it comes in: certifying and applying.
 *
 * One session does it, the applier, position by position, each in a transaction of its
 * own; there the position is written, also that of what is refused. So a crash leaves a
 * last position, and it goes on behind that one. The certifier is this session's
 * memory: what it remembers is read from the log again when a session begins, with the
 * verdicts as they have been written.
 *
 * What this server has published itself its own session commits, if it still waits;
 * nothing behind it is applied before. Else it is applied as anybody's.
 *
 * What has come from other replicas has happened there: no triggers fire, and foreign
 * keys are not checked (writeset/README). If it does not fit, this replica is not what
 * the others are, and stops.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "base/mip.h"
#include "base/sqlstate.h"
#include "base/stop.h"
#include "mipt/catalog.h"
#include "replication/certifier.h"
#include "replication/definition.h"
#include "replication/member.h"
#include "replication/peers.h"
#include "replication/positions.h"
#include "replication/receive.h"
#include "replication/request.h"
#include "replication/skip.h"
#include "replication/verdicts.h"
#include "replication/way.h"
#include "writeset/apply.h"
#include "writeset/input.h"
#include "writeset/readable.h"

/* Rows of mip.applied that nobody needs any more are removed so many at a time. */
#define PRUNE_EVERY		1000

/* At a standby it is looked so often whether a position has come, in ms. */
#define LOOK_AGAIN		100

/* Of the session that is the applier */
static struct
{
	bool		is;
	uint64		next;			/* the position to come */
	uint64		pruned;			/* up to here mip.applied is */
	MipPosition last;			/* next - 1; 0: not known, as nothing is
								 * before what is read again */
	MemoryContext context;
	MipCertifier *certifier;	/* NULL: the log's settings are to come */
	bool		received;		/* in this transaction */
	MipPosition position;		/* to be told when it has committed; or 0 */
	MipNews		news;			/* of a member, likewise; or nobody's */
	bool		applying;
	bool		waited_for;
	MipMessageId waits;			/* its message, likewise */
	MipReplicationCounter what;
	MipRefusal	refusal;		/* if that is REFUSED, likewise */
	Oid			refused_table;
}			me;

/* ---- becoming the applier ---- */

static void
give_up(void)
{
	if (!me.is)
		return;
	mip_applying_end();
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_member->applier = 0;
	LWLockRelease(mip_member->lock);
	if (me.context)
		MemoryContextDelete(me.context);
	memset(&me, 0, sizeof(me));
}

static void
at_exit(int code, Datum arg)
{
	give_up();
}

static void
become_applier(void)
{
	static bool registered = false;
	int			other;

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	other = mip_member->applier;
	if (other == 0)
		mip_member->applier = MyProcPid;
	LWLockRelease(mip_member->lock);
	if (other != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another session applies the log: that of process %d", other)));
	me.is = true;
	if (!registered)
		before_shmem_exit(at_exit, (Datum) 0);
	registered = true;
}

static void
set(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_SESSION);
}

/* It waits for as long as it takes, and who waits for it gives way. */
static void
set_session(void)
{
	set("statement_timeout", "0");
	set("lock_timeout", "0");
	set("idle_in_transaction_session_timeout", "0");
	set("idle_session_timeout", "0");
#if PG_VERSION_NUM >= 170000
	set("transaction_timeout", "0");
#endif
	set("deadlock_timeout", "2147483647");
	set("default_transaction_isolation", "read committed");
	set("default_transaction_read_only", "off");
	set("client_connection_check_interval", "1000");
	mip_set_as_applied(set);
}

static void
create_certifier(const MipLogSettings *settings, uint64 behind)
{
	MemoryContext caller = MemoryContextSwitchTo(me.context);

	me.certifier = mip_certifier_create(settings, behind);
	MemoryContextSwitchTo(caller);
}

/* What they have changed no other replica gets when they are committed. */
void
mip_receive_check_prepared(void)
{
	bool		prepared;

	SPI_connect();
	if (SPI_execute("SELECT FROM pg_catalog.pg_prepared_xacts "
					"WHERE database OPERATOR(pg_catalog.=) pg_catalog.current_database()", true, 1) != SPI_OK_SELECT)
		elog(ERROR, "prepared transactions cannot be read");
	prepared = SPI_processed > 0;
	SPI_finish();
	if (prepared)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there are prepared transactions in this database"),
				 errhint("Commit them, or roll them back, before it is replicated or copied: without mip.replicated_database.")));
}

MipStart
mip_receive_start(void)
{
	MipLogSettings settings;
	MipStart	start;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to apply the log of a replicated site")));
	mip_receive_check_prepared();
	mip_positions_load();
	give_up();
	become_applier();
	set_session();
	me.context = AllocSetContextCreate(TopMemoryContext, "pg_mip certifier", ALLOCSET_DEFAULT_SIZES);
	start.applied = mip_member_applied();
	start.read_after = 0;
	if (mip_log_settings(&settings))
	{
		if (start.applied > settings.window)
			start.read_after = start.applied - settings.window;
		create_certifier(&settings, start.read_after);
	}
	me.pruned = start.read_after;
	me.next = start.read_after + 1;
	return start;
}

static bool
is_here(uint64 position)
{
	return mip_member_applied() >= position;
}

/* ---- is it the log that has been followed? ---- */

pg_noreturn static void
mip_diverged(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_DIVERGED),
			 errmsg("this replica and its log have diverged at position %llu",
					(unsigned long long) me.next),
			 errdetail_internal("%s", detail),
			 errhint("Nothing of it has been applied. Find out which replicas agree, and let this one join anew.")));
}

/* What its member knew of the log is what is known of it here. */
static void
check_history(const MipMessage *message)
{
	MipPosition position;

	if (message->snapshot >= me.next)
		mip_diverged("Its member knew of what comes behind it.");
	if (message->snapshot == 0)
		return;
	if (!mip_position_find(message->snapshot, &position))
		return;					/* too old to be certified */
	if (position.history != message->history)
		mip_diverged(psprintf("Member \"%s\" has another history of the log up to position %llu.",
							  message->member, (unsigned long long) message->snapshot));
}

static MipPosition
written_position(void)
{
	MipPosition position;

	if (!mip_position_find(me.next, &position))
		mip_diverged("The position has not been written to mip.applied.");
	return position;
}

/* With this message, and what has become of it, behind that history */
static uint64
history_behind(uint64 before, const MipPosition *position, const bytea *bytes)
{
	uint8		what = position->certified + position->left_out;

	return mip_history_next(before, position->position, what,
							(const uint8 *) VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
}

static void
check_written(const MipPosition *position, const bytea *bytes)
{
	MipPosition before = {0};
	MipPosition left_out = *position;

	if (me.next > 1 && !mip_position_find(me.next - 1, &before))
		return;					/* it is the first one that is remembered */
	left_out.left_out = position->certified;
	if (history_behind(before.history, position, bytes) != position->history &&
		history_behind(before.history, &left_out, bytes) != position->history)
		mip_diverged("Another message had that position when it was applied.");
}

/* ---- the log's settings ---- */

static void
receive_settings(const MipMessage *message, bool again)
{
	MipLogSettings settings = mip_message_settings(message);

	if (me.next != 1)
		mip_diverged("A log begins once.");
	if (settings.system != GetSystemIdentifier())
		mip_diverged("The log is that of copies of another cluster.");
	if (again)
		return;
	mip_log_write_settings(&settings);
	create_certifier(&settings, 0);
}

/* ---- a transaction ---- */

static MipCommit *
find_own(const MipMessageId *id)
{
	for (int i = 0; i < mip_member->ncommits; i++)
	{
		MipCommit  *commit = &mip_member->commits[i];

		if (commit->state != MIP_COMMIT_NONE &&
			mip_same_id(&commit->id, id))
			return commit;
	}
	return NULL;
}

static MipCommitState
verdict_of(const MipPosition *position)
{
	if (position->left_out)
		return MIP_COMMIT_LEFT_OUT;
	return position->certified ? MIP_COMMIT_CERTIFIED : MIP_COMMIT_REFUSED;
}

/* Whoever waits for it is told, if he has not been; NULL if there is nobody. */
static MipCommit *
tell_own(const MipMessageId *id, const MipPosition *position)
{
	MipCommit  *own;

	(void) mip_member_memory();
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	own = find_own(id);
	if (own && own->state != MIP_COMMIT_CERTIFIED)
	{
		own->decided = *position;
		mip_commit_set(own, verdict_of(position));
	}
	LWLockRelease(mip_member->lock);
	return own;
}

static bool
still_commits(const MipCommit *own, const MipPosition *position)
{
	bool		result;

	LWLockAcquire(mip_member->lock, LW_SHARED);
	result = own->state == MIP_COMMIT_CERTIFIED && own->decided.position == position->position;
	LWLockRelease(mip_member->lock);
	return result;
}

/* Has its own session committed it? */
static bool
let_own_commit(const MipMessage *message, const MipPosition *position)
{
	MipCommit  *own = tell_own(&message->id, position);

	if (own == NULL)
		return is_here(position->position);
	ConditionVariablePrepareToSleep(&mip_member->advanced);
	while (still_commits(own, position))
		ConditionVariableSleep(&mip_member->advanced, PG_WAIT_EXTENSION);
	ConditionVariableCancelSleep();
	return is_here(position->position);
}

/* All tables are written to. */
static void
check_table(Relation rel)
{
}

/* All other errors say that the tables are not what they are elsewhere. */
static bool
may_be_applied_later(int sqlstate)
{
	return mip_may_pass(sqlstate) || ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_INTERNAL_ERROR ||
		sqlstate == ERRCODE_LOCK_NOT_AVAILABLE || sqlstate == ERRCODE_STATEMENT_TOO_COMPLEX ||
		sqlstate == ERRCODE_INSUFFICIENT_PRIVILEGE; /* roles are each
													 * cluster's */
}

static void
rethrow(MemoryContext context)
{
	ErrorData  *error;

	if (may_be_applied_later(geterrcode()))
		PG_RE_THROW();
	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	mip_diverged(psprintf("What is certified cannot be applied here: %s", error->message));
}

static void
apply(const MipwSet *set)
{
	MemoryContext context = CurrentMemoryContext;

	me.applying = true;
	mip_applying_begin(set);
	mip_clear_way(true);
	PG_TRY();
	{
		mip_stop_point("apply");
		(void) mip_apply(set, check_table, true);
		mip_clear_way(false);
	}
	PG_CATCH();
	{
		mip_clear_way(false);
		rethrow(context);
	}
	PG_END_TRY();
}

/* It may fail for a while, as for a role that is missing here. */
static void
define(const MipMessage *message)
{
	me.applying = true;
	mip_defining_begin(message, me.next);
	mip_clear_way(true);
	PG_TRY();
	{
		mip_stop_point("apply");
		mip_definition_execute(message);
	}
	PG_FINALLY();
	{
		mip_clear_way(false);
	}
	PG_END_TRY();
}

static const MipwSet *
open_writeset(const MipMessage *message)
{
	bytea	   *writeset = palloc(VARHDRSZ + message->writeset_length);

	SET_VARSIZE(writeset, VARHDRSZ + message->writeset_length);
	memcpy(VARDATA(writeset), message->writeset, message->writeset_length);
	return mip_writeset_open(writeset);
}

/* The position is written, and known to all once that has committed. */
static void
book(const MipPosition *position, MipReplicationCounter what)
{
	mip_position_write(position);
	me.position = *position;
	me.what = what;
}

static void
book_refused(const MipPosition *position, MipVerdict verdict)
{
	me.refusal = verdict.refusal;
	me.refused_table = mip_refused_table(verdict.relation);
	book(position, MIP_REPLICATION_REFUSED);
}

/* What a session would read again stays, with the position before. */
static void
prune(void)
{
	MipLogSettings settings;

	if (me.next < me.pruned + PRUNE_EVERY || !mip_log_settings(&settings) ||
		me.next < me.pruned + PRUNE_EVERY + settings.window)
		return;
	me.pruned = me.next - settings.window - 1;
	mip_positions_prune(me.pruned - 1);
}

static void
require_certifier(void)
{
	if (me.certifier == NULL)
		mip_diverged("The log does not begin with its settings.");
}

static const char *
receive_first(const MipMessage *message, MipPosition *position, const bytea *bytes)
{
	receive_settings(message, false);
	mip_certifier_add(me.certifier, message, NULL, position->certified);
	position->history = history_behind(me.last.history, position, bytes);
	book(position, MIP_REPLICATION_TOLD);
	return "settings";
}

static const char *
receive_news(const MipMessage *message, MipPosition *position, const bytea *bytes)
{
	require_certifier();
	mip_certifier_add(me.certifier, message, NULL, position->certified);
	me.news = mip_peers_receive(message);
	position->history = history_behind(me.last.history, position, bytes);
	book(position, MIP_REPLICATION_TOLD);
	return "told";
}

static const char *
receive_transaction(const MipMessage *message, MipPosition *position, const bytea *bytes)
{
	const MipwSet *set;
	MipVerdict	verdict;

	require_certifier();
	set = open_writeset(message);
	verdict = mip_certify(me.certifier, message, set);
	position->certified = verdict.refusal == MIP_REFUSED_NOT;
	position->history = history_behind(me.last.history, position, bytes);
	mip_certifier_add(me.certifier, message, set, position->certified);
	if (!position->certified)
	{
		(void) tell_own(&message->id, position);
		book_refused(position, verdict);
		return "refused";
	}
	if (message->kind == MIP_MESSAGE_REQUEST)
		mip_deciding_begin(message);
	if (let_own_commit(message, position))
		return "committed";
	apply(set);
	if (message->kind == MIP_MESSAGE_REQUEST)
		mip_request_apply(message);
	book(position, MIP_REPLICATION_APPLIED);
	return "applied";
}

/* Whoever waits for this position is told when it has been committed. */
static void
tell_when_done(const MipMessage *message)
{
	me.waited_for = true;
	me.waits = message->id;
}

static const char *
receive_fence(const MipMessage *message, MipPosition *position, const bytea *bytes)
{
	require_certifier();
	mip_deciding_begin(message);
	mip_request_apply(message);
	position->history = history_behind(me.last.history, position, bytes);
	mip_certifier_add(me.certifier, message, NULL, position->certified);
	tell_when_done(message);
	book(position, MIP_REPLICATION_TOLD);
	return "told";
}

/*
 * Whoever waits for it waits until it is done. For the others it is the same if it is left out: they have been told
 * that they are refused when it was tried, and are.
 */
static const char *
receive_definition(const MipMessage *message, MipPosition *position, const bytea *bytes)
{
	MipVerdict	verdict;

	require_certifier();
	verdict = mip_certify(me.certifier, message, NULL);
	position->certified = verdict.refusal == MIP_REFUSED_NOT;
	position->left_out = position->certified && mip_definition_is_skipped(me.next);
	if (position->left_out)
		verdict.refusal = MIP_REFUSED_SKIPPED;
	if (verdict.refusal == MIP_REFUSED_NOT)
	{
		define(message);
		mip_definition_executed(me.next);
	}
	position->history = history_behind(me.last.history, position, bytes);
	mip_certifier_add(me.certifier, message, NULL, position->certified);
	tell_when_done(message);
	if (verdict.refusal == MIP_REFUSED_NOT)
	{
		book(position, MIP_REPLICATION_APPLIED);
		return "applied";
	}
	book_refused(position, verdict);
	return position->left_out ? "left out" : "refused";
}

/* ---- a message ---- */

/* What this replica has applied before is read for the certifier. */
static const char *
receive_again(const MipMessage *message, const bytea *bytes)
{
	MipPosition position = written_position();

	check_written(&position, bytes);
	if (message->kind == MIP_MESSAGE_SETTINGS)
		receive_settings(message, true);
	mip_certifier_add(me.certifier, message, position.certified && message->writeset ? open_writeset(message) : NULL,
					  position.certified);
	me.last = position;
	return "loaded";
}

static bool
is_work(const MipMessage *message)
{
	return message->writeset || message->kind == MIP_MESSAGE_DEFINITION;
}

static const char *
receive_new(const MipMessage *message, const bytea *bytes)
{
	MipPosition position = {.position = me.next,.certified = true,.bytes = me.last.bytes};
	const char *result;

	if (is_work(message))
		position.bytes += VARSIZE_ANY_EXHDR(bytes);
	check_history(message);
	if (message->kind == MIP_MESSAGE_SETTINGS)
		result = receive_first(message, &position, bytes);
	else if (mip_is_news(message))
		result = receive_news(message, &position, bytes);
	else if (message->writeset)
		result = receive_transaction(message, &position, bytes);
	else if (message->kind == MIP_MESSAGE_FENCE)
		result = receive_fence(message, &position, bytes);
	else if (message->kind == MIP_MESSAGE_DEFINITION)
		result = receive_definition(message, &position, bytes);
	else
		mip_diverged("The message is of a kind that this version does not know.");
	me.last = position;
	return result;
}

static void
check_may_receive(uint64 position)
{
	if (!me.is)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session does not apply the log"),
				 errhint("Call mip.replica_start() first.")));
	if (me.received || IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("each message of the log is received in a transaction of its own")));
	if (position != me.next)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the log's next message is that of position %llu, not %llu",
						(unsigned long long) me.next, (unsigned long long) position)));
}

const char *
mip_receive(uint64 position, bytea *bytes)
{
	MipMessage *message;
	const char *result;

	check_may_receive(position);
	me.received = true;
	mip_set_publishes(false);
	message = mip_message_decode(bytes);
	result = is_here(position) ? receive_again(message, bytes) : receive_new(message, bytes);
	me.next++;
	prune();
	return result;
}

/* It takes the server no longer than it must: until all are read nothing is committed here. */
int
mip_receive_known(uint64 position, const Datum *messages, int n)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pg_mip message", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	int			done = 0;

	check_may_receive(position);
	me.received = true;
	while (done < n && is_here(me.next))
	{
		bytea	   *bytes = DatumGetByteaPP(messages[done]);

		CHECK_FOR_INTERRUPTS();
		(void) receive_again(mip_message_decode(bytes), bytes);
		me.next++;
		done++;
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return done;
}

/* ---- its end ---- */

static void
count_refused(void)
{
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_refused_count(mip_member->refused, me.refused_table, me.refusal);
	LWLockRelease(mip_member->lock);
}

/*
 * What the certifier has been told is so only if it has committed: else another session is
 * to begin.
 */
static void
xact_callback(XactEvent event, void *arg)
{
	if (!me.is || !me.received)
		return;
	if (event == XACT_EVENT_COMMIT)
	{
		if (me.position.position != 0)
		{
			if (me.what == MIP_REPLICATION_REFUSED)
				count_refused();
			mip_member_advance(&me.position, me.what, NULL);
		}
		if (me.waited_for)
			(void) tell_own(&me.waits, &me.position);
		if (me.applying)
			mip_applying_end();
		if (me.news.member[0] != '\0')
			mip_peers_received(&me.news);
		me.news.member[0] = '\0';
		me.position.position = 0;
		me.received = me.applying = me.waited_for = false;
	}
	else if (event == XACT_EVENT_ABORT)
		give_up();
}

void
mip_receive_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
}

/* ---- waiting for it ---- */

/* Of a standby, where nobody tells */
static void
look_again(void)
{
	(void) ConditionVariableTimedSleep(&mip_member->advanced, LOOK_AGAIN, PG_WAIT_EXTENSION);
	mip_positions_load();
}

void
mip_wait_for_position(uint64 position)
{
	mip_positions_load();
	ConditionVariablePrepareToSleep(&mip_member->advanced);
	while (!is_here(position))
	{
		if (RecoveryInProgress())
			look_again();
		else
			ConditionVariableSleep(&mip_member->advanced, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}
