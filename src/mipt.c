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
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation_d.h"
#include "miscadmin.h"
#include "mipt.h"
#include "overlay.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Columns of mip.mipt */
enum
{
	Anum_xid = 1,
	Anum_xinst,
	Anum_request,
	Anum_result,
	Anum_sites,
	Anum_owner,
	Anum_since,
	Anum_aborted,
	Anum_links,
	Natts_mipt = Anum_links
};

static Oid
mipt_relid(const char *name)
{
	Oid			relid = get_relname_relid(name, get_namespace_oid("mip", false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("table mip.%s does not exist", name),
				 errhint("Run CREATE EXTENSION pg_mip in this database.")));
	return relid;
}

static Relation
open_mipt(LOCKMODE mode)
{
	return table_open(mipt_relid("mipt"), mode);
}

/* ---- reading ---- */

static void *
varlena_copy(HeapTuple tup, int attno, TupleDesc desc)
{
	bool		isnull;
	Datum		datum = heap_getattr(tup, attno, desc, &isnull);

	return isnull ? NULL : PG_DETOAST_DATUM_COPY(datum);
}

static MiptEntry *
entry_of_row(HeapTuple tup, TupleDesc desc, TransactionId running)
{
	MiptEntry  *entry = palloc0(sizeof(MiptEntry));
	bool		isnull;

	entry->xinst = DatumGetInt64(heap_getattr(tup, Anum_xinst, desc, &isnull));
	entry->request = varlena_copy(tup, Anum_request, desc);
	entry->result = varlena_copy(tup, Anum_result, desc);
	entry->sites = varlena_copy(tup, Anum_sites, desc);
	entry->links = varlena_copy(tup, Anum_links, desc);
	entry->owner = DatumGetObjectId(heap_getattr(tup, Anum_owner, desc, &isnull));
	entry->since = DatumGetTimestampTz(heap_getattr(tup, Anum_since, desc, &isnull));
	entry->tid = tup->t_self;
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
	Relation	index = index_open(mipt_relid("mipt_pkey"), AccessShareLock);
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tup;
	List	   *rows = NIL;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, Anum_xid, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(xid));
	scan = systable_beginscan_ordered(rel, index, &dirty, 1, &key);
	while ((tup = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
		rows = lappend(rows, entry_of_row(tup, RelationGetDescr(rel), dirty.xmin));
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return rows;
}

static int
compare_entries(const ListCell *a, const ListCell *b)
{
	int64		x = ((MiptEntry *) lfirst(a))->xinst;
	int64		y = ((MiptEntry *) lfirst(b))->xinst;

	return (x > y) - (x < y);
}

static MiptEntry *
entry_of_active(MipInstance *inst)
{
	MiptEntry  *entry = palloc0(sizeof(MiptEntry));

	entry->xinst = inst->xinst;
	entry->state = MIP_ACTIVE;
	entry->owner = inst->owner;
	entry->since = inst->since;
	ItemPointerSetInvalid(&entry->tid);
	return entry;
}

static bool
may_see(const MiptEntry *entry)
{
	return has_privs_of_role(GetUserId(), entry->owner);
}

static List *
read_entries(const char *xid)
{
	List	   *entries = read_rows(xid);
	ListCell   *lc;

	foreach(lc, mip_family_instances(xid))
	{
		MipInstance *inst = lfirst(lc);
		MiptEntry  *entry = mipt_find(entries, inst->xinst);

		if (entry == NULL && !MipInstanceIsPrepared(inst))
			entries = lappend(entries, entry_of_active(inst));
		else if (entry && entry->state == MIP_PREPARED && !MipInstanceIsPrepared(inst))
			entry->state = MIP_ACTIVE;	/* on its way to being prepared */
	}
	list_sort(entries, compare_entries);
	return entries;
}

List *
mipt_read(const char *xid)
{
	List	   *entries = read_entries(xid);
	ListCell   *lc;

	foreach(lc, entries)
	{
		if (!may_see(lfirst(lc)))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("family \"%s\" belongs to another role", xid)));
	}
	return entries;
}

MiptEntry *
mipt_find_visible(const char *xid, int64 xinst)
{
	MiptEntry  *entry = mipt_find(read_entries(xid), xinst);

	return entry && may_see(entry) ? entry : NULL;
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

/* ---- rules ---- */

void
mipt_raise_committed(const MiptEntry *entry)
{
	StringInfoData detail;

	initStringInfo(&detail);
	appendStringInfo(&detail, "{\"xinst\": " INT64_FORMAT ", \"result\": ", entry->xinst);
	if (entry->result)
		escape_json(&detail, text_to_cstring(entry->result));
	else
		appendStringInfoString(&detail, "null");
	appendStringInfoChar(&detail, '}');
	ereport(ERROR,
			(errcode(ERRCODE_MIP_COMMITTED),
			 errmsg("instance " INT64_FORMAT " of this family has been committed", entry->xinst),
			 errdetail_internal("%s", detail.data),
			 errhint("Its result is the result of the request.")));
}

static void
raise_superseded(const MiptEntry *entry)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_SUPERSEDED),
			 errmsg("instance " INT64_FORMAT " of this family is prepared here", entry->xinst),
			 errdetail_internal("{\"xinst\": " INT64_FORMAT "}", entry->xinst),
			 errhint("Decide the family from the MIPTs of all sites, or retry the request with a larger XINST.")));
}

/*
 * The largest prepared XINST matters: a refused attempt has to go above it.
 * A one-phase commit decides the family alone, so any prepared sibling, which
 * others may have found to be the winner, is in its way.
 */
void
mipt_check_may_end(List *entries, int64 xinst, bool one_phase)
{
	MiptEntry  *committed = mipt_committed(entries);
	MiptEntry  *in_the_way = NULL;
	ListCell   *lc;

	if (committed)
		mipt_raise_committed(committed);
	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->state == MIP_PREPARED &&
			(one_phase ? entry->xinst != xinst : entry->xinst > xinst))
			in_the_way = entry;
	}
	if (in_the_way)
		raise_superseded(in_the_way);
}

/* ---- writing ---- */

MiptEntry *
mipt_own_entry(MipState state)
{
	MiptEntry  *entry = entry_of_active(mip_mine.inst);

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
	tup = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	CatalogTupleInsert(rel, tup);
	heap_freetuple(tup);
	table_close(rel, NoLock);
}

void
mipt_insert_own(bytea *links)
{
	insert_row(mip_mine.xid, mipt_own_entry(MIP_PREPARED), links);
}

void
mipt_insert_aborted(const char *xid, const MiptEntry *entry)
{
	MiptEntry	aborted = *entry;

	aborted.state = MIP_ABORTED;
	insert_row(xid, &aborted, NULL);
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

	old.t_self = entry->tid;
	if (!heap_fetch(rel, SnapshotAny, &old, &buffer, false))
		elog(ERROR, "pg_mip: the MIPT entry is gone");
	nulls[Anum_links - 1] = replace[Anum_links - 1] = true;
	new = heap_modify_tuple(&old, RelationGetDescr(rel), values, nulls, replace);
	CatalogTupleUpdate(rel, &old.t_self, new);
	ReleaseBuffer(buffer);
	table_close(rel, NoLock);
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
		CatalogTupleDelete(rel, &entry->tid);
		n++;
	}
	table_close(rel, NoLock);
	return n;
}
