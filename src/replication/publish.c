/*-------------------------------------------------------------------------
 *
 * publish.c
 *	  COMMIT at a replica: the transaction is published, and waits for its verdict.
 *
 * A plain COMMIT does it, of any client: before anything of it is in WAL the transaction's
 * writeset becomes a message, which the agent takes to the log (take.c). There it gets a
 * position, and from it, and what is before it, every replica derives the same verdict. The
 * transaction waits for that, with its locks. Then it commits, with its position, or is
 * rolled back: 40001.
 *
 * Once the message has been taken nobody here knows whether it will be in the log. Who
 * has to go then, since he is cancelled or ended, is rolled back, which gives his locks
 * free, and tells his client that he does not know (08007). Should the message come
 * it is applied as if it were somebody else's.
 *
 * An instance that is committed in one phase is published with its entry in the MIPT, before
 * it takes the family lock. Whoever wants to know what has become of a request, at
 * whichever replica, has a fence ordered (mip_publish_fence): what has begun before, and is not here then,
 * will not come.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "utils/elog.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/wait_event.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/stop.h"
#include "family/current.h"
#include "family/sites.h"
#include "family/telling.h"
#include "mipt/entry.h"
#include "replication/definition.h"
#include "replication/member.h"
#include "replication/message.h"
#include "replication/peers.h"
#include "replication/positions.h"
#include "replication/publish.h"
#include "replication/receive.h"
#include "replication/refusals.h"
#include "replication/request.h"
#include "replication/way.h"
#include "tableam/capture.h"
#include "tableam/places.h"
#include "transam/ending.h"
#include "transam/instance.h"
#include "writeset/extract.h"
#include "writeset/input.h"
#include "writeset/readable.h"
#include "writeset/rights.h"

/* So often a definition is tried out anew where something has been changed meanwhile. */
#define DEFINITION_ATTEMPTS		20

static uint64 first;			/* the position when it made its first change */
static uint64 begun;			/* ... when the instance began */
static uint64 last_position;	/* of this session */
static bool queued;				/* this transaction's message has been */
static bool committing;			/* certified: it must not fail any more */
static bool told;				/* all replicas have what this transaction has
								 * defined, or refused */
static emit_log_hook_type prev_emit_log_hook;

/* ---- while the transaction runs ---- */

/* An instance looks for its family now. */
static void
begins_instance(ArrayType *sites)
{
	if (!mip_publishes())
		return;
	if (mip_sites_count(sites) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a request over several sites cannot have a replicated database among them"),
				 errdetail("What it has changed would have to wait for the other sites, and all that is applied for it."),
				 errhint("Use requests over this site alone, or a site that is not replicated.")));
	mip_positions_load();
	begun = mip_member_applied();
}

static void
refuse_serializable(void)
{
	if (IsolationIsSerializable())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a SERIALIZABLE transaction cannot change tables of a replicated database"),
				 errdetail("Replicas tell each other what has been written, not what has been read."),
				 errhint("Use REPEATABLE READ, which is snapshot isolation among all replicas.")));
}

/*
 * How far a subscription is goes with the commit, and would be lost with it, but not what it
 * has brought.
 */
static void
refuse_subscription(void)
{
	if (replorigin_session_origin != InvalidRepOriginId)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a subscription cannot change tables of a replicated database"),
				 errdetail("Behind a crash it would apply again what the replicas have already.")));
}

/* The first change of a mip table: is the transaction captured, whatever the setting? */
static bool
begins_to_change(void)
{
	if (!mip_publishes())
		return false;
	refuse_serializable();
	refuse_subscription();
	mip_positions_load();
	first = mip_member_applied();
	return true;
}

uint64
mip_last_position(void)
{
	return last_position;
}

/* ---- publishing ---- */

static bool
has_changes(void)
{
	return mip_captures() && mip_places_count(mip_places_mine()) > 0;
}

/* Rights to read do not matter: nothing comes back from there but to who may write it. */
static bytea *
extract(void)
{
	bytea	   *writeset;

	mip_rights_waive(true);		/* an error ends the transaction: at_end */
	writeset = mip_extract_own(0, 0);
	mip_rights_waive(false);
	return writeset;
}

/*
 * Functions of indexes are executed for it: at this point, what they would write is captured
 * by nobody, and cursors that they leave open are closed by nobody else.
 */
static bytea *
make_writeset(void)
{
	bool		read_only = XactReadOnly;
	bytea	   *writeset;

	XactReadOnly = true;
	writeset = extract();
	mip_check_readable(mip_writeset_open(writeset), mip_places_mine());
	XactReadOnly = read_only;
	(void) PreCommit_Portals(false);
	return writeset;
}

static void
refuse_large(Size size)
{
	if (size > MIP_MESSAGE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the transaction has changed too much for a replicated database"),
				 errdetail("Its message has %zu bytes; at most %d are possible.", size, MIP_MESSAGE_MAX),
				 errhint("Use several transactions.")));
}

/* It is complete: what is applied here from now on it does not know of. */
static MipMessage
make_message(char kind, const bytea *body, uint64 knows)
{
	MipMessage	message = {
		.kind = kind,
		.first = knows,
		.member = pstrdup(mip_member_name()),
		.body = (const uint8 *) VARDATA_ANY(body),
		.length = VARSIZE_ANY_EXHDR(body),
	};

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_member_stamp(&message);
	LWLockRelease(mip_member->lock);
	refuse_large(mip_message_size(&message));
	return message;
}

pg_noreturn static void
refused(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to a concurrent update at another replica"),
			 errhint("The transaction might succeed if retried.")));
	pg_unreachable();
}

/* False: it would be refused by what is being applied. */
static bool
queue(const MipMessage *message)
{
	MipCommit  *mine = mip_my_commit();
	dsa_area   *memory = mip_member_memory();
	Size		length = mip_message_size(message);
	dsa_pointer bytes = dsa_allocate_extended(memory, length, DSA_ALLOC_HUGE);
	MipMessage	written;

	mip_message_write(message, dsa_get_address(memory, bytes));
	written = mip_message_of(dsa_get_address(memory, bytes), length);
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	Assert(mine->state == MIP_COMMIT_NONE);
	if (mip_meets_applying(&written))
	{
		dsa_free(memory, bytes);
		LWLockRelease(mip_member->lock);
		return false;
	}
	mine->id = message->id;
	mine->message = bytes;
	mine->length = length;
	mine->state = MIP_COMMIT_QUEUED;
	queued = true;
	LWLockRelease(mip_member->lock);
	ConditionVariableBroadcast(&mip_member->arrived);
	return true;
}

/* ---- waiting ---- */

/* What this transaction's commit is now; NONE again, unless it is to wait, or to commit. */
static MipCommitState
settle(bool gives_up)
{
	MipCommit  *mine = mip_my_commit();
	MipCommitState state;

	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	state = mine->state;
	if (state != MIP_COMMIT_CERTIFIED &&
		(gives_up || (state != MIP_COMMIT_QUEUED && state != MIP_COMMIT_TAKEN)))
		mip_commit_set(mine, MIP_COMMIT_NONE);
	LWLockRelease(mip_member->lock);
	return state;
}

pg_noreturn static void
too_long(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("the transaction has changed too much for the log of this site"),
			 errdetail("Its message is longer than what the log takes."),
			 errhint("Use several transactions.")));
	pg_unreachable();
}

pg_noreturn static void
left_out(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the definition has been left out"),
			 errdetail("It could not be executed, and somebody has called mip.replica_skip().")));
	pg_unreachable();
}

pg_noreturn static void
unknown(void)
{
	QueryCancelPending = false;
	ereport(ProcDiePending || mip_transaction_timed_out() ? FATAL : ERROR,
			(errcode(ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN),
			 errmsg("it is not known whether the transaction is committed"),
			 errdetail("It was interrupted while it waited to be ordered among those of all replicas, and will be applied if it is."),
			 errhint("Look for what it has changed before you retry it.")));
	pg_unreachable();
}

/* Has the transaction to go, whatever becomes of it? */
static bool
is_interrupted(void)
{
	if (ProcSignalBarrierPending)
		ProcessProcSignalBarrier();
	return ProcDiePending || QueryCancelPending || mip_transaction_timed_out();
}

/* Does it stay? `interruptible`: nothing happens if it does. */
static bool
wait_for_verdict(bool interruptible)
{
	for (;;)
	{
		bool		interrupted = is_interrupted();

		switch (settle(interrupted))
		{
			case MIP_COMMIT_CERTIFIED:
				return true;
			case MIP_COMMIT_REFUSED:
				return false;
			case MIP_COMMIT_LEFT_OUT:
				left_out();
			case MIP_COMMIT_TOO_LONG:
				too_long();
			case MIP_COMMIT_IN_THE_WAY:
				if (interruptible)
					return false;
				unknown();
			case MIP_COMMIT_QUEUED:
				if (interrupted)
					CHECK_FOR_INTERRUPTS(); /* says why; nothing has happened */
				break;
			case MIP_COMMIT_TAKEN:
				if (interrupted && interruptible)
					CHECK_FOR_INTERRUPTS();
				if (interrupted)
					unknown();
				break;
			case MIP_COMMIT_NONE:
				elog(ERROR, "the commit of this transaction is lost");
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* Should it fail, that has not undone what the others have. */
static void
write_position(void)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		mip_stop_point("certified");
		mip_position_write(&mip_my_commit()->decided);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		error->sqlerrcode = ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN;
		ReThrowError(error);
	}
	PG_END_TRY();
}

static MipMessage
make_request(const bytea *writeset)
{
	MipRequest	request = {mip_mine.xid, mipt_own_entry(MIP_COMMITTED)};

	return make_message(MIP_MESSAGE_REQUEST, mip_request_encode(&request, begun, writeset), first);
}

/* Everything that the transaction does is done, and nothing of it is in WAL as committed. */
static void
publish(void)
{
	bytea	   *writeset;
	MipMessage	message;

	mip_peers_slow_down();
	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());	/* for TOAST */
	if (!has_changes())
		first = mip_member_applied();
	writeset = has_changes() ? make_writeset() : mip_extract_nothing();
	message = mip_in_transaction() ? make_request(writeset) :
		make_message(MIP_MESSAGE_TRANSACTION, writeset, first);
	if (!queue(&message))
		refused();
	mip_stop_point("queued");
	if (!wait_for_verdict(false))
		refused();
	HOLD_INTERRUPTS();
	mip_end_transaction_timeout();
	committing = true;
	write_position();
	PopActiveSnapshot();
}

/* What applies the log takes over what is in there. */
static void
forget_commit(void)
{
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	if (mip_my_commit()->state != MIP_COMMIT_NONE)
		mip_commit_set(mip_my_commit(), MIP_COMMIT_NONE);
	LWLockRelease(mip_member->lock);
	ConditionVariableBroadcast(&mip_member->advanced);
}

/*
 * Its place in the log when all up to there is applied here, by what applies the log. 0: it is
 * refused.
 */
static uint64
publish_and_wait(const MipMessage *message, bool interruptible)
{
	uint64		position = 0;

	if (queue(message) && wait_for_verdict(interruptible))
		position = mip_my_commit()->decided.position;
	forget_commit();
	queued = false;
	return position;
}

static uint64
publish_definition(const bytea *definition, uint64 known)
{
	MipMessage	message = make_message(MIP_MESSAGE_DEFINITION, definition, known);

	return publish_and_wait(&message, false);
}

static void
publish_fence(const MipRequest *request)
{
	MipMessage	message;

	mip_positions_load();
	mip_peers_slow_down();
	message = make_message(MIP_MESSAGE_FENCE, mip_request_encode(request, 0, NULL), 0);
	/* A refusal comes all the same if it is in the log. */
	if (publish_and_wait(&message, request->entry == NULL) == 0)
		refused();				/* something that it holds is in the way */
	told = request->entry != NULL;
}

/* An instance knows what it has begun with, and would be in its own way. */
bool
mip_needs_fence(void)
{
	return mip_publishes() && !RecoveryInProgress() && !mip_in_transaction();
}

void
mip_publish_fence(const char *xid)
{
	MipRequest	request = {xid, NULL};

	publish_fence(&request);
}

void
mip_publish_refusal(const char *xid, int64 xinst, Oid owner, ArrayType *sites)
{
	MiptEntry	entry = {.xinst = xinst,.owner = owner,.sites = sites,.since = GetCurrentTimestamp()};
	MipRequest	request = {xid, &entry};

	publish_fence(&request);
}

void
mip_refusal_kept_out(void)
{
	told = false;
}

uint64
mip_publish_definition(const char *command)
{
	mip_positions_load();
	for (int i = 0; i < DEFINITION_ATTEMPTS; i++)
	{
		uint64		known = mip_member_applied();
		bytea	   *definition = mip_definition_make(command);
		uint64		position;

		mip_peers_slow_down();
		position = publish_definition(definition, known);
		told = position != 0;
		if (told)
			return last_position = position;
		mip_wait_for_position(known + 1);	/* what has been changed meanwhile */
	}
	refused();
}

/* Whatever it has done: locks are enough. */
static void
refuse_prepare(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("transactions of a replicated database cannot be prepared"),
			 errdetail("What is applied would have to wait until they are decided."),
			 errhint("Use COMMIT.")));
}

/* An instance is published when its own end has been looked at (order_instance). */
static void
pre_commit(void)
{
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		mip_replica_check_locked();
	if (has_changes() && !mip_in_transaction())
		publish();
}

/* Also one that has changed nothing: the others are to know its result. */
static bool
order_instance(void)
{
	if (!mip_publishes())
		return false;
	refuse_serializable();
	mip_replica_check_locked();
	publish();
	return true;
}

/* ---- its end ---- */

static void
has_committed(void)
{
	MipCommit  *mine = mip_my_commit();

	/* before its locks go: who waits for them knows of it */
	last_position = mine->decided.position;
	mip_member_advance(&mine->decided, MIP_REPLICATION_COMMITTED, mine);
	RESUME_INTERRUPTS();
}

static void
at_end(bool committed)
{
	mip_telling_done();
	if (committing && committed)
		has_committed();
	else if (queued)
		forget_commit();
	committing = queued = told = false;
	mip_rights_waive(false);
	mip_set_publishes(true);
	first = begun = 0;
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (!mip_is_replicated())
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (mip_publishes())
				pre_commit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			refuse_prepare();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			at_end(event == XACT_EVENT_COMMIT);
			break;
		default:
			break;
	}
}

/* As that an instance is committed already, which cannot be refused */
static bool
says_what_it_has_found(int sqlstate)
{
	return ERRCODE_TO_CATEGORY(sqlstate) == MAKE_SQLSTATE('M', 'P', '0', '0', '0');
}

/* What fails behind the verdict has not undone it: the others have the transaction. */
static void
emit_log(ErrorData *edata)
{
	if ((committing || (told && !says_what_it_has_found(edata->sqlerrcode))) && edata->elevel >= ERROR)
		edata->sqlerrcode = ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN;
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

void
mip_publish_init(void)
{
	mip_capture_if(begins_to_change);
	mip_begin_also(begins_instance);
	mip_order_by(order_instance);
	mip_telling_also(mip_is_replicated);
	RegisterXactCallback(xact_callback, NULL);
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = emit_log;
}
