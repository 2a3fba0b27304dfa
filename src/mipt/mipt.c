/*-------------------------------------------------------------------------
 *
 * mipt.c
 *	  The MIPT: rows of the table mip.mipt.
 *
 * An instance inserts its own row in the transaction that it prepares, so the
 * row is exactly as durable and as visible as the prepare is. Others read it
 * with a dirty snapshot: a row whose transaction is in progress belongs to a
 * prepared instance (or to one that is about to be, whose backend then holds
 * the family lock).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation_d.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/mip.h"
#include "base/stop.h"
#include "base/xid.h"
#include "family/current.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "family/refusal.h"
#include "mipt/catalog.h"
#include "mipt/mipt.h"

PG_FUNCTION_INFO_V1(mip_keep_links);

static Relation
open_mipt(LOCKMODE mode)
{
	return table_open(mipt_relid(MIPT_TABLE), mode);
}

/* ---- reading ---- */

/* Out of line values of a row are read later, if at all: see load. */
static MiptEntry *
entry_of_row(HeapTuple tup, TupleDesc desc, TransactionId running)
{
	MiptEntry  *entry = palloc0(sizeof(MiptEntry));
	bool		isnull;

	entry->xinst = DatumGetInt64(heap_getattr(tup, Anum_xinst, desc, &isnull));
	entry->owner = DatumGetObjectId(heap_getattr(tup, Anum_owner, desc, &isnull));
	entry->since = DatumGetTimestampTz(heap_getattr(tup, Anum_since, desc, &isnull));
	entry->acknowledged = DatumGetBool(heap_getattr(tup, Anum_acknowledged, desc, &isnull));
	entry->tid = tup->t_self;
	entry->row = heap_copytuple(tup);
	entry->running = running;
	if (DatumGetBool(heap_getattr(tup, Anum_aborted, desc, &isnull)))
		entry->state = MIP_ABORTED;
	else
		entry->state = TransactionIdIsValid(running) ? MIP_PREPARED : MIP_COMMITTED;
	return entry;
}

static List *
read_rows(const char *xid)
{
	Relation	rel = open_mipt(AccessShareLock);
	Relation	index = index_open(mipt_relid(MIPT_PKEY), AccessShareLock);
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tup;
	List	   *rows = NIL;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, Anum_xid, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(xid));
	scan = systable_beginscan_ordered(rel, index, &dirty, 1, &key);

	/*
	 * who is deleting a row is no less a stranger, for whom we would wait in
	 * the end
	 */
	while ((tup = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
		rows = lappend(rows, entry_of_row(tup, RelationGetDescr(rel),
										  TransactionIdIsValid(dirty.xmin) ? dirty.xmin : dirty.xmax));
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return rows;
}

/*
 * Values that are stored out of line. What keeps them is the family lock, or who
 * calls is ready to find them gone (load_if_there): a row in progress, once it has been rolled back, is dead to VACUUM at once, whatever
 * snapshots there are, and so are they. (Those of committed rows stay for as long
 * as the caller's snapshot.)
 */
static void *
load_column(const MiptEntry *entry, int attno, TupleDesc desc)
{
	bool		isnull;
	Datum		datum = heap_getattr(entry->row, attno, desc, &isnull);

	return isnull ? NULL : PG_DETOAST_DATUM_COPY(datum);
}

static void
load(MiptEntry *entry)
{
	Relation	rel;
	TupleDesc	desc;

	if (entry->row == NULL)
		return;
	rel = open_mipt(AccessShareLock);
	desc = RelationGetDescr(rel);
	entry->request = load_column(entry, Anum_request, desc);
	entry->result = load_column(entry, Anum_result, desc);
	entry->sites = load_column(entry, Anum_sites, desc);
	entry->links = load_column(entry, Anum_links, desc);
	table_close(rel, AccessShareLock);
}

ArrayType *
mipt_sites(const MiptEntry *entry)
{
	Relation	rel;
	ArrayType  *sites;

	if (entry->sites || entry->row == NULL)
		return entry->sites;
	rel = open_mipt(AccessShareLock);
	sites = load_column(entry, Anum_sites, RelationGetDescr(rel));
	table_close(rel, AccessShareLock);
	return sites;
}

static bool
has_been_rolled_back(HeapTuple row)
{
	TransactionId xmin = HeapTupleHeaderGetXmin(row->t_data);

	return !TransactionIdIsInProgress(xmin) && !TransactionIdDidCommit(xmin);
}

/*
 * The same without the family lock. False if the instance has been rolled back,
 * and its values may be gone: that is an error, which needs a subtransaction.
 */
static bool
load_if_there(MiptEntry *entry)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool there = true;

	Assert(IsTransactionState());
	if (!HeapTupleHasExternal(entry->row))
	{
		load(entry);
		return true;
	}
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		load(entry);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (error->sqlerrcode != ERRCODE_DATA_CORRUPTED || !has_been_rolled_back(entry->row))
			ReThrowError(error);
		FreeErrorData(error);
		there = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return there;
}

bool
mipt_exists(void)
{
	return OidIsValid(get_extension_oid("pg_mip", true));
}

bool
mipt_is_pending(const char *xid, int64 xinst)
{
	Relation	rel;
	SnapshotData dirty;
	ScanKeyData keys[2];
	SysScanDesc scan;
	bool		pending;

	if (!mipt_exists())
		return false;
	rel = open_mipt(AccessShareLock);
	InitDirtySnapshot(dirty);
	ScanKeyInit(&keys[0], Anum_xid, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(xid));
	ScanKeyInit(&keys[1], Anum_xinst, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(xinst));
	scan = systable_beginscan(rel, mipt_relid(MIPT_PKEY), true, &dirty, 2, keys);
	pending = HeapTupleIsValid(systable_getnext(scan)) &&
		TransactionIdIsValid(dirty.xmin);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return pending;
}

static void *
copy_varlena(const void *value)
{
	return value ? memcpy(palloc(VARSIZE_ANY(value)), value, VARSIZE_ANY(value)) : NULL;
}

MiptEntry *
mipt_copy_loser(const MiptEntry *entry)
{
	MiptEntry  *copy = palloc(sizeof(MiptEntry));

	*copy = *entry;
	copy->request = copy_varlena(entry->request);
	copy->result = copy_varlena(entry->result);
	copy->sites = copy_varlena(entry->sites);
	copy->links = NULL;
	copy->row = NULL;
	return copy;
}

static int
compare_entries(const ListCell *a, const ListCell *b)
{
	int64		x = ((MiptEntry *) lfirst(a))->xinst;
	int64		y = ((MiptEntry *) lfirst(b))->xinst;

	return (x > y) - (x < y);
}

MiptEntry *
mipt_entry_of(const MipInstance *inst)
{
	MiptEntry  *entry = palloc0(sizeof(MiptEntry));

	entry->xinst = inst->xinst;
	if (MipInstanceIsPrepared(inst))
		entry->state = MIP_PREPARED;
	else						/* a doomed one can do nothing any more but
								 * end */
		entry->state = inst->doomed ? MIP_ABORTED : MIP_ACTIVE;
	entry->sites = inst->site_set;
	entry->owner = inst->owner;
	entry->since = inst->since;
	ItemPointerSetInvalid(&entry->tid);
	return entry;
}

List *
mipt_peek(const char *xid)
{
	List	   *entries = read_rows(xid);
	ListCell   *lc;

	foreach(lc, mip_family_instances(xid))
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

bool
mipt_is_foreign(const MiptEntry *entry)
{
	return TransactionIdIsValid(entry->running);
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
has_own_instance(const char *xid)
{
	ListCell   *lc;

	foreach(lc, mip_family_instances(xid))
	{
		if (has_privs_of_role(GetUserId(), ((MipInstance *) lfirst(lc))->owner))
			return true;
	}
	return false;
}

void
mipt_lock(const char *xid, LOCKMODE mode)
{
	/* most callers ask for what they know to be alive */
	if (!has_own_instance(xid))
		refuse_strangers(xid, mipt_peek(xid));
	mip_family_lock(xid, mode);
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
		load(lfirst(lc));
	return entries;
}

MiptEntry *
mipt_read_in_doubt(const char *xid, int64 xinst)
{
	MiptEntry  *entry = mipt_find(mipt_peek(xid), xinst);

	mip_stop_point("peeked");
	if (entry == NULL || entry->state != MIP_PREPARED || mipt_is_foreign(entry) || !may_see(entry))
		return NULL;
	return load_if_there(entry) ? entry : NULL;
}

MiptEntry *
mipt_find(List *entries, int64 xinst)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->xinst == xinst)
			return entry;
	}
	return NULL;
}

MiptEntry *
mipt_committed(List *entries)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->state == MIP_COMMITTED)
			return entry;
	}
	return NULL;
}

bool
mipt_has_prepared(List *entries)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		if (((MiptEntry *) lfirst(lc))->state == MIP_PREPARED)
			return true;
	}
	return false;
}

/* ---- writing ---- */

MiptEntry *
mipt_own_entry(MipState state)
{
	MiptEntry  *entry;

	Assert(mip_in_transaction());
	entry = mipt_entry_of(mip_mine.inst);
	entry->state = state;
	entry->request = mip_mine.request;
	entry->result = mip_mine.result;
	entry->sites = mip_mine.sites;
	return entry;
}

static void
set_varlena(Datum *values, bool *nulls, int attno, const void *value)
{
	values[attno - 1] = PointerGetDatum(value);
	nulls[attno - 1] = value == NULL;
}

/* Does a row belong in this partial index? Their predicates. */
static bool
belongs_in(Oid index, HeapTuple tup, TupleDesc desc)
{
	bool		isnull;
	int64		time;

	if (index == mipt_relid(MIPT_LINKED))
		return !heap_attisnull(tup, Anum_links, desc);
	/* mipt_timeless */
	return !mip_xid_time(TextDatumGetCString(heap_getattr(tup, Anum_xid, desc, &isnull)), &time);
}

/*
 * CatalogTupleInsert, but not for logical decoding: a subscriber has families
 * of its own. For the same reason there are no updates of rows, which would be
 * decoded. Deletes are, but without a replica identity they say nothing.
 */
static void
insert_tuple(Relation rel, HeapTuple tup)
{
	CatalogIndexState indexes = CatalogOpenIndexes(rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsHeapTuple);

	heap_insert(rel, tup, GetCurrentCommandId(true), HEAP_INSERT_NO_LOGICAL, NULL);
	ExecStoreHeapTuple(tup, slot, false);
	for (int i = 0; i < indexes->ri_NumIndices; i++)
	{
		Relation	index = indexes->ri_IndexRelationDescs[i];
		IndexInfo  *info = indexes->ri_IndexRelationInfo[i];
		Datum		values[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		if (info->ii_Predicate != NIL &&
			!belongs_in(RelationGetRelid(index), tup, RelationGetDescr(rel)))
			continue;
		FormIndexDatum(info, slot, NULL, values, nulls);
		index_insert(index, values, nulls, &tup->t_self, rel,
					 index->rd_index->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
					 false, info);
	}
	ExecDropSingleTupleTableSlot(slot);
	CatalogCloseIndexes(indexes);
}

static void
insert_row(const char *xid, const MiptEntry *entry, const bytea *links)
{
	Relation	rel = open_mipt(RowExclusiveLock);
	Datum		values[Natts_mipt];
	bool		nulls[Natts_mipt] = {false};
	HeapTuple	tup;

	values[Anum_xid - 1] = CStringGetTextDatum(xid);
	values[Anum_xinst - 1] = Int64GetDatum(entry->xinst);
	set_varlena(values, nulls, Anum_request, entry->request);
	set_varlena(values, nulls, Anum_result, entry->result);
	set_varlena(values, nulls, Anum_sites, entry->sites);
	values[Anum_owner - 1] = ObjectIdGetDatum(entry->owner);
	values[Anum_since - 1] = TimestampTzGetDatum(entry->since);
	values[Anum_aborted - 1] = BoolGetDatum(entry->state == MIP_ABORTED);
	set_varlena(values, nulls, Anum_links, links);
	values[Anum_acknowledged - 1] = BoolGetDatum(entry->acknowledged);
	Assert(mip_family_locked(xid, ExclusiveLock));
	tup = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	insert_tuple(rel, tup);
	heap_freetuple(tup);
	table_close(rel, NoLock);
}

void
mipt_insert_own(bytea *links)
{
	Assert(mip_mine.ending != MIP_RUNNING);
	insert_row(mip_mine.xid, mipt_own_entry(MIP_PREPARED), links);
}

void
mipt_insert_aborted(const char *xid, const MiptEntry *entry)
{
	MiptEntry	aborted = *entry;

	aborted.state = MIP_ABORTED;
	insert_row(xid, &aborted, NULL);
}

#ifdef USE_ASSERT_CHECKING
/* Is the family of this row locked exclusively? */
static bool
is_mine_to_write(const MiptEntry *entry, TupleDesc desc)
{
	bool		isnull;

	return mip_family_locked(TextDatumGetCString(heap_getattr(entry->row, Anum_xid, desc, &isnull)),
							 ExclusiveLock);
}
#endif

bool
mipt_has_links(const MiptEntry *entry)
{
	return entry->row && !heap_attisnull(entry->row, Anum_links, NULL);
}

void
mipt_clear_links(const MiptEntry *entry)
{
	Relation	rel = open_mipt(RowExclusiveLock);
	Datum		values[Natts_mipt] = {0};
	bool		nulls[Natts_mipt] = {false};
	bool		replace[Natts_mipt] = {false};
	HeapTupleData old;
	HeapTuple	new;
	Buffer		buffer;

	Assert(is_mine_to_write(entry, RelationGetDescr(rel)));
	old.t_self = entry->tid;
	if (!heap_fetch(rel, SnapshotAny, &old, &buffer, false))
		elog(ERROR, "pg_mip: the MIPT entry is gone");
	nulls[Anum_links - 1] = replace[Anum_links - 1] = true;
	new = heap_modify_tuple(&old, RelationGetDescr(rel), values, nulls, replace);
	if (HeapTupleHasExternal(new))
		new = toast_flatten_tuple(new, RelationGetDescr(rel));
	ReleaseBuffer(buffer);
	CatalogTupleDelete(rel, &old.t_self);
	insert_tuple(rel, new);
	table_close(rel, NoLock);
}

void
mipt_strip(const char *xid, const MiptEntry *entry)
{
	MiptEntry	bare = *entry;
	Relation	rel = open_mipt(RowExclusiveLock);

	Assert(is_mine_to_write(entry, RelationGetDescr(rel)));
	bare.request = bare.result = NULL;
	bare.sites = mipt_sites(entry);
	bare.acknowledged = true;
	CatalogTupleDelete(rel, &bare.tid);
	table_close(rel, NoLock);
	insert_row(xid, &bare, NULL);
	/* the same statement may go on to delete it */
	CommandCounterIncrement();
}

/* Deletes the rows of these entries; returns how many there were. */
int
mipt_delete(List *entries)
{
	Relation	rel = open_mipt(RowExclusiveLock);
	ListCell   *lc;
	int			n = 0;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (!ItemPointerIsValid(&entry->tid))
			continue;
		Assert(is_mine_to_write(entry, RelationGetDescr(rel)));
		CatalogTupleDelete(rel, &entry->tid);
		n++;
	}
	table_close(rel, NoLock);
	return n;
}

/* ---- rows that come in by SQL ---- */

static bool rows_came_in;		/* in the current transaction */

/*
 * Who has begun before a row was there looks again. Who ends before it is about to
 * be committed has ended before it came.
 */
static void
note_commit(XactEvent event, void *arg)
{
	if (!rows_came_in)
		return;
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		mip_families_disturbed();
	else
		rows_came_in = false;
}

/* It is about to be inserted: who has begun already may learn of it sooner. */
static void
note_row(HeapTuple row, TupleDesc desc)
{
	static bool registered = false;
	bool		isnull;
	Datum		datum = heap_getattr(row, Anum_xid, desc, &isnull);
	char	   *xid = isnull ? NULL : TextDatumGetCString(datum);

	if (!registered)
		RegisterXactCallback(note_commit, NULL);
	registered = true;
	rows_came_in = true;
	if (xid && strlen(xid) <= MIP_XID_MAX)
		mip_family_disturbed(xid);
}

/*
 * The trigger for them: from a dump, or a replica. The links
 * of a new row are somebody else's, or made up; those of an old one stay. What
 * is written above does not fire triggers.
 */
Datum
mip_keep_links(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	int			column = Anum_links;
	Datum		links = (Datum) 0;
	bool		isnull = true;
	HeapTuple	row;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		RelationGetRelid(trigger->tg_relation) != mipt_relid(MIPT_TABLE))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("mip.keep_links is the trigger of mip.mipt")));
	desc = RelationGetDescr(trigger->tg_relation);
	row = trigger->tg_trigtuple;
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
	{
		links = heap_getattr(row, Anum_links, desc, &isnull);
		row = trigger->tg_newtuple;
	}
	note_row(row, desc);
	return PointerGetDatum(heap_modify_tuple_by_cols(row, desc, 1, &column,
													 &links, &isnull));
}
