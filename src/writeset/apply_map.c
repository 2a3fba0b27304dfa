/*-------------------------------------------------------------------------
 *
 * apply_map.c
 *	  Where rows are, by hashes of their values.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "writeset/apply_map.h"

/* Rows with the same hash are a queue, by numbers in `entries`, plus one. */
typedef struct MapEntry
{
	ItemPointerData tid;
	uint32		next;
} MapEntry;

typedef struct MapQueue
{
	uint32		hash;
	uint32		first;
	uint32		last;
	char		status;
} MapQueue;

#define SH_PREFIX queues
#define SH_ELEMENT_TYPE MapQueue
#define SH_KEY_TYPE uint32
#define SH_KEY hash
#define SH_HASH_KEY(table, key) (key)
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

struct MipRowMap
{
	queues_hash *queues;
	MapEntry   *entries;
	uint32		count;
	uint32		room;
	uint32		free;			/* those taken, as a queue */
	bool		full;
};

MipRowMap *
mip_rows_create(MemoryContext memory)
{
	MipRowMap  *map = MemoryContextAllocZero(memory, sizeof(MipRowMap));

	map->queues = queues_create(memory, 64, NULL);
	map->room = 64;
	map->entries = MemoryContextAlloc(memory, map->room * sizeof(MapEntry));
	return map;
}

void
mip_rows_expect(MipRowMap *map, uint32 hash)
{
	bool		found;
	MapQueue   *queue = queues_insert(map->queues, hash, &found);

	if (!found)
		queue->first = queue->last = 0;
}

void
mip_rows_clear(MipRowMap *map)
{
	queues_iterator i;
	MapQueue   *queue;

	queues_start_iterate(map->queues, &i);
	while ((queue = queues_iterate(map->queues, &i)) != NULL)
		queue->first = queue->last = 0;
	map->count = map->free = 0;
	map->full = false;
}

/* Room for one more; 0: there is none. */
static uint32
new_entry(MipRowMap *map)
{
	uint32		entry = map->free;

	if (entry > 0)
	{
		map->free = map->entries[entry - 1].next;
		return entry;
	}
	if (map->count == map->room)
	{
		if (map->room > get_hash_memory_limit() / sizeof(MapEntry) / 2)
			return 0;
		map->room *= 2;
		map->entries = repalloc_huge(map->entries, mul_size(map->room, sizeof(MapEntry)));
	}
	return ++map->count;
}

void
mip_rows_put(MipRowMap *map, uint32 hash, ItemPointer tid)
{
	MapQueue   *queue = queues_lookup(map->queues, hash);
	uint32		entry;

	if (queue == NULL)
		return;
	entry = new_entry(map);
	if (entry == 0)
	{
		map->full = true;
		return;
	}
	map->entries[entry - 1].tid = *tid;
	map->entries[entry - 1].next = 0;
	if (queue->first == 0)
		queue->first = entry;
	else
		map->entries[queue->last - 1].next = entry;
	queue->last = entry;
}

bool
mip_rows_is_full(const MipRowMap *map)
{
	return map->full;
}

bool
mip_rows_next(const MipRowMap *map, MipMapSearch *search, ItemPointer tid)
{
	if (search->begun)
	{
		search->before = search->at;
		search->at = map->entries[search->at - 1].next;
	}
	else
	{
		MapQueue   *queue = queues_lookup(map->queues, search->hash);

		search->begun = true;
		search->before = 0;
		search->at = queue ? queue->first : 0;
	}
	if (search->at == 0)
		return false;
	*tid = map->entries[search->at - 1].tid;
	return true;
}

void
mip_rows_take(MipRowMap *map, const MipMapSearch *search)
{
	MapQueue   *queue = queues_lookup(map->queues, search->hash);
	MapEntry   *entry = &map->entries[search->at - 1];

	if (search->before == 0)
		queue->first = entry->next;
	else
		map->entries[search->before - 1].next = entry->next;
	if (queue->last == search->at)
		queue->last = search->before;
	entry->next = map->free;
	map->free = search->at;
}
