/*-------------------------------------------------------------------------
 *
 * decide.c
 *	  Deciding a family at this site: mip.commit, mip.rollback, mip.refuse,
 *	  mip.forget.
 *
 * mip.commit, step by step, and why a crash between any two of them is
 * harmless [hand-over-prefix]. All of it runs under the exclusive family lock, which is given
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
 *	   that is not wanted (unflushed.c): a crash then goes back to 4 or before.
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
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/memutils.h"

#include "base/gid.h"
#include "base/mip.h"
#include "base/stats.h"
#include "base/stop.h"
#include "base/xid.h"
#include "family/eviction.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "mipt/books.h"
#include "mipt/durable.h"
#include "mipt/entry.h"
#include "mipt/horizon.h"
#include "mipt/mipt.h"
#include "mipt/rows.h"
#include "mipt/rules.h"
#include "tableam/handover.h"
#include "transam/decide.h"
#include "transam/unflushed.h"

/* What a decision has left to be noted. */
typedef struct Decision
{
	List	   *losers;
	bool		committed;		/* a winner, or was just one rolled back? */
} Decision;

/*
 * COMMIT PREPARED and ROLLBACK PREPARED insist on the preparing role itself or
 * a superuser; here membership, which mipt_read has checked, is enough.
 */
static void
end_prepared(const char *xid, MiptEntry *entry, bool commit, bool flush)
{
	char		gid[GIDSIZE];
	Oid			user;
	int			context;
	MemoryContext old = CurrentMemoryContext;
	SerializableXactHandle own = ShareSerializableXact();

	Assert(mip_family_locked(xid, ExclusiveLock));
	Assert(entry->state == MIP_PREPARED);	/* [only-prepared] */
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
	 * To finish a serializable instance PostgreSQL puts it in the place of
	 * our own; COMMIT PREPARED has none, but we are a query.
	 */
	if (ShareSerializableXact() != own)
		AttachSerializableXact(own);
	mip_stop_point("finished");
	MemoryContextSwitchTo(old);

	entry->state = commit ? MIP_COMMITTED : MIP_ABORTED;
	mip_count(commit ? MIP_COUNT_COMMITTED : MIP_COUNT_ROLLED_BACK);
	mip_family_finished(xid, entry->xinst);
}

/* [first-header-decides] */
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

	/* [one-winner] */
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
			end_prepared(xid, entry, false, flush);
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

static void
note_aborted(const char *xid, const Decision *decision, List *entries)
{
	ListCell   *lc;

	foreach(lc, decision->losers)
	{
		MiptEntry  *loser = lfirst(lc);
		MiptEntry  *entry = mipt_find(entries, loser->xinst);

		if (entry == NULL || !ItemPointerIsValid(&entry->tid))
			mipt_insert_aborted(xid, loser);
	}
	mip_family_noted(xid);
}

static void
keep_notes(const char *xid, void *arg)
{
	Decision   *decision = arg;

	/* meanwhile, somebody else may have done it, or want to know no more */
	List	   *entries = mipt_read(xid);
	MiptEntry  *winner = mipt_committed(entries);

	if (winner ? !winner->acknowledged : !decision->committed)
		note_aborted(xid, decision, entries);
	if (winner && mipt_has_links(winner))
		mipt_clear_links(winner);
}

/*
 * Ends a decision, but for what has to be noted. Only that lives until then: one
 * statement may decide many families, with large texts. While there is no winner,
 * that an instance has been given up is for others to know.
 */
static void
close_books(const char *xid, List *losers, const MiptEntry *winner)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	if (losers || (winner && mipt_has_links(winner)))
	{
		Decision   *decision = palloc0(sizeof(Decision));
		ListCell   *lc;

		foreach(lc, losers)
			decision->losers = lappend(decision->losers, mipt_copy_loser(lfirst(lc)));
		decision->committed = winner != NULL;
		mip_book(xid, winner ? MIP_NOTE : MIP_EFFECT, keep_notes, decision);
	}
	MemoryContextSwitchTo(old);
	mip_family_unlock();
}

/* All that a commit has to know; without texts of who is alone, if they are not wanted. */
static List *
read_for_commit(const char *xid, int64 winner, bool texts)
{
	MipInstance *alone = texts ? NULL : mip_alone(xid, winner);

	/* whose it is was looked at before the lock was had [owner-decides] */
	if (alone && has_privs_of_role(GetUserId(), alone->owner))
		return list_make1(mipt_entry_of(alone));
	return mipt_read(xid);
}

static List *
commit_family(const char *xid, int64 winner, bool texts)
{
	List	   *entries;
	MiptEntry  *entry;
	List	   *losers;
	bool		again;

	mipt_lock(xid, ExclusiveLock);
	entries = read_for_commit(xid, winner, texts);
	entry = validate(xid, entries, winner);
	again = entry->state == MIP_COMMITTED;
	mip_doom_others(xid, winner);
	mip_stop_point("doomed");
	Assert(mip_others_are_doomed(xid, winner)); /* [doomed-before-header] */
	if (!again)
	{
		mip_hand_over(entry->links);
		mip_stop_point("handed over");

		/*
		 * what our own transaction has counted by now does not end like the
		 * losers
		 */
		AtEOXact_PgStat(true, true);
	}
	losers = roll_back_losers(xid, entries, winner, again);
	mip_stop_point("losers");
	if (!again)
	{
		Assert(mipt_committed(entries) == NULL);	/* [one-winner] */
		end_prepared(xid, entry, true, !mip_commits_unflushed());
		mip_stop_point("committed");
	}
	mip_evict_doomed(xid);
	mip_stop_point("evicted");
	close_books(xid, losers, entry);
	if (again)
		mip_wait_until_durable();
	return entries;
}

List *
mip_family_commit(const char *xid, int64 winner)
{
	return commit_family(xid, winner, true);
}

List *
mip_family_commit_beside(const char *xid, int64 winner)
{
	return commit_family(xid, winner, false);
}

static void
give_up(const char *xid, List *entries, MiptEntry *entry)
{
	if (entry->state == MIP_COMMITTED)
		mipt_raise_committed(xid, entry);
	if (entry->state == MIP_PREPARED)
	{
		/*
		 * [first-header-decides], but once another has committed VACUUM may
		 * have had the base versions
		 */
		if (!mipt_committed(entries) && mip_hand_over_begun(entry->links))
			ereport(ERROR,
					(errcode(ERRCODE_MIP_NOT_USABLE),
					 errmsg("instance " INT64_FORMAT " of family \"%s\" is being committed",
							entry->xinst, xid),
					 errhint("Call mip.commit to complete it.")));
		end_prepared(xid, entry, false, true);
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
 * some site has definitely refused it: nothing else ends what is prepared, but a
 * winner's commit. [prepared-stays]
 */
List *
mip_family_rollback(const char *xid, int64 loser)
{
	List	   *entries;
	MiptEntry  *entry;
	List	   *losers = NIL;

	mipt_lock(xid, ExclusiveLock);
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

/*
 * Other instances may name other sites: as long as they stand in its way here,
 * this one stands in theirs elsewhere, and only a roll-back ends that.
 */
static void
check_may_refuse(const char *xid, List *entries, int64 xinst, ArrayType *sites)
{
	MiptEntry  *entry = mipt_find(entries, xinst);

	mipt_check_undecided(xid, entries);
	if (entry)
		mipt_check_sites(xid, list_make1(entry), sites);
	/* it may have been committed, and removed */
	if (!mipt_has_prepared(entries) && mip_xid_age(xid) == MIP_BEHIND_HORIZON)
		mip_raise_expired(xid);
}

typedef struct Refusal
{
	int64		xinst;
	ArrayType  *sites;
	Oid			owner;			/* of the family, if it has none yet */
} Refusal;

/* An entry for an instance that has never come here. */
static MiptEntry *
entry_of_unknown(List *entries, const Refusal *refusal)
{
	MiptEntry  *entry = palloc0(sizeof(MiptEntry));

	entry->xinst = refusal->xinst;
	entry->owner = entries ? ((MiptEntry *) linitial(entries))->owner : refusal->owner;
	entry->since = GetCurrentTimestamp();
	return entry;
}

static void
keep_refusal(const char *xid, void *arg)
{
	Refusal    *refusal = arg;
	List	   *entries = mipt_read(xid);
	MiptEntry  *entry = mipt_find(entries, refusal->xinst);

	check_may_refuse(xid, entries, refusal->xinst, refusal->sites);
	if (entry && entry->state == MIP_PREPARED)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("instance " INT64_FORMAT " of family \"%s\" was prepared at the same moment",
						refusal->xinst, xid),
				 errhint("Call mip.refuse again.")));
	if (entry && ItemPointerIsValid(&entry->tid))
	{
		mip_make_durable();		/* somebody else's note */
		return;
	}
	if (entry)
	{
		mip_doom_one(xid, refusal->xinst);
		mip_evict_doomed(xid);
	}
	else
		entry = entry_of_unknown(entries, refusal);
	if (entry->sites == NULL)
		entry->sites = refusal->sites;
	mipt_insert_aborted(xid, entry);
	mip_family_noted(xid);
	ForceSyncCommit();			/* [refusal-stays] */
}

static void
book_refusal(const char *xid, int64 xinst, ArrayType *sites)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	Refusal    *refusal = palloc(sizeof(Refusal));

	refusal->xinst = xinst;
	refusal->sites = DatumGetArrayTypePCopy(PointerGetDatum(sites));
	refusal->owner = GetUserId();
	MemoryContextSwitchTo(old);
	mip_book(xid, MIP_EFFECT, keep_refusal, refusal);
}

/*
 * Sees to it that an instance is never prepared here; false if it has been. So
 * anybody can get the definite refusal that permits to roll it back elsewhere:
 * the note is durable when the reply comes, and nobody else gets the family
 * lock before. One that is active is doomed at once, so it cannot be prepared
 * between answer and note. [refusal-stays]
 */
bool
mip_family_refuse(const char *xid, int64 xinst, ArrayType *sites)
{
	List	   *entries;
	MiptEntry  *entry;

	mipt_lock(xid, ExclusiveLock);
	entries = mipt_read(xid);
	check_may_refuse(xid, entries, xinst, sites);
	entry = mipt_find(entries, xinst);
	if (entry && ItemPointerIsValid(&entry->tid))
	{
		mip_family_unlock();
		if (entry->state == MIP_ABORTED)
			mip_make_durable();
		return entry->state == MIP_ABORTED;
	}
	if (entry)
		mip_doom_one(xid, xinst);
	mip_family_unlock();
	book_refusal(xid, xinst, sites);
	return true;
}

static int
count_rows(List *entries)
{
	ListCell   *lc;
	int			n = 0;

	foreach(lc, entries)
	{
		if (ItemPointerIsValid(&((MiptEntry *) lfirst(lc))->tid))
			n++;
	}
	return n;
}

static void
check_decided(const char *xid, List *entries)
{
	ListCell   *lc;

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
}

static void
keep_nothing(const char *xid, void *arg)
{
	List	   *entries = mipt_read_states(xid);

	check_decided(xid, entries);
	(void) mipt_delete(entries);
	/* others may act upon it */
	ForceSyncCommit();
}

int
mip_family_forget(const char *xid)
{
	List	   *entries;
	int			n;

	mipt_lock(xid, ShareLock);
	entries = mipt_read_states(xid);
	check_decided(xid, entries);
	mip_family_unlock();
	n = count_rows(entries);
	if (n > 0)
		mip_book(xid, MIP_EFFECT, keep_nothing, NULL);
	return n;
}
