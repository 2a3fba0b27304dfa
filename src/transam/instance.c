/*-------------------------------------------------------------------------
 *
 * instance.c
 *	  The MIP transaction of this backend.
 *
 * Ending it (prepare, or commit in one phase) takes two steps. The SQL
 * function checks the rules and returns the MIPT; then, at the end of the
 * command and after deferred triggers, the transaction callback (ending.c) takes the
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
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"

#include "base/gid.h"
#include "base/mip.h"
#include "base/stats.h"
#include "base/xid.h"
#include "heap/wal.h"
#include "family/current.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "family/rebuild.h"
#include "family/refusal.h"
#include "family/sites.h"
#include "mipt/books.h"
#include "mipt/entry.h"
#include "mipt/horizon.h"
#include "mipt/mipt.h"
#include "mipt/rules.h"
#include "tableam/predicate.h"
#include "transam/across.h"
#include "transam/ending.h"
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

static void (*begin_also) (ArrayType *sites);

void
mip_begin_also(void (*function) (ArrayType *sites))
{
	begin_also = function;
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

static void
enter_block(void)
{
	mip_call_when_over(leave_block);
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
 * the family lock: a later winner knows it and dooms it. Returns that MIPT.
 */
List *
mip_instance_begin(const char *xid, int64 xinst, ArrayType *sites, const text *key,
				   const text *serializable)
{
	MemoryContext old;
	List	   *entries;
	MiptLook	look;
	bool		everywhere;

	check_may_begin();
	if (begin_also)
		begin_also(sites);
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

	look = mipt_lock_new(xid);	/* [doomed-before-header] */
	mip_mine.inst = mip_register(xid, xinst, GetUserId(), sites);
	mip_mine.family = mip_mine.inst->family;
	mip_mine.ending = MIP_RUNNING;
	mip_mine.everywhere = everywhere;
	mip_count(MIP_COUNT_BEGUN);
	if (mip_have_siblings())
		mip_count(MIP_COUNT_SIBLINGS);
	mip_mine.seen = mip_mine.family->transitions;
	mip_mine.notes = mip_mine.family->notes;
	entries = mipt_read_again(xid, &look);
	mip_mine.key_note = look.note;
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
	return entries;
}

/* ---- the function's step of an ending ---- */

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
	mip_check_role(function);
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
	mip_mine.alone = false;
	mip_mine.seen = mip_mine.family->transitions;
	mip_mine.key_note = 0;
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
