/*-------------------------------------------------------------------------
 *
 * apply_map.h
 *	  Where rows are, by hashes of their values.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_MAP_H
#define MIP_APPLY_MAP_H

#include "storage/itemptr.h"

/* Only rows whose hashes are expected are kept: no more than will be looked for. */
typedef struct MipRowMap MipRowMap;

/* In this memory context, which should have nothing else in it */
extern MipRowMap *mip_rows_create(MemoryContext memory);
extern void mip_rows_expect(MipRowMap *map, uint32 hash);

/* Without rows; the same hashes are expected. */
extern void mip_rows_clear(MipRowMap *map);

/* Behind those that have the same hash */
extern void mip_rows_put(MipRowMap *map, uint32 hash, ItemPointer tid);

/* Have rows been left out, since there were more than hash tables may take? */
extern bool mip_rows_is_full(const MipRowMap *map);

/* Rows with this hash, in the order in which they came: {.hash = hash} comes first. */
typedef struct MipMapSearch
{
	uint32		hash;
	bool		begun;
	uint32		before;
	uint32		at;
} MipMapSearch;

extern bool mip_rows_next(const MipRowMap *map, MipMapSearch *search, ItemPointer tid);

/* The row that the search is at is not to be found any more. It ends the search. */
extern void mip_rows_take(MipRowMap *map, const MipMapSearch *search);

#endif							/* MIP_APPLY_MAP_H */
