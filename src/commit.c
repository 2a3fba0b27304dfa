/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  Deciding a family at this site: mip.commit, mip.rollback, mip.refuse,
 *	  mip.forget.
 *
 * mip.commit, step by step, and why a crash between any two of them is
 * harmless. All of it runs under the exclusive family lock, which is given
 * back before the rows of the reply travel: a client that stops reading them
 * would keep everybody else from the family.
 *
 *	1. Validate. Nothing has changed.
 *	2. Doom the active siblings: they may no longer prepare, and return no
 *	   more rows. In memory only; a crash ends them anyway.
 *	3. Hand over the winner's overlay. The winner stays prepared, so a crash
 *	   finds it again; whoever retries hands over the rest. Another winner is
 *	   refused from the first header on. Replaced out-of-line values are
 *	   handed over as well, so the commit deletes them.
 *	4. Roll back the prepared losers, without waiting for a flush. A crash
 *	   leaves the winner prepared, its hand-over done, and maybe some losers;
 *	   they are not the winner, whoever asks. An error here loses the notes of
 *	   those that are gone: nobody uses an XINST twice. If the winner had been
 *	   committed before, with a flush: nobody else would care for one.
 *	5. Commit the winner. Durable when FinishPreparedTransaction returns, and
 *	   with it the end of the losers, whose WAL comes before; or later, if
 *	   that is not wanted (finish.c): a crash then goes back to 4 or before.
 *	6. End the doomed ones' statements. A crash ends them as well.
 *	7. When the caller's own transaction commits, under the lock again: note
 *	   the losers; drop the winner's links, which nobody needs any more.
 *	   Book-keeping; what a crash leaves of it goes with a retry or mip.expire.
 *	   So a transaction that has nothing else to write does not wait for its
 *	   flush.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_authid_d.h"
#include "commit.h"
#include "durable.h"
#include "eviction.h"
#include "finish.h"
#include "handover.h"
#include "horizon.h"
#include "miscadmin.h"
#include "overlay.h"
#include "pgstat.h"
#include "registry.h"
#include "stats.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "storage/procarray.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* What a decision has left to be noted. */
typedef struct Books
{
	char	   *xid;
	List	   *losers;
	bool		committed;		/* a winner, or was just one rolled back? */
} Books;

static List *books;				/* in TopTransactionContext */
static const char *books_of;	/* the function called last */

/*
 * COMMIT PREPARED and ROLLBACK PREPARED insist on the preparing role itself or
 * a superuser; here membership, which mipt_read has checked, is enough.
 */
static void
finish(const char *xid, MiptEntry *entry, bool commit, bool flush)
{
	char		gid[GIDSIZE];
	Oid			user;
	int			context;
	MemoryContext old = CurrentMemoryContext;
	SerializableXactHandle own = ShareSerializableXact();

	mip_gid(gid, xid, entry->xinst);
	if (!flush && mip_finish_unflushed(gid, commit))
	{
		if (commit)
			mip_count(MIP_COUNT_UNFLUSHED);
	}
	else
	{
		GetUserIdAndSecContext(&user, &context);
		SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, context | SECURITY_LOCAL_USERID_CHANGE);
		FinishPreparedTransaction(gid, commit);
		SetUserIdAndSecContext(user, context);
	}
	/*
	 * To finish a serializable instance PostgreSQL puts it in the place of our
	 * own; COMMIT PREPARED has none, but we are a query.
	 */
	if (ShareSerializableXact() != own)
		AttachSerializableXact(own);
	mip_stop_point("finished");
	MemoryContextSwitchTo(old);

	entry->state = commit ? MIP_COMMITTED : MIP_ABORTED;
	mip_count(commit ? MIP_COUNT_COMMITTED : MIP_COUNT_ROLLED_BACK);
	mip_family_transition(xid, entry->xinst);
}

static void
refuse_other_hand_over(const char *xid, List *entries, int64 winner)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->state == MIP_PREPARED && entry->xinst != winner &&
			mip_hand_over_begun(entry->links))
			mipt_raise_committed(xid, entry);
	}
}

/* The winner's entry, or an error that says why it cannot be committed. */
static MiptEntry *
validate(const char *xid, List *entries, int64 winner)
{
	MiptEntry  *committed = mipt_committed(entries);
	MiptEntry  *entry = mipt_find(entries, winner);

	if (committed)
	{
		if (committed->xinst != winner)
			mipt_raise_committed(xid, committed);
		return committed;
	}
	/* removed, so it was committed at every site */
	if (entry == NULL && mip_xid_age(xid) == MIP_BEHIND_HORIZON)
		mip_raise_expired(xid);
	if (entry == NULL || entry->state != MIP_PREPARED)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("instance " INT64_FORMAT " of family \"%s\" is not prepared here",
						winner, xid),
				 errhint("Only an instance that is prepared at every site may be committed.")));
	refuse_other_hand_over(xid, entries, winner);
	return entry;
}

/*
 * A crash may lose a loser's roll-back and keep the hint that its entry is dead:
 * the hint of an abort waits for no flush. Then only the registry knows of it. It
 * is for whoever commits the winner, which is prepared again as well.
 */
static List *
entries_of_revived(const char *xid, List *entries, int64 winner)
{
	List	   *revived = NIL;
	ListCell   *lc;

	foreach(lc, mip_family_instances(xid))
	{
		MipInstance *inst = lfirst(lc);

		if (MipInstanceIsPrepared(inst) && inst->xinst != winner &&
			mipt_find(entries, inst->xinst) == NULL && TransactionIdIsInProgress(inst->xid))
			revived = lappend(revived, mipt_entry_of(inst));
	}
	return revived;
}

/* Those that are to be noted as aborted. */
static List *
roll_back_losers(const char *xid, List *entries, int64 winner, bool flush)
{
	List	   *losers = NIL;
	ListCell   *lc;

	foreach(lc, list_concat_copy(entries, entries_of_revived(xid, entries, winner)))
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->xinst == winner)
			continue;
		if (entry->state == MIP_PREPARED)
		{
			finish(xid, entry, false, flush);
			mip_stop_point("loser");
			losers = lappend(losers, entry);
		}
		else if (!ItemPointerIsValid(&entry->tid))
		{
			/* active, or doomed by a commit that did not come to its end */
			entry->state = MIP_ABORTED;
			losers = lappend(losers, entry);
		}
	}
	return losers;
}

static void *
copy_varlena(const void *value)
{
	return value ? memcpy(palloc(VARSIZE(value)), value, VARSIZE(value)) : NULL;
}

static MiptEntry *
copy_loser(const MiptEntry *entry)
{
	MiptEntry  *copy = palloc(sizeof(MiptEntry));

	*copy = *entry;
	copy->request = copy_varlena(entry->request);
	copy->result = copy_varlena(entry->result);
	copy->sites = copy_varlena(entry->sites);
	copy->links = NULL;
	return copy;
}

/*
 * Ends a decision, but for what mip_keep_books has to do then. Only that lives
 * until then: one statement may decide many families, with large texts.
 */
static void
close_books(const char *xid, List *losers, const MiptEntry *winner)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	if (losers || (winner && winner->links))
	{
		Books	   *book = palloc0(sizeof(Books));
		ListCell   *lc;

		book->xid = pstrdup(xid);
		foreach(lc, losers)
			book->losers = lappend(book->losers, copy_loser(lfirst(lc)));
		book->committed = winner != NULL;
		books = lappend(books, book);
	}
	MemoryContextSwitchTo(old);
	mip_family_unlock(xid, ExclusiveLock);
}

List *
mip_family_commit(const char *xid, int64 winner)
{
	List	   *entries;
	MiptEntry  *entry;
	List	   *losers;
	bool		again;

	mip_family_lock(xid, ExclusiveLock);
	entries = mipt_read(xid);
	entry = validate(xid, entries, winner);
	again = entry->state == MIP_COMMITTED;
	mip_doom_others(xid, winner);
	mip_stop_point("doomed");
	if (!again)
	{
		mip_hand_over(entry->links);
		mip_stop_point("handed over");
		/* what our own transaction has counted by now does not end like the losers */
		AtEOXact_PgStat(true, true);
	}
	losers = roll_back_losers(xid, entries, winner, again);
	mip_stop_point("losers");
	if (!again)
	{
		finish(xid, entry, true, !mip_commits_unflushed());
		mip_stop_point("committed");
	}
	mip_evict_doomed(xid);
	mip_stop_point("evicted");
	close_books(xid, losers, entry);
	if (again)
		mip_wait_until_durable();
	return entries;
}

static void
note_aborted(const Books *book, List *entries)
{
	ListCell   *lc;

	foreach(lc, book->losers)
	{
		MiptEntry  *loser = lfirst(lc);
		MiptEntry  *entry = mipt_find(entries, loser->xinst);

		if (entry == NULL || !ItemPointerIsValid(&entry->tid))
			mipt_insert_aborted(book->xid, loser);
	}
	mip_family_noted(book->xid);
}

static void
keep_book(const Books *book)
{
	List	   *entries;
	MiptEntry  *winner;

	mip_family_lock(book->xid, ExclusiveLock);
	/* meanwhile, somebody else may have done it, or want to know no more */
	entries = mipt_read(book->xid);
	winner = mipt_committed(entries);
	if (winner ? !winner->acknowledged : !book->committed)
		note_aborted(book, entries);
	if (winner && winner->links)
		mipt_clear_links(winner);
}

/* Everybody takes the locks of many families in the same order. */
static int
compare_books(const ListCell *a, const ListCell *b)
{
	return strcmp(((Books *) lfirst(a))->xid, ((Books *) lfirst(b))->xid);
}

/*
 * Is there nothing to be written that anybody would miss? That an instance has
 * been given up is for others to know, while there is no winner.
 */
static bool
only_notes(void)
{
	ListCell   *lc;

	foreach(lc, books)
	{
		if (!((Books *) lfirst(lc))->committed)
			return false;
	}
	return !TransactionIdIsValid(GetTopTransactionIdIfAny());
}

void
mip_keep_books(void)
{
	MemoryContext family;
	MemoryContext caller;
	ListCell   *lc;

	if (books == NIL)
		return;
	if (only_notes())
		set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION,
						  GUC_ACTION_LOCAL, true, 0, false);
	PushActiveSnapshot(GetTransactionSnapshot());	/* for TOAST */
	family = AllocSetContextCreate(CurrentMemoryContext, "pg_mip family",
								   ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(family);
	list_sort(books, compare_books);
	foreach(lc, books)
	{
		keep_book(lfirst(lc));
		MemoryContextReset(family);
		mip_stop_point("book");
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(family);
	PopActiveSnapshot();
	mip_stop_point("noted");
}

void
mip_begin_books(const char *function)
{
	books_of = function;
}

/*
 * A pipeline can begin a block behind a decision whose rows have not all been
 * fetched. Neither notes nor a family lock may hang on a prepared transaction.
 */
void
mip_refuse_books(void)
{
	if (books_of)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("a transaction that has called %s cannot be prepared", books_of),
				 errhint("Send that as a transaction of its own.")));
}

void
mip_lose_books(void)
{
	books = NIL;
	books_of = NULL;
}

static void
give_up(const char *xid, List *entries, MiptEntry *entry)
{
	if (entry->state == MIP_COMMITTED)
		mipt_raise_committed(xid, entry);
	if (entry->state == MIP_PREPARED)
	{
		/* once another has committed, VACUUM may have had the base versions */
		if (!mipt_committed(entries) && mip_hand_over_begun(entry->links))
			ereport(ERROR,
					(errcode(ERRCODE_MIP_NOT_USABLE),
					 errmsg("instance " INT64_FORMAT " of family \"%s\" is being committed",
							entry->xinst, xid),
					 errhint("Call mip.commit to complete it.")));
		finish(xid, entry, false, true);
		mip_stop_point("rolled back");
	}
	else
	{
		mip_doom_one(xid, entry->xinst);
		mip_evict_doomed(xid);
		entry->state = MIP_ABORTED;
	}
}

/*
 * Gives up one instance. To be called by its own coordinator, and only after
 * some site has definitely refused it.
 */
List *
mip_family_rollback(const char *xid, int64 loser)
{
	List	   *entries;
	MiptEntry  *entry;
	List	   *losers = NIL;

	mip_family_lock(xid, ExclusiveLock);
	entries = mipt_read(xid);
	entry = mipt_find(entries, loser);
	if (entry &&
		!(entry->state == MIP_ABORTED && ItemPointerIsValid(&entry->tid)))
	{
		give_up(xid, entries, entry);
		losers = list_make1(entry);
	}
	close_books(xid, losers, NULL);
	if (mipt_committed(entries))
		mip_wait_until_durable();
	return entries;
}

static void
check_may_refuse(const char *xid, List *entries, ArrayType *sites)
{
	mipt_check_undecided(xid, entries);
	mipt_check_sites(xid, entries, sites);
	/* it may have been committed, and removed */
	if (!mipt_has_prepared(entries) && mip_xid_age(xid) == MIP_BEHIND_HORIZON)
		mip_raise_expired(xid);
}

/* An entry for an instance that has never come here. */
static MiptEntry *
entry_of_unknown(List *entries, int64 xinst)
{
	MiptEntry  *entry = palloc0(sizeof(MiptEntry));

	entry->xinst = xinst;
	entry->owner = entries ? ((MiptEntry *) linitial(entries))->owner : GetUserId();
	entry->since = GetCurrentTimestamp();
	return entry;
}

/*
 * Sees to it that an instance is never prepared here; false if it has been. So
 * anybody can get the definite refusal that permits to roll it back elsewhere:
 * the note is durable when the reply comes, and nobody else gets the family
 * lock before.
 */
bool
mip_family_refuse(const char *xid, int64 xinst, ArrayType *sites)
{
	List	   *entries;
	MiptEntry  *entry;

	mip_family_lock(xid, ExclusiveLock);
	entries = mipt_read(xid);
	check_may_refuse(xid, entries, sites);
	entry = mipt_find(entries, xinst);
	if (entry && ItemPointerIsValid(&entry->tid))
	{
		mip_family_unlock(xid, ExclusiveLock);
		if (entry->state == MIP_ABORTED)
			mip_make_durable();
		return entry->state == MIP_ABORTED;
	}
	if (entry)
	{
		mip_doom_one(xid, xinst);
		mip_evict_doomed(xid);
	}
	else
		entry = entry_of_unknown(entries, xinst);
	if (entry->sites == NULL)
		entry->sites = sites;
	mipt_insert_aborted(xid, entry);
	mip_family_noted(xid);
	ForceSyncCommit();
	return true;
}

int
mip_family_forget(const char *xid)
{
	List	   *entries;
	ListCell   *lc;
	int			n;

	mip_family_lock(xid, ExclusiveLock);
	entries = mipt_read(xid);
	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->state == MIP_ACTIVE || entry->state == MIP_PREPARED)
			ereport(ERROR,
					(errcode(ERRCODE_MIP_NOT_USABLE),
					 errmsg("family \"%s\" has not been decided", xid),
					 errdetail("Instance " INT64_FORMAT " is %s.", entry->xinst,
							   entry->state == MIP_ACTIVE ? "active" : "prepared"),
					 errhint("Commit or roll back its instances first.")));
	}
	n = mipt_delete(entries);
	/* others may act upon it; who has changed nothing must not keep them from it */
	if (n > 0)
		ForceSyncCommit();
	else
		mip_family_unlock(xid, ExclusiveLock);
	return n;
}
