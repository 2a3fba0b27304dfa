/*-------------------------------------------------------------------------
 *
 * apply_find.c
 *	  The row that a change of a writeset is about.
 *
 * It is looked for with a snapshot, as by an UPDATE, and then changed: who else is
 * changing it is waited for there. So it may turn out to have been changed meanwhile, by
 * somebody else or by the command of this writeset itself, whose changes the snapshot
 * does not show: then one looks again. One command serves until a row is changed twice.
 *
 * Where keys are swapped two rows have the same one for a while. Meant is the one that
 * this writeset has not changed: what it changes twice it tells in order, or, compacted,
 * once. Of rows that are the same in all columns any one is meant.
 *
 * Without an index that leads to a row all rows are read, once: where those are that the
 * writeset will ask for is kept in a map, with their number as its limit, not the table's.
 * It is no more than a help: what is not in it is found by reading. An index by which too
 * many others are met is given up for it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "writeset/apply_column.h"
#include "writeset/apply_find.h"
#include "writeset/apply_map.h"
#include "writeset/apply_runs.h"
#include "writeset/format.h"
#include "writeset/values.h"

/* So many rows that have to be found make it worth while to read all others once. */
#define MAP_FROM	4

/* About how many rows are read in the time in which an index leads to one? */
#define ROWS_AS_ONE	10

void
mip_apply_see_own(MipApply *apply)
{
	/* a cursor that was opened with it keeps it as it is */
	if (apply->snapshot->regd_count > 0)
	{
		PopActiveSnapshot();
		PushCopiedSnapshot(apply->snapshot);
		apply->snapshot = apply->estate->es_snapshot = GetActiveSnapshot();
	}
	UpdateActiveSnapshotCommandId();
}

void
mip_apply_look_again(MipApply *apply)
{
	CommandCounterIncrement();
	if (!IsolationUsesXactSnapshot())
	{
		PopActiveSnapshot();
		PushCopiedSnapshot(GetTransactionSnapshot());
		apply->snapshot = apply->estate->es_snapshot = GetActiveSnapshot();
	}
	mip_apply_see_own(apply);
	apply->estate->es_output_cid = GetCurrentCommandId(true);
}

/* ---- is it the one? ---- */

/* Has this writeset changed, or inserted, the row? */
static bool
changed_here(const MipApply *apply, TupleTableSlot *slot)
{
	HeapTupleHeader header = ((BufferHeapTupleTableSlot *) slot)->base.tuple->t_data;

	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(header)) &&
		HeapTupleHeaderGetCmin(header) >= apply->first;
}

static bool
is_same(MipTarget *target, TupleTableSlot *slot)
{
	const MipwRelation *source = target->source;

	for (int i = 0; i < source->nidentity; i++)
	{
		MipColumn  *column = &target->columns[source->identity[i]];
		int			attr = column->attno - 1;

		if (slot->tts_isnull[attr] != target->wanted->tts_isnull[attr])
			return false;
		if (!slot->tts_isnull[attr] &&
			!mip_column_same(column, slot->tts_values[attr], target->wanted->tts_values[attr]))
			return false;
	}
	return true;
}

/* By the equality of the index that is not scanned */
static bool
has_key(MipTarget *target, TupleTableSlot *slot)
{
	for (int i = 0; i < target->nkeys; i++)
	{
		ScanKey		key = &target->keys[i];
		int			attr = target->index->rd_index->indkey.values[i] - 1;

		if (slot->tts_isnull[attr] != target->wanted->tts_isnull[attr])
			return false;
		if (!slot->tts_isnull[attr] &&
			!DatumGetBool(FunctionCall2Coll(&key->sk_func, key->sk_collation,
											slot->tts_values[attr],
											target->wanted->tts_values[attr])))
			return false;
	}
	return true;
}

static bool
is_wanted(MipApply *apply, MipTarget *target, TupleTableSlot *slot)
{
	MemoryContext before;
	bool		result;

	if (!target->source->whole && !target->unscanned)
		return true;			/* has been found by its key */
	slot_getallattrs(slot);
	before = MemoryContextSwitchTo(apply->scratch);
	result = target->unscanned ? has_key(target, slot) : is_same(target, slot);
	MemoryContextSwitchTo(before);
	MemoryContextReset(apply->scratch);
	return result;
}

/* What was found becomes the second choice. */
static void
keep_other(MipTarget *target)
{
	TupleTableSlot *slot = target->other;

	target->other = target->found;
	target->found = slot;
}

/*
 * Goes on to the next row that is like the one that is wanted, with `next`, until there
 * is one that this writeset has not changed.
 */
static bool
find(MipApply *apply, MipTarget *target, bool (*next) (MipTarget *target, void *state),
	 void *state)
{
	bool		other = false;

	while (next(target, state))
	{
		CHECK_FOR_INTERRUPTS();
		if (!is_wanted(apply, target, target->found))
		{
			target->wasted++;
			continue;
		}
		if (target->source->whole || !changed_here(apply, target->found))
			return true;
		keep_other(target);
		other = true;
	}
	if (other)
		keep_other(target);
	return other;
}

/* ---- by an index ---- */

/* What the index's access method remembers is to last as long as the scan. */
static bool
next_of_index(MipTarget *target, void *state)
{
	MemoryContext before = MemoryContextSwitchTo((MemoryContext) state);
	bool		found = index_getnext_slot(target->scan, ForwardScanDirection, target->found);

	MemoryContextSwitchTo(before);
	return found;
}

static bool
find_by_index(MipApply *apply, MipTarget *target)
{
	MemoryContext before = MemoryContextSwitchTo(apply->estate->es_query_cxt);

	if (target->scan == NULL)
		target->scan = mip_index_beginscan(target->rel, target->index, apply->snapshot,
										   target->nkeys);
	for (int i = 0; i < target->nkeys; i++)
	{
		int			attr = target->index->rd_index->indkey.values[i] - 1;

		target->keys[i].sk_argument = target->wanted->tts_values[attr];
		target->keys[i].sk_flags = target->wanted->tts_isnull[attr] ?
			SK_ISNULL | SK_SEARCHNULL : 0;
	}
	target->scan->xs_snapshot = apply->snapshot;
	index_rescan(target->scan, target->keys, target->nkeys, NULL, 0);
	MemoryContextSwitchTo(before);
	return find(apply, target, next_of_index, apply->estate->es_query_cxt);
}

/* ---- by reading all rows ---- */

static bool
next_of_table(MipTarget *target, void *state)
{
	CHECK_FOR_INTERRUPTS();
	return table_scan_getnextslot((TableScanDesc) state, ForwardScanDirection, target->found);
}

static bool
find_by_reading(MipApply *apply, MipTarget *target)
{
	TableScanDesc scan = table_beginscan(target->rel, apply->snapshot, 0, NULL);
	bool		found = find(apply, target, next_of_table, scan);

	table_endscan(scan);
	return found;
}

/* ---- by a map ---- */

static uint32
row_hash(MipApply *apply, MipTarget *target, TupleTableSlot *slot)
{
	const MipwRelation *source = target->source;
	MemoryContext before = MemoryContextSwitchTo(apply->scratch);
	uint64		hash = 0;

	slot_getallattrs(slot);
	for (int i = 0; i < source->nidentity; i++)
	{
		MipColumn  *column = &target->columns[source->identity[i]];
		int			attr = column->attno - 1;

		/* columns with the same value must not cancel each other */
		hash = hash_combine64(hash, slot->tts_isnull[attr] ? 0 :
							  mip_column_hash(column, slot->tts_values[attr]));
	}
	MemoryContextSwitchTo(before);
	MemoryContextReset(apply->scratch);
	return murmurhash32((uint32) (hash ^ hash >> 32));
}

void
mip_apply_remember(MipApply *apply, MipTarget *target, TupleTableSlot *slot)
{
	MipTarget  *twin = target;

	do
	{
		if (twin->map)
		{
			mip_target_fix_settings(apply, twin);
			mip_rows_put(twin->map, row_hash(apply, twin, slot), &slot->tts_tid);
		}
		twin = twin->twin;
	} while (twin != target);
}

/* The row that a change is about, which need not be one that could be made now */
void
mip_apply_want(const MipApply *apply, MipTarget *target, const MipwChange *change)
{
	TupleTableSlot *slot = ExecClearTuple(target->wanted);
	const MipwRelation *source = target->source;

	mipw_identity(change, target->values);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts);
	for (int i = 0; i < source->nidentity; i++)
	{
		MipColumn  *column = &target->columns[source->identity[i]];
		const MipwValue *value = &target->values[i];

		if (column->attno == 0 || value->null)
			continue;
		slot->tts_isnull[column->attno - 1] = false;
		slot->tts_values[column->attno - 1] = mip_value_decode(&column->codec, apply->set, value);
	}
	ExecStoreVirtualTuple(slot);
}

/*
 * Rows that the writeset will ask for before it truncates the table, and the map is made
 * anew. What target->wanted has does not last.
 */
static void
expect_rows(MipApply *apply, MipTarget *target)
{
	MipRunsCursor cursor = mip_runs_changes(apply->runs, target->source, apply->number);
	MemoryContext memory = AllocSetContextCreate(CurrentMemoryContext, "row to be found",
												 ALLOCSET_DEFAULT_SIZES);
	uint64		first = apply->number;
	MipwChange	change;

	while (mip_runs_next(apply->runs, &cursor, &change))
	{
		MemoryContext before;

		if (change.op != 'U' && change.op != 'D')
			continue;
		apply->number = change.number;
		before = MemoryContextSwitchTo(memory);
		mip_apply_want(apply, target, &change);
		mip_rows_expect(target->map, row_hash(apply, target, target->wanted));
		MemoryContextSwitchTo(before);
		MemoryContextReset(memory);
	}
	MemoryContextDelete(memory);
	apply->number = first;
}

/* Reads all rows that the snapshot shows. */
static void
fill_map(MipApply *apply, MipTarget *target)
{
	TableScanDesc scan = table_beginscan(target->rel, apply->snapshot, 0, NULL);

	while (!mip_rows_is_full(target->map) &&
		   table_scan_getnextslot(scan, ForwardScanDirection, target->found))
	{
		CHECK_FOR_INTERRUPTS();
		mip_rows_put(target->map, row_hash(apply, target, target->found),
					 &target->found->tts_tid);
	}
	ExecClearTuple(target->found);
	table_endscan(scan);
}

/* It is made at the first change that needs it. */
static void
make_map(MipApply *apply, MipTarget *target)
{
	MipwValue  *values = target->values;
	TupleTableSlot *wanted = target->wanted;

	if (apply->runs == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(apply->estate->es_query_cxt);

		apply->runs = mip_runs_create(apply->set);
		MemoryContextSwitchTo(before);
	}
	target->values = palloc(target->source->ncolumns * sizeof(MipwValue));
	target->wanted = MakeSingleTupleTableSlot(RelationGetDescr(target->rel), &TTSOpsVirtual);
	target->map = mip_rows_create(target->map_memory);
	expect_rows(apply, target);
	ExecDropSingleTupleTableSlot(target->wanted);
	target->wanted = wanted;
	target->values = values;
	fill_map(apply, target);
}

/*
 * What is found is taken out: it is going to be changed. Should a trigger keep it from
 * that, it is found by reading.
 */
static bool
search_map(MipApply *apply, MipTarget *target)
{
	MipMapSearch search = {.hash = row_hash(apply, target, target->wanted)};
	ItemPointerData tid;

	while (mip_rows_next(target->map, &search, &tid))
	{
		CHECK_FOR_INTERRUPTS();
		if (!table_tuple_fetch_row_version(target->rel, &tid, apply->snapshot, target->found) ||
			!is_wanted(apply, target, target->found))
			continue;
		mip_rows_take(target->map, &search);
		return true;
	}
	return false;
}

static bool
find_by_map(MipApply *apply, MipTarget *target, bool again)
{
	if (target->map == NULL)
		make_map(apply, target);
	if (search_map(apply, target))
		return true;
	/* one that this command has made will be seen by the next */
	if (!again)
		return false;
	mip_rows_clear(target->map);
	fill_map(apply, target);
	return search_map(apply, target) ||
		(mip_rows_is_full(target->map) && find_by_reading(apply, target));
}

/* ---- by whatever is best ---- */

/*
 * Has an index that is not of one row each cost more by now than it takes to read all
 * rows? Then it would go on like that.
 */
static void
judge_index(MipApply *apply, MipTarget *target)
{
	Size		rows;

	if (!target->source->whole || target->index->rd_index->indisunique ||
		target->wasted < 1000)
		return;
	rows = (Size) RelationGetNumberOfBlocks(target->rel) * MaxHeapTuplesPerPage;
	if (target->wasted < rows / ROWS_AS_ONE)
		return;
	index_endscan(target->scan);
	target->scan = NULL;
	target->index = NULL;
}

/* What triggers execute, and what constraints do, takes commands of its own. */
static void
catch_up(MipApply *apply)
{
	if (apply->snapshot->curcid != GetCurrentCommandId(false))
		mip_apply_see_own(apply);
}

bool
mip_apply_find(MipApply *apply, MipTarget *target, bool again)
{
	catch_up(apply);
	if (target->index && !target->unscanned)
	{
		bool		found;

		/* it has led to those that have been changed before, too */
		if (again)
			target->wasted += target->changed;
		found = find_by_index(apply, target);
		target->changed += found;
		judge_index(apply, target);
		return found;
	}
	if (target->source->whole && !target->in_turn &&
		apply->set->updated + apply->set->deleted >= MAP_FROM)
		return find_by_map(apply, target, again);
	return find_by_reading(apply, target);
}
