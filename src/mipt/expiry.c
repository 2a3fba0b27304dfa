/*-------------------------------------------------------------------------
 *
 * expiry.c
 *	  Removing what nobody will ask for again: mip.acknowledge, mip.expire.
 *
 * An entry of a request over several sites may go only once the request is
 * committed at all of them: a site that has not heard of the commit yet finds
 * the winner by it. This site cannot know that; who acknowledges does. What has
 * no other site needs nobody's word.
 *
 * Of an acknowledged family one row stays, without texts; it refuses whatever
 * comes. mip.expire removes it as soon as the horizon does the same. Nothing does
 * that for XIDs without a time: their rows stay, unless the operator promises, by
 * mip.retention_timeless, that nobody acts upon them any more after so long.
 *
 * Both write when their transaction commits (books.c), and flush that commit:
 * others may act upon it (at another site) at once.
 *
 * mip.expire also does what is left of book-keeping (decide.c) after a crash: the
 * links of a winner, which may be large, would stay for as long as its entry.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/mip.h"
#include "base/stats.h"
#include "base/stop.h"
#include "base/xid.h"
#include "family/family_lock.h"
#include "family/sites.h"
#include "mipt/books.h"
#include "mipt/catalog.h"
#include "mipt/entry.h"
#include "mipt/expiry.h"
#include "mipt/horizon.h"
#include "mipt/mipt.h"
#include "mipt/rows.h"

/* ---- acknowledging ---- */

static void
strip(const char *xid, List *entries)
{
	MiptEntry  *committed = mipt_committed(entries);

	if (committed == NULL)
	{
		ListCell   *lc;

		/* aborted ones still keep their XINSTs from being used again */
		foreach(lc, entries)
			mipt_strip(xid, lfirst(lc));
		return;
	}
	mipt_strip(xid, committed);
	(void) mipt_delete(list_delete_ptr(list_copy(entries), committed));
}

/* The entry to be acknowledged, or NULL if there is none. */
static MiptEntry *
find_acknowledgeable(const char *xid, List *entries)
{
	MiptEntry  *committed = mipt_committed(entries);

	if (entries == NIL || (committed && committed->acknowledged))
		return NULL;
	if (committed == NULL || mipt_has_prepared(entries))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("family \"%s\" has not been committed here, or not been finished", xid),
				 errhint("Acknowledge a request when it is committed at every site.")));
	return committed;
}

static void
keep_acknowledgement(const char *xid, void *arg)
{
	List	   *entries = mipt_read_states(xid);

	if (find_acknowledgeable(xid, entries) == NULL)
		return;
	strip(xid, entries);
	ForceSyncCommit();
	mip_count(MIP_COUNT_ACKNOWLEDGED);
}

void
mip_family_acknowledge(const char *xid)
{
	MiptEntry  *entry;

	mipt_lock(xid, ShareLock);
	entry = find_acknowledgeable(xid, mipt_read_states(xid));
	mip_family_unlock();
	if (entry)
		mip_book(xid, MIP_EFFECT, keep_acknowledgement, NULL);
}

/* ---- looking for old rows ---- */

typedef struct OldRow
{
	char	   *xid;
	HeapTuple	tuple;
	TupleDesc	desc;
} OldRow;

/* False: enough. */
typedef bool (*old_row_callback) (const OldRow *row, void *arg);

static bool
row_flag(const OldRow *row, int attno)
{
	bool		isnull;

	return DatumGetBool(heap_getattr(row->tuple, attno, row->desc, &isnull));
}

static int
row_sites(const OldRow *row)
{
	bool		isnull;
	Datum		sites = heap_getattr(row->tuple, Anum_sites, row->desc, &isnull);

	return isnull ? 0 : mip_sites_count(DatumGetArrayTypeP(sites));
}

/*
 * Calls back for the rows that an index has for these keys, with a time or without:
 * committed ones, even if the transaction does not see them. With a snapshot of its own a
 * SERIALIZABLE transaction would have read them, and any role could keep others so from
 * entering theirs. Without one a row that somebody replaces meanwhile, which changes
 * nothing but what was noted of it, may come twice, or not this time.
 */
static bool
scan_index(MiptRelation which, int nkeys, ScanKey keys,
		   bool timed, old_row_callback callback, void *arg)
{
	Relation	rel = table_open(mipt_relid(MIPT_TABLE), AccessShareLock);
	Relation	index = index_open(mipt_relid(which), AccessShareLock);
	SysScanDesc scan;
	OldRow		row = {.desc = RelationGetDescr(rel)};
	bool		more = true;

	scan = systable_beginscan_ordered(rel, index, SnapshotSelf, nkeys, keys);
	while (more &&
		   (row.tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		bool		isnull;
		int64		time;

		CHECK_FOR_INTERRUPTS();
		row.xid = TextDatumGetCString(heap_getattr(row.tuple, Anum_xid, row.desc, &isnull));
		if (mip_xid_time(row.xid, &time) == timed)
			more = callback(&row, arg);
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return more;
}

/* Rows older than that by the time of their XID, which sorts like them */
static bool
scan_timed(int64 time, old_row_callback callback, void *arg)
{
	char		prefix[16];
	ScanKeyData key;

	snprintf(prefix, sizeof(prefix), "%08x-%04x", (unsigned int) (time >> 16),
			 (unsigned int) (time & 0xFFFF));
	ScanKeyInit(&key, Anum_xid, BTLessStrategyNumber, F_TEXT_LT, CStringGetTextDatum(prefix));
	return scan_index(MIPT_PKEY, 1, &key, true, callback, arg);
}

/* Rows of XIDs without one, older than that by their own */
static bool
scan_timeless(bool acknowledged, TimestampTz before, old_row_callback callback, void *arg)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], Anum_acknowledged, BTEqualStrategyNumber, F_BOOLEQ,
				BoolGetDatum(acknowledged));
	ScanKeyInit(&keys[1], Anum_since, BTLessStrategyNumber, F_TIMESTAMPTZ_LT,
				TimestampTzGetDatum(before));
	return scan_index(MIPT_TIMELESS, 2, keys, false, callback, arg);
}

/* Rows with texts that are older than so many seconds; and bare ones with a time */
static void
scan_old(int64 seconds, old_row_callback callback, void *arg)
{
	int64		time = Max(mip_time_ago(seconds), 0);

	if (scan_timed(time, callback, arg))
		(void) scan_timeless(false, mip_time_to_timestamp(time), callback, arg);
}

/* ---- removing ---- */

typedef struct Removal
{
	TimestampTz before;			/* what is older than that */
	bool		timeless;		/* XIDs without a time, too, and not just
								 * their texts */
} Removal;

typedef struct Expiring
{
	int			n;				/* families that may go */
	MemoryContext scratch;		/* for one family at a time */
	Removal		removal;
	int64		time;			/* of the youngest family that has one; or -1 */
} Expiring;

/* An XID without a time is as old as its youngest attempt. */
static bool
are_old(List *entries, TimestampTz before)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		if (((MiptEntry *) lfirst(lc))->since >= before)
			return false;
	}
	return true;
}

static bool
any_foreign(List *entries)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		if (mipt_is_foreign(lfirst(lc)))
			return true;
	}
	return false;
}

/* Nobody here, or elsewhere, needs to know any more how it ended? */
static bool
may_go(const char *xid, List *entries, TimestampTz before)
{
	MiptEntry  *committed = mipt_committed(entries);
	int64		time;

	Assert(mip_family_locked(xid, ShareLock));
	if (entries == NIL || mipt_has_prepared(entries) || any_foreign(entries))
		return false;
	if (!mip_xid_time(xid, &time) && !are_old(entries, before))
		return false;
	return committed == NULL || committed->acknowledged ||
		mip_sites_count(mipt_sites(committed)) <= 1;
}

#ifdef USE_ASSERT_CHECKING
static bool
is_behind_horizon(const char *xid)
{
	int64		time;

	return !mip_xid_time(xid, &time) || mip_xid_age(xid) == MIP_BEHIND_HORIZON;
}
#endif

/* Behind the horizon, which has been moved; or without one. */
static void
keep_removal(const char *xid, void *arg)
{
	Removal    *removal = arg;
	List	   *entries = mipt_peek(xid);
	int64		time;

	Assert(is_behind_horizon(xid)); /* [horizon-first] */
	if (!may_go(xid, entries, removal->before))
		return;
	if (removal->timeless || mip_xid_time(xid, &time))
		(void) mipt_delete(entries);
	else
		strip(xid, entries);
	ForceSyncCommit();
	mip_count(MIP_COUNT_EXPIRED);
	mip_stop_point("removed");
}

static void
book_removal(const char *xid, const Removal *removal)
{
	Removal    *arg = MemoryContextAlloc(TopTransactionContext, sizeof(Removal));

	*arg = *removal;
	mip_book(xid, MIP_REMOVAL, keep_removal, arg);
}

/* Books the removal of a family that may go. */
static bool
collect(const OldRow *row, void *arg)
{
	Expiring   *expiring = arg;
	MemoryContext old;
	int64		time;

	if (!row_flag(row, Anum_aborted) && !row_flag(row, Anum_acknowledged) &&
		row_sites(row) > 1)
		return true;

	/*
	 * of several rows, or by several calls; or somebody works on it: another
	 * time
	 */
	if (mip_is_booked(row->xid, keep_removal) ||
		!mip_family_lock_if_free(row->xid, ShareLock))
		return true;

	old = MemoryContextSwitchTo(expiring->scratch);
	if (may_go(row->xid, mipt_peek(row->xid), expiring->removal.before))
	{
		book_removal(row->xid, &expiring->removal);
		expiring->n++;
		if (mip_xid_time(row->xid, &time))
			expiring->time = Max(expiring->time, time);
	}
	mip_family_unlock();
	MemoryContextSwitchTo(old);
	MemoryContextReset(expiring->scratch);
	return expiring->n < MIP_EXPIRE_MAX;
}

/* Whole families first: what is left of the others are those whose texts go. */
static void
collect_timeless(Expiring *expiring)
{
	TimestampTz before = mip_time_to_timestamp(mip_time_ago(mip_retention_timeless));

	expiring->removal.before = before;
	expiring->removal.timeless = true;
	if (scan_timeless(true, before, collect, expiring))
		(void) scan_timeless(false, before, collect, expiring);
}

int
mip_expire_families(void)
{
	Expiring	expiring = {.time = -1};

	expiring.scratch = AllocSetContextCreate(CurrentMemoryContext, "pg_mip family",
											 ALLOCSET_DEFAULT_SIZES);
	if (mip_retention_timeless > 0)
		collect_timeless(&expiring);
	if (mip_retention > 0 && expiring.n < MIP_EXPIRE_MAX)
	{
		expiring.removal.before = mip_time_to_timestamp(mip_time_ago(mip_retention));
		expiring.removal.timeless = false;
		scan_old(mip_retention, collect, &expiring);
	}
	MemoryContextDelete(expiring.scratch);

	/*
	 * it may have been moved in vain, but never after the entries:
	 * [horizon-first]
	 */
	if (expiring.time >= 0)
		mip_advance_horizon(expiring.time);
	mip_stop_point("horizon");
	return expiring.n;
}

/* ---- what a crash has kept ---- */

static void
keep_no_links(const char *xid, void *arg)
{
	MiptEntry  *winner = mipt_committed(mipt_peek(xid));

	if (winner && mipt_has_links(winner))
		mipt_clear_links(winner);
}

/* False: somebody works on the family, or has done it meanwhile. */
static bool
book_links(const char *xid)
{
	MiptEntry  *winner;
	bool		kept;

	if (!mip_family_lock_if_free(xid, ShareLock))
		return false;
	winner = mipt_committed(mipt_peek(xid));
	kept = winner && mipt_has_links(winner);
	mip_family_unlock();
	if (kept)
		mip_book(xid, MIP_REMOVAL, keep_no_links, NULL);
	return kept;
}

int
mip_empty_kept_links(void)
{
	Relation	rel = table_open(mipt_relid(MIPT_TABLE), AccessShareLock);
	Relation	index = index_open(mipt_relid(MIPT_LINKED), AccessShareLock);
	MemoryContext family = AllocSetContextCreate(CurrentMemoryContext, "pg_mip family",
												 ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = CurrentMemoryContext;

	/* committed rows: so, of winners; see scan_index */
	SysScanDesc scan = systable_beginscan_ordered(rel, index, SnapshotSelf, 0, NULL);
	HeapTuple	row;
	int			n = 0;

	while (n < MIP_EXPIRE_MAX &&
		   (row = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(family);
		if (book_links(TextDatumGetCString(heap_getattr(row, Anum_xid, RelationGetDescr(rel),
														&isnull))))
			n++;
		MemoryContextSwitchTo(caller);
		MemoryContextReset(family);
	}
	systable_endscan_ordered(scan);
	MemoryContextDelete(family);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return n;
}

/* ---- what waits for an acknowledgement ---- */

typedef struct Finished
{
	List	   *found;
	int			at_most;
} Finished;

/* A row and what has replaced it have the same key. */
static bool
is_found(const Finished *finished, const char *xid)
{
	return finished->found != NIL &&
		strcmp(((MipFinished *) llast(finished->found))->xid, xid) == 0;
}

static bool
find_finished(const OldRow *row, void *arg)
{
	Finished   *finished = arg;
	MipFinished *entry;
	bool		isnull;
	Oid			owner = DatumGetObjectId(heap_getattr(row->tuple, Anum_owner, row->desc, &isnull));

	if (row_flag(row, Anum_aborted) || row_flag(row, Anum_acknowledged) ||
		row_sites(row) <= 1 || !has_privs_of_role(GetUserId(), owner) ||
		is_found(finished, row->xid))
		return true;
	entry = palloc(sizeof(MipFinished));
	entry->xid = row->xid;
	entry->xinst = DatumGetInt64(heap_getattr(row->tuple, Anum_xinst, row->desc, &isnull));
	entry->sites = DatumGetArrayTypePCopy(heap_getattr(row->tuple, Anum_sites, row->desc, &isnull));
	entry->owner = owner;
	entry->since = DatumGetTimestampTz(heap_getattr(row->tuple, Anum_since, row->desc, &isnull));
	finished->found = lappend(finished->found, entry);
	return list_length(finished->found) < finished->at_most;
}

List *
mip_finished_families(int64 seconds, int at_most)
{
	Finished	finished = {NIL, at_most};

	scan_old(seconds, find_finished, &finished);
	return finished.found;
}
