/*-------------------------------------------------------------------------
 *
 * mipt.c
 *	  The MIPT of a family: what its rows and the registry say together, and
 *	  to whom.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"

#include "base/mip.h"
#include "base/stop.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "family/refusal.h"
#include "mipt/entry.h"
#include "mipt/mipt.h"
#include "mipt/rows.h"

static int
compare_entries(const ListCell *a, const ListCell *b)
{
	int64		x = ((MiptEntry *) lfirst(a))->xinst;
	int64		y = ((MiptEntry *) lfirst(b))->xinst;

	return (x > y) - (x < y);
}

/* The entries, from those that are rows, and who is alive. */
static List *
with_living(List *living, List *entries)
{
	ListCell   *lc;

	foreach(lc, living)
	{
		MipInstance *inst = lfirst(lc);
		MiptEntry  *entry = mipt_find(entries, inst->xinst);

		if (entry == NULL && !MipInstanceIsPrepared(inst))
			entries = lappend(entries, mipt_entry_of(inst));
		else if (entry && TransactionIdEquals(entry->running, inst->xid))
		{
			entry->running = InvalidTransactionId;	/* it is its own */
			if (!MipInstanceIsPrepared(inst))
				entry->state = MIP_ACTIVE;	/* on its way to being prepared */
		}
	}
	list_sort(entries, compare_entries);
	return entries;
}

List *
mipt_peek(const char *xid)
{
	List	   *rows = mipt_rows(xid);

	return with_living(mip_family_instances(xid), rows);
}

static bool
may_see(const MiptEntry *entry)
{
	return has_privs_of_role(GetUserId(), entry->owner);
}

/* [owner-decides] */
static void
refuse_strangers(const char *xid, List *entries)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		if (!may_see(lfirst(lc)))
			mip_raise_stranger(xid);
	}
}

static bool
has_own_instance(List *living)
{
	ListCell   *lc;

	foreach(lc, living)
	{
		if (has_privs_of_role(GetUserId(), ((MipInstance *) lfirst(lc))->owner))
			return true;
	}
	return false;
}

/*
 * With a `look`, rows are looked for as for a new request, without opening their table.
 * Who will do so under the lock does not: he would wait there for who has locked it, and
 * keep others of the family waiting, that one too.
 */
static void
lock_family(const char *xid, LOCKMODE mode, MiptLook *look)
{
	List	   *living = mip_family_instances(xid);

	/* most callers ask for what they know to be alive */
	if (!has_own_instance(living))
	{
		List	   *rows = look ? mipt_rows_of_new(xid, &look->note) : mipt_rows(xid);

		if (look)
			look->none = rows == NIL;
		refuse_strangers(xid, with_living(living, rows));
		mip_stop_point("looked");
	}
	mip_family_lock(xid, mode);
}

void
mipt_lock(const char *xid, LOCKMODE mode)
{
	lock_family(xid, mode, NULL);
}

MiptLook
mipt_lock_new(const char *xid)
{
	MiptLook	look = {.writes = mip_family_writes(xid)};

	lock_family(xid, ShareLock, &look);
	return look;
}

#ifdef USE_ASSERT_CHECKING
/* Whoever brings rows without the lock may do it at any time. */
static bool
has_only_foreign_rows(const char *xid)
{
	ListCell   *lc;

	foreach(lc, mipt_peek(xid))
	{
		MiptEntry  *entry = lfirst(lc);

		if (ItemPointerIsValid(&entry->tid) && !mipt_is_foreign(entry))
			return false;
	}
	return true;
}
#endif

List *
mipt_read_again(const char *xid, MiptLook *look)
{
	List	   *entries;

	Assert(mip_family_locked(xid, ShareLock));
	/* [looked-once] */
	if (!look->none || look->writes != mip_family_writes(xid))
	{
		look->note = 0;
		return mipt_read(xid);
	}
	Assert(look->note != 0 || has_only_foreign_rows(xid) || look->writes != mip_family_writes(xid));
	entries = with_living(mip_family_instances(xid), NIL);
	refuse_strangers(xid, entries);
	return entries;
}

List *
mipt_read_states(const char *xid)
{
	List	   *entries;
	ListCell   *lc;

	Assert(mip_family_locked(xid, ShareLock));
	entries = mipt_peek(xid);
	mip_stop_point("peeked");
	refuse_strangers(xid, entries);
	foreach(lc, entries)
	{
		if (mipt_is_foreign(lfirst(lc)))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("another transaction is writing to the MIPT entries of family \"%s\"", xid),
					 errdetail("As when a dump is being restored."),
					 errhint("Try again when it has ended.")));
	}
	return entries;
}

List *
mipt_read(const char *xid)
{
	List	   *entries = mipt_read_states(xid);
	ListCell   *lc;

	foreach(lc, entries)
		mipt_load(lfirst(lc));
	return entries;
}

MiptEntry *
mipt_read_in_doubt(const char *xid, int64 xinst, void (*load) (MiptEntry *entry))
{
	MiptEntry  *entry = mipt_find(mipt_peek(xid), xinst);

	mip_stop_point("peeked");
	if (entry == NULL || entry->state != MIP_PREPARED || mipt_is_foreign(entry) || !may_see(entry))
		return NULL;
	return load == NULL || mipt_load_if_there(entry, load) ? entry : NULL;
}
