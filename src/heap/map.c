/*-------------------------------------------------------------------------
 *
 * map.c
 *	  The visibility map's part in a change to a heap page.
 *
 * Where heap's own records refer to the map's page (late minors of 17 and
 * 18), so must ours: incremental backups would miss the change otherwise. The
 * page stays locked then until its LSN is set.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/visibilitymap.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "base/compat.h"
#include "heap/map.h"

MipMapChange
mip_map_begin(Buffer heap, Buffer vmbuffer)
{
	MipMapChange map = {.buffer = vmbuffer};

	Assert(CritSectionCount == 0);
	Assert(mip_buffer_is_exclusive(heap));
	map.clear = PageIsAllVisible(BufferGetPage(heap));
	Assert(!map.clear || visibilitymap_pin_ok(BufferGetBlockNumber(heap), vmbuffer));
#ifdef MIP_MAP_IS_REGISTERED
	if (map.clear)
		LockBuffer(vmbuffer, BUFFER_LOCK_EXCLUSIVE);
#endif
	return map;
}

void
mip_map_clear(MipMapChange *map, Relation rel, Buffer heap)
{
	Assert(CritSectionCount > 0);
	if (!map->clear)
		return;
	PageClearAllVisible(BufferGetPage(heap));
#ifdef MIP_MAP_IS_REGISTERED
	map->changed = visibilitymap_clear_locked(rel, BufferGetBlockNumber(heap),
											  map->buffer, VISIBILITYMAP_VALID_BITS);
#else
	visibilitymap_clear(rel, BufferGetBlockNumber(heap), map->buffer,
						VISIBILITYMAP_VALID_BITS);
#endif
}

void
mip_map_register(const MipMapChange *map, uint8 block_id)
{
	Assert(CritSectionCount > 0);
	if (map->changed)
		XLogRegisterBuffer(block_id, map->buffer, 0);
}

void
mip_map_logged(const MipMapChange *map, XLogRecPtr lsn)
{
	Assert(CritSectionCount > 0);
	if (map->changed)
		PageSetLSN(BufferGetPage(map->buffer), lsn);
}

void
mip_map_end(const MipMapChange *map)
{
	Assert(CritSectionCount == 0);
#ifdef MIP_MAP_IS_REGISTERED
	if (map->clear)
		LockBuffer(map->buffer, BUFFER_LOCK_UNLOCK);
#endif
}
