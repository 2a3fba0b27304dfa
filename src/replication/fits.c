/*-------------------------------------------------------------------------
 *
 * fits.c
 *	  Rows that do not fit into indexes, wherever these are, are not written.
 *
 * At COMMIT each row is looked at (readable.c). But one that is rolled back has left its
 * entries, and is part of those that it shares with others: what is applied here later would not
 * fit. So where there are such indexes it is looked at before. And of a new index it is
 * looked whether rows that are there would fit as they are stored elsewhere.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/known.h"
#include "base/owner.h"
#include "base/settings.h"
#include "replication/fits.h"
#include "replication/member.h"
#include "tableam/look.h"
#include "writeset/room.h"

/* ---- rows that are written ---- */

static MipKnownTables *known;	/* has an index entries of several rows? */

/* It has failed where a row of another replica was applied (writeset/apply_aside.c). */
static void
refuse_set_aside(Relation index)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("exclusion constraint \"%s\" is not enforced at this replica", RelationGetRelationName(index)),
			 errdetail("Its index is set aside, since it could not take in a row of another replica."),
			 errhint("Write at another replica; or remove such rows, then use REINDEX INDEX.")));
}

/* Of one index. `row`: NULL to know only whether it has entries of several rows */
static bool
shares(Relation index, TupleTableSlot *row, EState *estate)
{
	IndexInfo  *info = BuildIndexInfo(index);
	MipRoom    *room;

	if (!info->ii_ReadyForInserts)
	{
		if (index->rd_index->indisexclusion)
			refuse_set_aside(index);
		return false;
	}
	room = mip_room_open(index);
	if (row && mip_room_is_shared(room))
		mip_room_check_row(room, info, row, estate);
	return mip_room_is_shared(room);
}

static bool
any_shares(Relation rel, TupleTableSlot *row)
{
	EState	   *estate = CreateExecutorState();
	MemoryContext caller = MemoryContextSwitchTo(estate->es_query_cxt);
	bool		result = false;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		result |= shares(index, row, estate);
		index_close(index, NoLock);
	}
	MemoryContextSwitchTo(caller);
	FreeExecutorState(estate);
	return result;
}

static bool
is_known_to_share(Relation rel)
{
	const MipKnownTable *table = mip_known_find(known, RelationGetRelid(rel));
	uint64		before = mip_known_changes(known);
	MipKnownTable found = {.relid = RelationGetRelid(rel)};

	if (table)
		return table->answer;
	found.answer = any_shares(rel, NULL);
	mip_known_remember(known, &found, before);
	return found.answer;
}

static void
look_at(Relation rel, TupleTableSlot *row)
{
	if (mip_publishes() && rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT && is_known_to_share(rel))
		(void) any_shares(rel, row);
}

/* ---- rows that are there ---- */

/* Who has written a row has chosen how it is compressed, and others have not. */
static void
check_expanded(MipRoom *room, IndexInfo *info, TupleTableSlot *row, EState *estate)
{
	static const char *const methods[] = {
		"pglz",
#ifdef USE_LZ4
		"lz4",
#endif
	};

	for (int i = 0; i < lengthof(methods); i++)
	{
		mip_set_for_now("default_toast_compression", methods[i]);
		mip_room_check_row(room, info, row, estate);
	}
}

static void
check_rows(Relation rel, Relation index)
{
	EState	   *estate = CreateExecutorState();
	MemoryContext caller = MemoryContextSwitchTo(estate->es_query_cxt);
	IndexInfo  *info = BuildIndexInfo(index);
	MipRoom    *room = mip_room_open(index);
	TupleTableSlot *stored = table_slot_create(rel, NULL);
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsVirtual);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());	/* also what has been
																	 * rewritten */
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);

	while (mip_room_goes_by_values(room) && table_scan_getnextslot(scan, ForwardScanDirection, stored))
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(GetPerTupleMemoryContext(estate));
		mip_room_check_row(room, info, stored, estate);
		ExecCopySlot(row, stored);
		if (mip_row_expand(row))
			check_expanded(room, info, row, estate);
		ResetPerTupleExprContext(estate);
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(row);
	ExecDropSingleTupleTableSlot(stored);
	MemoryContextSwitchTo(caller);
	FreeExecutorState(estate);
}

void
mip_check_index_fits(Oid indexid)
{
	Relation	index = index_open(indexid, AccessShareLock);
	Relation	rel = table_open(index->rd_index->indrelid, AccessShareLock);

	if (index->rd_rel->relkind == RELKIND_INDEX && rel->rd_rel->relkind == RELKIND_RELATION &&
		rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT)
	{
		MipUser		user = mip_become_owner(rel->rd_rel->relowner, true);

		check_rows(rel, index);
		mip_become_again(user);
	}
	table_close(rel, NoLock);
	index_close(index, NoLock);
}

void
mip_fits_init(void)
{
	known = mip_known_create("pg_mip tables with shared index entries");
	mip_rows_looked_at_by(look_at);
}
