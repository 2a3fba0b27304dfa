/*-------------------------------------------------------------------------
 *
 * positions.c
 *	  How far this replica has followed its log: mip.applied, mip.log; and others, mip.replicas.
 *
 * A position is written by the transaction that makes its changes here, be it the one that
 * they come from, or what applies them. So whatever a crash leaves, there is a last
 * position, with all before it, and the log goes on behind it. Nobody waits for the flush:
 * what is lost is still in the log; but that somebody has left a definition out is not.
 *
 * Nothing of these tables goes to subscribers: they are about this database.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "mipt/catalog.h"
#include "replication/member.h"
#include "replication/positions.h"

/* mip.applied */
#define Anum_position	1
#define Anum_certified	2
#define Anum_history	3
#define Anum_bytes		4
#define Anum_applied_at 5
#define Natts_applied	5

/* mip.replicas */
#define Anum_member		1
#define Anum_member_applied	2
#define Natts_members	2

/* mip.log */
#define Anum_window		1
#define Anum_keys		2
#define Anum_system		3
#define Natts_log		3

static MipPosition
position_of_row(HeapTuple row, TupleDesc desc)
{
	MipPosition position;
	bool		isnull;

	position.position = DatumGetInt64(heap_getattr(row, Anum_position, desc, &isnull));
	position.certified = DatumGetBool(heap_getattr(row, Anum_certified, desc, &isnull));
	position.history = DatumGetInt64(heap_getattr(row, Anum_history, desc, &isnull));
	position.bytes = DatumGetInt64(heap_getattr(row, Anum_bytes, desc, &isnull));
	return position;
}

typedef struct PositionScan
{
	Relation	rel;
	Relation	index;
	Snapshot	snapshot;
	SysScanDesc scan;
	LOCKMODE	kept;			/* of the table, for the transaction; or
								 * NoLock */
} PositionScan;

/* Of those that compare so with this one, in their order; of all, if that is 0 */
static PositionScan
begin_scan(StrategyNumber strategy, RegProcedure compare, uint64 position, LOCKMODE mode)
{
	PositionScan scan = {
		.rel = table_open(mipt_relid(MIP_APPLIED), mode),
		.index = index_open(mipt_relid(MIP_APPLIED_PKEY), AccessShareLock),
		.snapshot = RegisterSnapshot(GetLatestSnapshot()),
		.kept = mode == AccessShareLock ? NoLock : mode,
	};
	ScanKeyData key;

	ScanKeyInit(&key, Anum_position, strategy, compare, Int64GetDatum(position));
	scan.scan = systable_beginscan_ordered(scan.rel, scan.index, scan.snapshot,
										   position == 0 ? 0 : 1, &key);
	return scan;
}

static void
end_scan(PositionScan *scan)
{
	systable_endscan_ordered(scan->scan);
	UnregisterSnapshot(scan->snapshot);
	index_close(scan->index, AccessShareLock);
	table_close(scan->rel, scan->kept == NoLock ? AccessShareLock : NoLock);
}

bool
mip_position_find(uint64 position, MipPosition *found)
{
	PositionScan scan = begin_scan(BTEqualStrategyNumber, F_INT8EQ, position, AccessShareLock);
	HeapTuple	row = systable_getnext_ordered(scan.scan, BackwardScanDirection);
	bool		is_there = HeapTupleIsValid(row);

	if (is_there)
		*found = position_of_row(row, RelationGetDescr(scan.rel));
	end_scan(&scan);
	return is_there;
}

/* Into shared memory, by who has its lock */
static void
load_member(HeapTuple row, TupleDesc desc, int i)
{
	MipPeer    *peer = &mip_member->peers[i];
	bool		isnull;

	strlcpy(peer->name, TextDatumGetCString(heap_getattr(row, Anum_member, desc, &isnull)), NAMEDATALEN);
	peer->applied = DatumGetInt64(heap_getattr(row, Anum_member_applied, desc, &isnull));
}

/* The rows of mip.replicas, in the current memory context */
static List *
read_members(Relation rel)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	List	   *rows = NIL;
	HeapTuple	row;

	while (HeapTupleIsValid(row = systable_getnext(scan)))
		rows = lappend(rows, heap_copytuple(row));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return rows;
}

void
mip_positions_load(void)
{
	Relation	rel;
	List	   *members;
	MipPosition last = {0};
	bool		standby = RecoveryInProgress(); /* it may end while this is
												 * read */
	bool		loaded;

	LWLockAcquire(mip_member->lock, LW_SHARED);
	loaded = mip_member->loaded;
	LWLockRelease(mip_member->lock);
	if (loaded)
		return;
	(void) mip_position_find(0, &last);
	rel = table_open(mipt_relid(MIP_MEMBERS), AccessShareLock);
	members = read_members(rel);
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	/* nobody goes on from there before it is known */
	if (!mip_member->loaded)
	{
		memset(mip_member->peers, 0, sizeof(mip_member->peers));
		for (int i = 0; i < Min(list_length(members), MIP_PEERS_MAX); i++)
			load_member(list_nth(members, i), RelationGetDescr(rel), i);
		mip_member->applied = mip_member->worth_telling = last.position;
		mip_member->history = last.history;
		/* a standby goes on without our noticing */
		mip_member->loaded = !standby;
	}
	LWLockRelease(mip_member->lock);
	table_close(rel, AccessShareLock);
}

/* ---- writing ---- */

static void
insert_into_index(Relation rel, Relation index, TupleTableSlot *slot)
{
	IndexInfo  *info = BuildIndexInfo(index);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	FormIndexDatum(info, slot, NULL, values, nulls);
	index_insert(index, values, nulls, &slot->tts_tid, rel, UNIQUE_CHECK_YES, false, info);
	mip_index_insert_cleanup(index, info);
	pfree(info);
}

static void
insert(MiptRelation table, Datum *values)
{
	bool		nulls[Natts_applied] = {false};
	Relation	rel = table_open(mipt_relid(table), RowExclusiveLock);
	HeapTuple	row = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);

	heap_insert(rel, row, GetCurrentCommandId(true), HEAP_INSERT_NO_LOGICAL, NULL);
	ExecStoreHeapTuple(row, slot, false);
	if (table == MIP_APPLIED)
	{
		Relation	index = index_open(mipt_relid(MIP_APPLIED_PKEY), RowExclusiveLock);

		insert_into_index(rel, index, slot);
		index_close(index, RowExclusiveLock);
	}
	ExecDropSingleTupleTableSlot(slot);
	heap_freetuple(row);
	table_close(rel, NoLock);
}

void
mip_position_write(const MipPosition *position)
{
	Datum		values[Natts_applied] = {
		Int64GetDatum(position->position),
		BoolGetDatum(position->certified),
		Int64GetDatum(position->history),
		Int64GetDatum(position->bytes),
		TimestampTzGetDatum(GetCurrentTimestamp()),
	};

	/*
	 * the log does not know of what is left out, so that a crash must not
	 * lose it
	 */
	if (!position->left_out || synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		set_config_option("synchronous_commit", position->left_out ? "local" : "off", PGC_USERSET, PGC_S_SESSION,
						  GUC_ACTION_LOCAL, true, 0, false);
	insert(MIP_APPLIED, values);
}

void
mip_positions_prune(uint64 upto)
{
	PositionScan scan = begin_scan(BTLessEqualStrategyNumber, F_INT8LE, upto, RowExclusiveLock);
	HeapTuple	row;

	Assert(upto > 0);
	while ((row = systable_getnext_ordered(scan.scan, ForwardScanDirection)) != NULL)
		simple_heap_delete(scan.rel, &row->t_self);
	end_scan(&scan);
}

/* ---- members ---- */

void
mip_members_write(const char *member, uint64 applied)
{
	Relation	rel = table_open(mipt_relid(MIP_MEMBERS), RowExclusiveLock);
	ListCell   *lc;
	Datum		values[Natts_members] = {CStringGetTextDatum(member), Int64GetDatum(applied)};

	foreach(lc, read_members(rel))
	{
		HeapTuple	row = lfirst(lc);
		bool		isnull;
		Datum		name = heap_getattr(row, Anum_member, RelationGetDescr(rel), &isnull);

		if (strcmp(TextDatumGetCString(name), member) == 0)
			simple_heap_delete(rel, &row->t_self);
	}
	table_close(rel, NoLock);
	if (applied > 0)
		insert(MIP_MEMBERS, values);
}

uint64
mip_members_slowest(void)
{
	Relation	rel = table_open(mipt_relid(MIP_MEMBERS), AccessShareLock);
	uint64		slowest = PG_UINT64_MAX;
	ListCell   *lc;

	foreach(lc, read_members(rel))
	{
		bool		isnull;
		Datum		applied = heap_getattr(lfirst(lc), Anum_member_applied, RelationGetDescr(rel), &isnull);

		slowest = Min(slowest, DatumGetInt64(applied));
	}
	table_close(rel, AccessShareLock);
	return slowest == PG_UINT64_MAX ? 0 : slowest;
}

/* ---- settings ---- */

bool
mip_log_settings(MipLogSettings *settings)
{
	Relation	rel = table_open(mipt_relid(MIP_LOG), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	row = systable_getnext(scan);
	bool		found = HeapTupleIsValid(row);
	bool		isnull;

	if (found)
	{
		TupleDesc	desc = RelationGetDescr(rel);

		settings->window = DatumGetInt64(heap_getattr(row, Anum_window, desc, &isnull));
		settings->keys = DatumGetInt64(heap_getattr(row, Anum_keys, desc, &isnull));
		settings->system = DatumGetInt64(heap_getattr(row, Anum_system, desc, &isnull));
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}

void
mip_log_write_settings(const MipLogSettings *settings)
{
	Datum		values[Natts_log] = {
		Int64GetDatum(settings->window),
		Int64GetDatum(settings->keys),
		Int64GetDatum(settings->system),
	};

	insert(MIP_LOG, values);
}
