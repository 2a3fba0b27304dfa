/*-------------------------------------------------------------------------
 *
 * instance.c
 *	  The MIP transaction of this backend.
 *
 * Ending it (prepare, or commit in one phase) takes two steps. The SQL
 * function checks the rules and returns the MIPT; then, at the end of the
 * command and after deferred triggers, the transaction callback takes the
 * family lock, sees that no transition has happened since the MIPT was read,
 * and enters the row. So the lock is never held while rows travel to a client
 * that may have stopped reading, and what the client was told is the MIPT as
 * of the step that made it true.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/gid.h"
#include "base/mip.h"
#include "base/stats.h"
#include "base/stop.h"
#include "base/xid.h"
#include "heap/wal.h"
#include "family/current.h"
#include "family/eviction.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "family/rebuild.h"
#include "family/refusal.h"
#include "family/sites.h"
#include "mipt/books.h"
#include "mipt/entry.h"
#include "mipt/horizon.h"
#include "mipt/mipt.h"
#include "mipt/rows.h"
#include "mipt/rules.h"
#include "tableam/handover.h"
#include "tableam/overlay.h"
#include "tableam/pivot.h"
#include "tableam/predicate.h"
#include "transam/across.h"
#include "transam/instance.h"
#include "transam/session.h"
#include "transam/statement.h"

/* ---- begin ---- */

static void
check_may_begin(void)
{
	if (max_prepared_xacts == 0)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("pg_mip needs prepared transactions, which are disabled"),
				 errhint("Set max_prepared_transactions to a nonzero value and restart the server.")));
	if (mip_in_transaction())
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("this transaction is an instance already"),
				 errdetail("It is instance " INT64_FORMAT " of family \"%s\".",
						   mip_mine.xinst, mip_mine.xid)));
	if (GetCurrentTransactionNestLevel() > 1)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("mip.begin cannot be called inside a savepoint or an EXCEPTION block")));
	mip_require_nothing_done();
	mip_refuse_books();
}

static bool in_block;

bool
mip_in_block(void)
{
	return in_block;
}

static void
leave_block(void *arg)
{
	in_block = false;
}

/* PostgreSQL drops a transaction's memory when it is altogether over. */
static void
call_when_over(MemoryContextCallbackFunction function)
{
	MemoryContextCallback *callback =
		MemoryContextAllocZero(TopTransactionContext, sizeof(MemoryContextCallback));

	callback->func = function;
	MemoryContextRegisterResetCallback(TopTransactionContext, callback);
}

static void
enter_block(void)
{
	call_when_over(leave_block);
	in_block = true;
}

/* Refusals that the entries of this family call for. */
static void
check_entries(List *entries, int64 xinst)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->owner != GetUserId())
			mip_raise_stranger(mip_mine.xid);
	}
	mipt_check_may_end(mip_mine.xid, entries, xinst, false);
	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->state != MIP_ACTIVE && entry->xinst == xinst)
			mip_raise_duplicate(mip_mine.xid, xinst);
	}
	mipt_check_sites(mip_mine.xid, entries, mip_mine.sites);
}

/*
 * Makes the current transaction an instance. `sites` is canonical. `key`, or
 * NULL, is what mip.prepare and mip.commit_one_phase have to be given;
 * `serializable`, or NULL, what mip.serializable is said to be at all sites. The
 * instance is in the registry before the MIPT is read, and both happen under
 * the family lock: a later winner knows it and dooms it.
 */
void
mip_instance_begin(const char *xid, int64 xinst, ArrayType *sites, const text *key,
				   const text *serializable)
{
	MemoryContext old;
	List	   *entries;
	bool		everywhere;

	check_may_begin();
	everywhere = mip_across_begin(sites, serializable);
	mip_registry_ensure("mip.begin");

	enter_block();
	mip_session_begin();
	(void) GetTopTransactionId();
	mip_log_begin(xinst);

	/*
	 * heap does not do this for key updates, and we make lockers of updaters:
	 * [lockers-stay]
	 */
	MultiXactIdSetOldestMember();

	old = MemoryContextSwitchTo(TopTransactionContext);
	strlcpy(mip_mine.xid, xid, sizeof(mip_mine.xid));
	mip_mine.xinst = xinst;
	mip_mine.sites = DatumGetArrayTypePCopy(PointerGetDatum(sites));
	mip_mine.key = key ? DatumGetTextPCopy(PointerGetDatum(key)) : NULL;
	MemoryContextSwitchTo(old);

	mipt_lock(xid, ShareLock);	/* [doomed-before-header] */
	mip_mine.inst = mip_register(xid, xinst, GetUserId(), sites);
	mip_mine.family = mip_mine.inst->family;
	mip_mine.ending = MIP_RUNNING;
	mip_mine.everywhere = everywhere;
	mip_count(MIP_COUNT_BEGUN);
	if (mip_have_siblings())
		mip_count(MIP_COUNT_SIBLINGS);
	mip_mine.seen = mip_mine.family->transitions;
	mip_mine.notes = mip_mine.family->notes;
	entries = mipt_read(xid);
	mip_mine.alone = list_length(entries) == 1;
	check_entries(entries, xinst);
	mip_predicate_begin();

	/*
	 * after the entries: they are removed behind the horizon:
	 * [entry-or-horizon]
	 */
	mip_mine.age = mip_xid_age(xid);
	mip_mine.first_command = GetCurrentCommandId(false);
	if (mip_mine.age == MIP_BEHIND_HORIZON && !mipt_has_prepared(entries))
		mip_raise_expired(xid);
	mip_family_unlock();
}

/* ---- the function's step of an ending ---- */

/* The transaction is prepared for the current role. */
static void
check_role(const char *function)
{
	Assert(mip_in_transaction());
	if (GetUserId() != mip_mine.inst->owner)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("%s must be called by the role that called mip.begin", function),
				 errhint("Undo SET ROLE or SET SESSION AUTHORIZATION first.")));
}

static bool
same_key(const text *a, const text *b)
{
	return a && b ?
		VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0 : a == b;
}

static void
check_may_end(const char *function, const text *key)
{
	if (!mip_in_transaction())
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("%s needs a MIP transaction", function),
				 errhint("Start one with BEGIN and mip.begin.")));
	if (GetCurrentTransactionNestLevel() > 1)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("%s cannot be called inside a savepoint or an EXCEPTION block", function),
				 errhint("Send RELEASE SAVEPOINT or ROLLBACK TO SAVEPOINT and RELEASE first.")));
	check_role(function);
	if (!same_key(mip_mine.key, key))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("%s is for whoever has begun this instance", function),
				 errdetail("Its key is not the one that mip.begin was given."),
				 errhint("A handler must not end its own transaction: what called it does.")));
	if (mip_mine.ending != MIP_RUNNING)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("this transaction is being ended already")));
	mip_require_whole(function);
	mip_check_doomed();
}

/*
 * Makes the server end the transaction before it tells the client that the
 * command is complete. A simple query does so for its last statement (and may
 * not be asked to after another one); the extended protocol has to be told.
 */
static void
end_before_reply(void)
{
	if (!mip_in_simple_query(ActivePortal))
		MyXactFlags |= XACT_FLAGS_NEEDIMMEDIATECOMMIT;
}

static void
remember_loser(const MiptEntry *entry)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	mip_mine.losers = lappend(mip_mine.losers, mipt_copy_loser(entry));
	MemoryContextSwitchTo(old);
}

/*
 * The family's entries. If there was nobody else at the begin, and there has been
 * no transition since, nor a note of losers, there is still nobody: no need to look. Siblings that are
 * just beginning may be in the list or not.
 */
static List *
read_family(void)
{
	List	   *entries;

	Assert(mip_in_transaction() && mip_mine.ending == MIP_RUNNING);
	if (mip_mine.alone && mip_mine.family->transitions == mip_mine.seen &&
		mip_mine.family->notes == mip_mine.notes && !mip_have_siblings())
		return list_make1(mipt_own_entry(MIP_ACTIVE));
	mip_family_lock(mip_mine.xid, ShareLock);
	mip_mine.seen = mip_mine.family->transitions;
	entries = mipt_read(mip_mine.xid);
	mip_family_unlock();
	return entries;
}

static List *
begin_ending(MipEnding ending, text *request, text *result)
{
	MemoryContext old;
	List	   *entries;
	List	   *reply = NIL;
	ListCell   *lc;
	bool		one_phase = ending == MIP_ONE_PHASE;

	entries = read_family();
	mipt_check_may_end(mip_mine.xid, entries, mip_mine.xinst, one_phase);

	old = MemoryContextSwitchTo(TopTransactionContext);
	mip_mine.request = request ? (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(request)) : NULL;
	mip_mine.result = result ? (text *) PG_DETOAST_DATUM_COPY(PointerGetDatum(result)) : NULL;
	MemoryContextSwitchTo(old);

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->xinst == mip_mine.xinst)
			entry = mipt_own_entry(one_phase ? MIP_COMMITTED : MIP_PREPARED);
		else if (one_phase && !ItemPointerIsValid(&entry->tid))
		{
			entry->state = MIP_ABORTED;
			remember_loser(entry);
		}
		reply = lappend(reply, entry);
	}

	mip_mine.ending = ending;
	end_before_reply();
	return reply;
}

List *
mip_instance_prepare(text *request, text *result, const text *key)
{
	char		gid[GIDSIZE];
	List	   *reply;

	check_may_end("mip.prepare", key);
	reply = begin_ending(MIP_PREPARING, request, result);
	mip_gid(gid, mip_mine.xid, mip_mine.xinst);
	if (!PrepareTransactionBlock(gid))
		elog(ERROR, "pg_mip: the transaction cannot be prepared");
	return reply;
}

List *
mip_instance_commit_one_phase(text *request, text *result, const text *key)
{
	List	   *reply;

	check_may_end("mip.commit_one_phase", key);
	if (mip_sites_count(mip_mine.sites) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("an instance with more than one site cannot be committed in one phase"),
				 errhint("Use mip.prepare at every site, then mip.commit.")));
	reply = begin_ending(MIP_ONE_PHASE, request, result);
	if (!EndTransactionBlock(false))
		elog(ERROR, "pg_mip: the transaction cannot be committed");
	return reply;
}

/* ---- the callback's step ---- */

static void
after_prepare(void *arg)
{
	mip_family_unlock_all();
}

/*
 * Until PostPrepare_Twophase nobody else can finish a prepared transaction,
 * and that comes after the last transaction callback. So the family lock stays
 * until then, and no longer [lock-let-go].
 */
static void
unlock_after_prepare(void)
{
	call_when_over(after_prepare);
}

/*
 * Notes the active siblings that a commit in one phase aborts: those that its
 * reply listed, gone or not, and those that have been begun since.
 */
static void
note_losers(void)
{
	List	   *entries = mipt_read(mip_mine.xid);
	ListCell   *lc;

	foreach(lc, mip_mine.losers)
	{
		MiptEntry  *loser = lfirst(lc);

		if (mipt_find(entries, loser->xinst) == NULL)
			mipt_insert_aborted(mip_mine.xid, loser);
	}
	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->xinst != mip_mine.xinst && !ItemPointerIsValid(&entry->tid))
			mipt_insert_aborted(mip_mine.xid, entry);
	}
}

/*
 * The commit in one phase of an instance with siblings: none is prepared, so
 * all others are active, and lose now.
 */
static void
win_in_one_phase(const bytea *links)
{
	mip_predicate_let_commit();
	mip_doom_others(mip_mine.xid, mip_mine.xinst);
	mip_stop_point("doomed");
	mip_evict_doomed(mip_mine.xid);
	mip_stop_point("evicted");
	Assert(mip_others_are_doomed(mip_mine.xid, mip_mine.xinst));	/* [doomed-before-header] */
	mip_hand_over(links);
	mip_stop_point("handed over");
	note_losers();
	mip_stop_point("losers");
}

/* Has this instance written nothing, not even a large object? */
static bool
has_written_nothing(void)
{
	CommandCounterIncrement();
	return GetCurrentCommandId(false) == mip_mine.first_command;
}

/*
 * An expired request can still be cancelled, by an instance that does nothing:
 * where there is a sibling to get out of doubt; or if no clock but ours says
 * so, since then the request has never been committed here (else there would be
 * an entry). The caller has read the entries before. [no-cancel-of-done]
 */
static void
check_not_expired(bool one_phase)
{
	MipAge		age = mip_xid_age(mip_mine.xid);

	Assert(mip_family_locked(mip_mine.xid, ExclusiveLock));
	if (age == MIP_CURRENT)
		return;
	if (one_phase || mip_mine.result != NULL || !has_written_nothing() ||
		(age == MIP_BEHIND_HORIZON && !mipt_has_prepared(mipt_read(mip_mine.xid))))
		mip_raise_expired(mip_mine.xid);
}

/*
 * Last step that may fail. Takes the family lock, which is released after the
 * transaction has ended one way or the other.
 */
static void
enter_row(bool one_phase)
{
	bytea	   *links;

	Assert(mip_mine.ending == (one_phase ? MIP_ONE_PHASE : MIP_PREPARING));
	/* deferred triggers have run since */
	check_role(one_phase ? "mip.commit_one_phase" : "mip.prepare");
	mip_refuse_strong_locks();
	mip_mine.inst->at_lock = true;
	mip_family_lock_ending(mip_mine.xid);
	PushActiveSnapshot(GetTransactionSnapshot());	/* for TOAST */
	mip_check_doomed();
	/* [counted-in-lock], so this is what the reply has been made of */
	if (mip_mine.family->transitions != mip_mine.seen)
	{
		mipt_check_may_end(mip_mine.xid, mipt_read(mip_mine.xid), mip_mine.xinst,
						   one_phase);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("another instance of family \"%s\" changed its state at the same moment",
						mip_mine.xid),
				 errhint("Retry the request as a new instance.")));
	}
	check_not_expired(one_phase);
	mip_stop_point("turn");
	mip_predicate_before_end();
	mip_across_validate();
	links = mip_overlay_links();
	if (one_phase && (links || mip_mine.losers || mip_have_siblings()))
		win_in_one_phase(links);
	mipt_insert_own(one_phase ? NULL : links);
	/* others are told of it at once, and act upon it */
	if (one_phase)
		ForceSyncCommit();
	PopActiveSnapshot();
	mip_stop_point("row");
}

static void
forget_mine(void)
{
	mip_predicate_at_eoxact();
	mip_overlay_at_eoxact();
	mip_withdraw_sites();
	memset(&mip_mine, 0, sizeof(mip_mine));
}

static void
refuse_plain_commit(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_NOT_USABLE),
			 errmsg("a MIP transaction cannot be ended with COMMIT or PREPARE TRANSACTION"),
			 errhint("End it with mip.prepare, mip.commit_one_phase or ROLLBACK.")));
}

static void
pre_commit(void)
{
	mip_keep_books();
	mip_pivot_check_end();
	if (!mip_in_transaction())
	{
		mip_across_validate();
		return;
	}
	if (mip_mine.ending != MIP_ONE_PHASE)
		refuse_plain_commit();
	enter_row(true);
}

/*
 * What PostgreSQL refuses to prepare it would refuse behind us, with the family
 * lock held while the client is told.
 */
static void
check_may_prepare(void)
{
	AtPrepare_Notify();
	if (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot prepare an instance that has operated on temporary objects"),
				 errhint("Use them in a transaction of their own; or use mip.commit_one_phase, if the instance has no other site.")));
	if (XactHasExportedSnapshots())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot prepare an instance that has exported a snapshot"),
				 errhint("Export snapshots in a transaction of their own.")));
	mip_session_before_prepare();
}

static void
pre_prepare(void)
{
	mip_refuse_books();
	mip_pivot_check_end();
	if (!mip_in_transaction())
	{
		mip_across_before_prepare();
		mip_across_validate();
		return;
	}
	if (mip_mine.ending != MIP_PREPARING)
		refuse_plain_commit();
	check_may_prepare();
	unlock_after_prepare();
	enter_row(false);
}

/* Nobody waits for a client that does not read why this has failed: [lock-let-go] */
static void
run_unlocking(void (*step) (void))
{
	PG_TRY();
	{
		step();
	}
	PG_CATCH();
	{
		mip_family_unlock_all();
		if (mip_in_transaction())
		{
			/* a winner may end it, even while it tells its client */
			mip_mine.inst->running = true;
			mip_mine.inst->at_lock = false;
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			run_unlocking(pre_commit);
			break;
		case XACT_EVENT_PRE_PREPARE:
			run_unlocking(pre_prepare);
			break;
		case XACT_EVENT_PREPARE:
			if (mip_in_transaction())
			{
				mip_mark_prepared(mip_mine.inst);
				mip_count(MIP_COUNT_PREPARED);
				forget_mine();
				mip_stop_point("prepared");
				mip_session_restore(true);
			}
			mip_statement_at_eoxact();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			if (mip_in_transaction())
			{
				bool		committed = event == XACT_EVENT_COMMIT;

				mip_count(committed ? MIP_COUNT_ONE_PHASE : MIP_COUNT_FAILED);
				if (mip_unregister(mip_mine.inst, committed))
					mip_swallow_cancel();
				mip_session_restore(committed);
			}
			forget_mine();
			mip_family_unlock_all();
			mip_lose_books();
			mip_statement_at_eoxact();
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mine,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		mip_overlay_at_eosubxact(true, mine, parent);
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		mip_predicate_at_abort_sub();
		mip_overlay_at_eosubxact(false, mine, parent);
		mip_family_unlock_all();
	}
}

void
mip_instance_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
