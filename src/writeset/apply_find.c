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
 * once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "writeset/apply_column.h"
#include "writeset/apply_find.h"

/* So many rows that have to be found make it worth while to read all others once. */
#define MAP_FROM	4

typedef struct MapEntry
{
	uint32		hash;
	uint32		next;			/* in its bucket, plus one */
	ItemPointerData tid;
} MapEntry;

/*
 * Where rows of a table are that has no index to find them by. No more than a help: what
 * is not in it is found by reading all rows.
 */
struct MipRowMap
{
	bool		given_up;		/* there are too many */
	uint32		nbuckets;		/* a power of two */
	uint32	   *buckets;		/* first entries, plus one */
	uint32		count;
	uint32		room;
	MapEntry   *entries;
};

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
	UpdateActiveSnapshotCommandId();
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
is_wanted(MipTarget *target, TupleTableSlot *slot)
{
	const MipwRelation *source = target->source;

	if (!source->whole)
		return true;			/* has been found by its key */
	slot_getallattrs(slot);
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
		if (!is_wanted(target, target->found))
			continue;
		if (!changed_here(apply, target->found))
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

/* ---- by a map ---- */

static uint32
row_hash(const MipTarget *target, TupleTableSlot *slot)
{
	const MipwRelation *source = target->source;
	uint32		hash = 0;

	slot_getallattrs(slot);
	for (int i = 0; i < source->nidentity; i++)
	{
		const MipColumn *column = &target->columns[source->identity[i]];
		int			attr = column->attno - 1;

		hash = pg_rotate_left32(hash, 1);
		if (!slot->tts_isnull[attr])
			hash ^= mip_column_hash(column, slot->tts_values[attr]);
	}
	return murmurhash32(hash);
}

static void
map_grow(MipRowMap *map)
{
	map->room *= 2;
	map->entries = repalloc_huge(map->entries, mul_size(map->room, sizeof(MapEntry)));
	map->nbuckets *= 2;
	map->buckets = repalloc_huge(map->buckets, mul_size(map->nbuckets, sizeof(uint32)));
	memset(map->buckets, 0, map->nbuckets * sizeof(uint32));
	for (uint32 i = 0; i < map->count; i++)
	{
		uint32	   *bucket = &map->buckets[map->entries[i].hash & (map->nbuckets - 1)];

		map->entries[i].next = *bucket;
		*bucket = i + 1;
	}
}

static void
map_give_up(MipRowMap *map)
{
	pfree(map->entries);
	pfree(map->buckets);
	map->given_up = true;
}

static void
map_add(MipTarget *target, TupleTableSlot *slot)
{
	MipRowMap  *map = target->map;
	MapEntry   *entry;
	uint32	   *bucket;

	if (map == NULL || map->given_up)
		return;
	if (map->count == map->room)
	{
		if (map->room > get_hash_memory_limit() / sizeof(MapEntry) / 2)
		{
			map_give_up(map);
			return;
		}
		map_grow(map);
	}
	entry = &map->entries[map->count++];
	entry->hash = row_hash(target, slot);
	entry->tid = slot->tts_tid;
	bucket = &map->buckets[entry->hash & (map->nbuckets - 1)];
	entry->next = *bucket;
	*bucket = map->count;
}

void
mip_apply_remember(MipTarget *target, TupleTableSlot *slot)
{
	map_add(target, slot);
	for (MipTarget *twin = target->twin; twin != target; twin = twin->twin)
		map_add(twin, slot);
}

static MipRowMap *
map_create(MemoryContext memory)
{
	MemoryContext before = MemoryContextSwitchTo(memory);
	MipRowMap  *map = palloc0(sizeof(MipRowMap));

	map->nbuckets = map->room = 1024;
	map->buckets = palloc0(map->nbuckets * sizeof(uint32));
	map->entries = palloc(map->room * sizeof(MapEntry));
	MemoryContextSwitchTo(before);
	return map;
}

/* Reads all rows. */
static void
fill_map(MipApply *apply, MipTarget *target)
{
	TableScanDesc scan = table_beginscan(target->rel, apply->snapshot, 0, NULL);

	target->map = map_create(apply->estate->es_query_cxt);
	while (!target->map->given_up &&
		   table_scan_getnextslot(scan, ForwardScanDirection, target->found))
	{
		CHECK_FOR_INTERRUPTS();
		map_add(target, target->found);
	}
	table_endscan(scan);
}

typedef struct MapSearch
{
	const MipApply *apply;
	uint32		hash;
	uint32		next;
} MapSearch;

static bool
next_of_map(MipTarget *target, void *state)
{
	MapSearch  *search = state;

	while (search->next > 0)
	{
		MapEntry   *entry = &target->map->entries[search->next - 1];

		search->next = entry->next;
		if (entry->hash == search->hash &&
			table_tuple_fetch_row_version(target->rel, &entry->tid, search->apply->snapshot,
										  target->found))
			return true;
	}
	return false;
}

static bool
find_by_map(MipApply *apply, MipTarget *target)
{
	MapSearch	search = {.apply = apply};

	if (target->map == NULL)
		fill_map(apply, target);
	if (target->map->given_up)
		return false;
	search.hash = row_hash(target, target->wanted);
	search.next = target->map->buckets[search.hash & (target->map->nbuckets - 1)];
	return find(apply, target, next_of_map, &search);
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

/* What triggers execute, and what constraints do, takes commands of its own. */
static void
catch_up(MipApply *apply)
{
	if (apply->snapshot->curcid != GetCurrentCommandId(false))
		UpdateActiveSnapshotCommandId();
}

bool
mip_apply_find(MipApply *apply, MipTarget *target)
{
	catch_up(apply);
	if (target->index)
		return find_by_index(apply, target);
	if (apply->set->updated + apply->set->deleted >= MAP_FROM && find_by_map(apply, target))
		return true;
	return find_by_reading(apply, target);
}
