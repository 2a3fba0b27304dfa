/*-------------------------------------------------------------------------
 *
 * map.h
 *	  The visibility map's part in a change to a heap page.
 *
 * Usage: begin; START_CRIT_SECTION; clear; register (or not, without WAL);
 * XLogInsert; logged; END_CRIT_SECTION; end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_MAP_H
#define MIP_MAP_H

#include "access/xlogdefs.h"
#include "storage/buf.h"
#include "utils/rel.h"

typedef struct MipMapChange
{
	Buffer		buffer;			/* the map's page, pinned by the caller */
	bool		clear;			/* the heap page is all-visible */
	bool		changed;		/* the map's page has changed */
} MipMapChange;

/* `heap` is exclusively locked, `vmbuffer` pinned if it is all-visible. */
extern MipMapChange mip_map_begin(Buffer heap, Buffer vmbuffer);
extern void mip_map_clear(MipMapChange *map, Relation rel, Buffer heap);
extern void mip_map_register(const MipMapChange *map, uint8 block_id);
extern void mip_map_logged(const MipMapChange *map, XLogRecPtr lsn);
extern void mip_map_end(const MipMapChange *map);

#endif							/* MIP_MAP_H */
