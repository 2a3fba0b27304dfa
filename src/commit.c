/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  Deciding a family at this site: mip.commit, mip.rollback, mip.forget.
 *
 * mip.commit, step by step, and why a crash between any two of them is
 * harmless. All of it runs under the exclusive family lock.
 *
 *	1. Validate. Nothing has changed.
 *	2. Doom the active siblings: they may no longer prepare, and return no
 *	   more rows. In memory only; a crash ends them anyway.
 *	3. Hand over the winner's overlay. The winner stays prepared, so a crash
 *	   finds it again; whoever retries hands over the rest. Another winner is
 *	   refused from the first header on.
 *	4. Commit the winner. Durable when FinishPreparedTransaction returns.
 *	5. Roll back the prepared losers. A crash leaves some prepared; a retry
 *	   finds the winner committed and goes on here.
 *	6. End the doomed ones' statements; note the losers; remove replaced TOAST
 *	   values. Book-keeping of the caller's own transaction, repeated by a
 *	   retry as long as the winner's links are there.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "catalog/pg_authid_d.h"
#include "commit.h"
#include "handover.h"
#include "miscadmin.h"
#include "overlay.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

/*
 * COMMIT PREPARED and ROLLBACK PREPARED insist on the preparing role itself or
 * a superuser; here membership, which mipt_read has checked, is enough.
 */
static void
finish(const char *xid, MiptEntry *entry, bool commit)
{
	char		gid[GIDSIZE];
	Oid			user;
	int			context;
	MemoryContext old = CurrentMemoryContext;

	mip_gid(gid, xid, entry->xinst);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, context | SECURITY_LOCAL_USERID_CHANGE);
	FinishPreparedTransaction(gid, commit);
	SetUserIdAndSecContext(user, context);
	MemoryContextSwitchTo(old);

	entry->state = commit ? MIP_COMMITTED : MIP_ABORTED;
	mip_family_transition(xid, entry->xinst);
}

static void
refuse_other_hand_over(List *entries, int64 winner)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->state == MIP_PREPARED && entry->xinst != winner &&
			mip_hand_over_begun(entry->links))
			ereport(ERROR,
					(errcode(ERRCODE_MIP_COMMITTED),
					 errmsg("instance " INT64_FORMAT " of this family is being committed",
							entry->xinst),
					 errdetail_internal("{\"xinst\": " INT64_FORMAT ", \"result\": null}",
										entry->xinst),
					 errhint("Call mip.commit for that instance.")));
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
			mipt_raise_committed(committed);
		return committed;
	}
	if (entry == NULL || entry->state != MIP_PREPARED)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("instance " INT64_FORMAT " of family \"%s\" is not prepared here",
						winner, xid),
				 errhint("Only an instance that is prepared at every site may be committed.")));
	refuse_other_hand_over(entries, winner);
	return entry;
}

static void
roll_back_losers(const char *xid, List *entries, int64 winner)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->xinst == winner)
			continue;
		if (entry->state == MIP_PREPARED)
		{
			finish(xid, entry, false);
			mipt_insert_aborted(xid, entry);
			mip_crash_point("loser");
		}
		else if (entry->state == MIP_ACTIVE)
		{
			entry->state = MIP_ABORTED;
			mipt_insert_aborted(xid, entry);
		}
	}
}

List *
mip_family_commit(const char *xid, int64 winner)
{
	List	   *entries;
	MiptEntry  *entry;

	mip_family_lock(xid, ExclusiveLock);
	entries = mipt_read(xid);
	entry = validate(xid, entries, winner);
	mip_doom_others(xid, winner);
	mip_crash_point("doomed");
	if (entry->state == MIP_PREPARED)
	{
		mip_hand_over(entry->links);
		mip_crash_point("handed over");
		finish(xid, entry, true);
		mip_crash_point("committed");
	}
	roll_back_losers(xid, entries, winner);
	mip_evict_doomed(xid);
	if (entry->links)
	{
		mip_remove_replaced_toast(entry->links);
		mipt_clear_links(entry);
	}
	return entries;
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

	mip_family_lock(xid, ExclusiveLock);
	entries = mipt_read(xid);
	entry = mipt_find(entries, loser);
	if (entry == NULL || entry->state == MIP_ABORTED)
		return entries;
	if (entry->state == MIP_COMMITTED)
		mipt_raise_committed(entry);
	if (entry->state == MIP_PREPARED)
	{
		/* once another has committed, VACUUM may have had the base versions */
		if (!mipt_committed(entries) && mip_hand_over_begun(entry->links))
			ereport(ERROR,
					(errcode(ERRCODE_MIP_NOT_USABLE),
					 errmsg("instance " INT64_FORMAT " of family \"%s\" is being committed",
							loser, xid),
					 errhint("Call mip.commit to complete it.")));
		finish(xid, entry, false);
	}
	else
	{
		mip_doom_one(xid, loser);
		mip_evict_doomed(xid);
		entry->state = MIP_ABORTED;
	}
	mipt_insert_aborted(xid, entry);
	return entries;
}

int
mip_family_forget(const char *xid)
{
	List	   *entries;
	ListCell   *lc;

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
		if (entry->links)
			mip_remove_replaced_toast(entry->links);
	}
	return mipt_delete(entries);
}
