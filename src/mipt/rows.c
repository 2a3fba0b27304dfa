/*-------------------------------------------------------------------------
 *
 * rows.c
 *	  Entries of the MIPT as rows of the table mip.mipt.
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
#include "access/nbtree.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_collation_d.h"
#include "catalog/pg_type_d.h"
#include "executor/executor.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/stop.h"
#include "base/subtransaction.h"
#include "base/xid.h"
#include "family/current.h"
#include "family/family_lock.h"
#include "mipt/catalog.h"
#include "mipt/entry.h"
#include "mipt/rows.h"

static Relation
open_mipt(LOCKMODE mode)
{
	return table_open(mipt_relid(MIPT_TABLE), mode);
}

/* ---- reading ---- */

/* Out of line values of a row are read later, if at all: see mipt_load. */
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

/*
 * Does the XID sort behind all that the primary key has, of dead rows, too? Then the
 * search for its rows would come to the same last page, and find none. That page is locked
 * for reading, and is released.
 */
static bool
sorts_behind_leaf(Buffer leaf, const text *xid)
{
	Page		page = BufferGetPage(leaf);
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	bool		behind = false;

	if (last >= P_FIRSTDATAKEY(BTPageGetOpaque(page)))
	{
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, PageGetItemId(page, last));
		text	   *greatest = DatumGetTextPP(PointerGetDatum((char *) tuple + IndexInfoFindDataOffset(tuple->t_info)));

		behind = !IndexTupleHasNulls(tuple) &&
			varstr_cmp(VARDATA_ANY(xid), VARSIZE_ANY_EXHDR(xid),
					   VARDATA_ANY(greatest), VARSIZE_ANY_EXHDR(greatest), C_COLLATION_OID) > 0;
	}
	UnlockReleaseBuffer(leaf);
	return behind;
}

/* The same by the page that has been the last one before; false if it is not */
static bool
sorts_behind_noted(const text *xid)
{
	Buffer		leaf = mipt_noted_page(MIPT_PKEY);
	BTPageOpaque opaque;

	if (!BufferIsValid(leaf))
		return false;
	LockBuffer(leaf, BUFFER_LOCK_SHARE);
	opaque = BTPageGetOpaque(BufferGetPage(leaf));
	if (P_ISLEAF(opaque) && P_RIGHTMOST(opaque) && !P_IGNORE(opaque))
		return sorts_behind_leaf(leaf, xid);
	UnlockReleaseBuffer(leaf);
	return false;
}

static bool
sorts_behind_all(Relation index, const text *xid)
{
	Buffer		leaf;

	if (index->rd_rel->relam != BTREE_AM_OID || index->rd_indoption[0] != 0 ||
		index->rd_opcintype[0] != TEXTOID || index->rd_indcollation[0] != C_COLLATION_OID)
		return false;
	leaf = mip_bt_last_leaf(index);
	if (!BufferIsValid(leaf))
		return true;			/* there has never been a row */
	mipt_note_page(MIPT_PKEY, index, leaf);
	return sorts_behind_leaf(leaf, xid);
}

static List *
find_rows(Relation rel, Relation index, Datum xid)
{
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tup;
	List	   *rows = NIL;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, Anum_xid, BTEqualStrategyNumber, F_TEXTEQ, xid);
	scan = systable_beginscan_ordered(rel, index, &dirty, 1, &key);

	/*
	 * who is deleting a row is no less a stranger, for whom we would wait in
	 * the end
	 */
	while ((tup = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
		rows = lappend(rows, entry_of_row(tup, RelationGetDescr(rel),
										  TransactionIdIsValid(dirty.xmin) ? dirty.xmin : dirty.xmax));
	systable_endscan_ordered(scan);
	return rows;
}

/* The table is opened first: REINDEX CONCURRENTLY drops no index as long as somebody uses it. */
static List *
read_rows(const text *xid, bool may_be_last)
{
	Relation	rel = open_mipt(AccessShareLock);
	Relation	index = index_open(mipt_relid(MIPT_PKEY), AccessShareLock);
	List	   *rows = may_be_last && sorts_behind_all(index, xid) ? NIL :
		find_rows(rel, index, PointerGetDatum(xid));

	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return rows;
}

List *
mipt_rows(const char *xid)
{
	return read_rows(cstring_to_text(xid), false);
}

List *
mipt_rows_of_new(const char *xid, uint64 *note)
{
	text	   *value = cstring_to_text(xid);

	*note = mipt_note(MIPT_PKEY);	/* before: of what is heard behind it the
									 * page says nothing */
	if (sorts_behind_noted(value))
	{
		mip_stop_point("behind");
		return NIL;
	}
	*note = 0;
	return read_rows(value, true);
}

/*
 * Values that are stored out of line. What keeps them is the family lock, or who
 * calls is ready to find them gone (mipt_load_if_there): a row in progress, once it has
 * been rolled back, is dead to VACUUM at once, whatever snapshots there are, and so are
 * they. (Those of committed rows stay for as long as the caller's snapshot.)
 */
static void *
load_column(const MiptEntry *entry, int attno, TupleDesc desc)
{
	bool		isnull;
	Datum		datum = heap_getattr(entry->row, attno, desc, &isnull);

	return isnull ? NULL : PG_DETOAST_DATUM_COPY(datum);
}

void
mipt_load(MiptEntry *entry)
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

void
mipt_load_places(MiptEntry *entry)
{
	Relation	rel = open_mipt(AccessShareLock);

	entry->places = load_column(entry, Anum_places, RelationGetDescr(rel));
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

typedef struct Loading
{
	MiptEntry  *entry;
	void		(*load) (MiptEntry *entry);
} Loading;

static void
load_values(void *arg)
{
	Loading    *loading = arg;

	loading->load(loading->entry);
}

/* The loss of a value is an error, which needs a subtransaction. */
bool
mipt_load_if_there(MiptEntry *entry, void (*load) (MiptEntry *entry))
{
	Loading		loading = {entry, load};
	ErrorData  *error;

	if (!HeapTupleHasExternal(entry->row))
	{
		load(entry);
		return true;
	}
	error = mip_try(load_values, &loading);
	if (error == NULL)
		return true;
	if (error->sqlerrcode != ERRCODE_DATA_CORRUPTED || !has_been_rolled_back(entry->row))
		ReThrowError(error);
	FreeErrorData(error);
	return false;
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

bool
mipt_has_links(const MiptEntry *entry)
{
	return entry->row && (!heap_attisnull(entry->row, Anum_links, NULL) ||
						  !heap_attisnull(entry->row, Anum_places, NULL));
}

/* ---- writing ---- */

static void
set_varlena(Datum *values, bool *nulls, int attno, const void *value)
{
	values[attno - 1] = PointerGetDatum(value);
	nulls[attno - 1] = value == NULL;
}

/* Does a row belong in this index of ours? Their predicates, as C. */
static bool
belongs_in(Oid index, HeapTuple tup, TupleDesc desc)
{
	bool		isnull;
	int64		time;

	if (index == mipt_relid(MIPT_LINKED))
		return !heap_attisnull(tup, Anum_links, desc) ||
			!heap_attisnull(tup, Anum_places, desc);
	if (index == mipt_relid(MIPT_TIMELESS))
		return !mip_xid_time(TextDatumGetCString(heap_getattr(tup, Anum_xid, desc, &isnull)), &time);
	return true;
}

/* ... in one that somebody has added? `estate` is for this row. */
static bool
belongs_in_other(const IndexInfo *info, EState *estate)
{
	return info->ii_Predicate == NIL ||
		ExecQual(ExecPrepareQual(info->ii_Predicate, estate), GetPerTupleExprContext(estate));
}

static bool
is_ours(Oid index)
{
	return index == mipt_relid(MIPT_PKEY) || index == mipt_relid(MIPT_LINKED) ||
		index == mipt_relid(MIPT_TIMELESS);
}

/* `ours`: asked before, and it belongs there. REINDEX may give ours another OID meanwhile. */
static void
insert_into_index(Relation rel, Oid indexid, bool ours, TupleTableSlot *slot)
{
	Relation	index = index_open(indexid, RowExclusiveLock);
	IndexInfo  *info = BuildIndexInfo(index);
	EState	   *estate = ours ? NULL : CreateExecutorState();
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (estate)
		GetPerTupleExprContext(estate)->ecxt_scantuple = slot;
	if (info->ii_ReadyForInserts && (estate == NULL || belongs_in_other(info, estate)))
	{
		FormIndexDatum(info, slot, estate, values, nulls);
		index_insert(index, values, nulls, &slot->tts_tid, rel,
					 index->rd_index->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
					 false, info);
		mip_index_insert_cleanup(index, info);
	}
	if (estate)
		FreeExecutorState(estate);
	pfree(info);
	index_close(index, RowExclusiveLock);
}

/*
 * CatalogTupleInsert, but not for logical decoding: a subscriber has families
 * of its own. For the same reason there are no updates of rows, which would be
 * decoded. Deletes are, but without a replica identity they say nothing. Of most
 * rows nothing is in the partial indexes, which are not even opened then.
 */
static void
insert_tuple(Relation rel, HeapTuple tup)
{
	List	   *indexes = RelationGetIndexList(rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsHeapTuple);
	ListCell   *lc;

	heap_insert(rel, tup, GetCurrentCommandId(true), HEAP_INSERT_NO_LOGICAL, NULL);
	ExecStoreHeapTuple(tup, slot, false);
	foreach(lc, indexes)
	{
		bool		ours = is_ours(lfirst_oid(lc));

		if (!ours || belongs_in(lfirst_oid(lc), tup, RelationGetDescr(rel)))
			insert_into_index(rel, lfirst_oid(lc), ours, slot);
	}
	list_free(indexes);
	ExecDropSingleTupleTableSlot(slot);
}

static void
insert_row(const char *xid, const MiptEntry *entry, const bytea *links, const bytea *places)
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
	set_varlena(values, nulls, Anum_places, places);
	Assert(mip_family_locked(xid, ExclusiveLock));
	tup = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	insert_tuple(rel, tup);
	heap_freetuple(tup);
	table_close(rel, NoLock);
}

/*
 * Whoever keeps others from the relations, and brings rows, is waited for. Of the key's
 * lock it is returned where it is: REINDEX CONCURRENTLY does not wait for it to have another one.
 */
Oid
mipt_lock_to_insert(void)
{
	Oid			key = mipt_relid(MIPT_PKEY);

	LockRelationOid(mipt_relid(MIPT_TABLE), RowExclusiveLock);
	LockRelationOid(key, RowExclusiveLock);
	return key;
}

void
mipt_insert_own(bytea *links, bytea *places)
{
	Assert(mip_mine.ending != MIP_RUNNING);
	insert_row(mip_mine.xid, mipt_own_entry(MIP_PREPARED), links, places);
}

void
mipt_insert_committed(const char *xid, const MiptEntry *entry)
{
	MiptEntry	committed = *entry;

	committed.state = MIP_COMMITTED;
	insert_row(xid, &committed, NULL, NULL);
}

void
mipt_insert_aborted(const char *xid, const MiptEntry *entry)
{
	MiptEntry	aborted = *entry;

	aborted.state = MIP_ABORTED;
	insert_row(xid, &aborted, NULL, NULL);
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
	nulls[Anum_places - 1] = replace[Anum_places - 1] = true;
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
	insert_row(xid, &bare, NULL, NULL);
	/* the same statement may go on to delete it */
	CommandCounterIncrement();
}

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
