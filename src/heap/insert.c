/*-------------------------------------------------------------------------
 *
 * insert.c
 *	  Inserting an overlay's new version.
 *
 * To its own transaction, and to indexes, it is an insertion; to those who
 * come upon it after the hand-over, the new version of an update, which it is
 * from the start in its header: whoever rewrites the table (VACUUM FULL,
 * CLUSTER) pairs old and new versions by HEAP_UPDATED, and cuts a chain where
 * it is missing. heap_insert would take the bit away.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heapam_xlog.h"
#include "access/heaptoast.h"
#include "access/hio.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/catalog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"

#include "base/compat.h"
#include "heap/insert.h"
#include "heap/logical.h"
#include "heap/map.h"
#include "heap/version.h"
#include "heap/wal.h"

/* As heap_update prepares a new version; returns `tuple` or a toasted copy. */
static HeapTuple
prepare_tuple(Relation rel, HeapTuple tuple, CommandId cid)
{
	HeapTupleHeader htup = tuple->t_data;

	htup->t_infomask &= ~HEAP_XACT_MASK;
	htup->t_infomask2 &= ~HEAP2_XACT_MASK;
	htup->t_infomask |= HEAP_UPDATED | HEAP_XMAX_INVALID;
	HeapTupleHeaderSetXmin(htup, GetCurrentTransactionId());
	HeapTupleHeaderSetCmin(htup, cid);
	HeapTupleHeaderSetXmax(htup, InvalidTransactionId);
	if (HeapTupleHasExternal(tuple) || tuple->t_len > TOAST_TUPLE_THRESHOLD)
		return heap_toast_insert_or_update(rel, tuple, NULL, 0);
	return tuple;
}

/* heap_insert's record; its redo takes the header as it is here. */
static XLogRecPtr
log_insert(Buffer buffer, HeapTuple tuple, const MipMapChange *map)
{
	uint8		info = XLOG_HEAP_INSERT;
	uint8		flags = REGBUF_STANDARD;
	xl_heap_insert xlrec = {0};
	xl_heap_header header = mip_xl_heap_header(tuple->t_data);

	xlrec.offnum = ItemPointerGetOffsetNumber(&tuple->t_self);
	if (map->clear)
		xlrec.flags |= XLH_INSERT_ALL_VISIBLE_CLEARED;
	if (mip_is_only_tuple(buffer, tuple))
	{
		info |= XLOG_HEAP_INIT_PAGE;
		flags |= REGBUF_WILL_INIT;
	}

	XLogBeginInsert();
	XLogRegisterData((char *) &xlrec, SizeOfHeapInsert);
	XLogRegisterBuffer(0, buffer, flags);
	XLogRegisterBufData(0, (char *) &header, SizeOfHeapHeader);
	XLogRegisterBufData(0, (char *) tuple->t_data + SizeofHeapTupleHeader,
						tuple->t_len - SizeofHeapTupleHeader);
	mip_map_register(map, MIP_HEAP_INSERT_MAP_BLOCK);
	XLogSetRecordFlags(XLOG_INCLUDE_ORIGIN);
	return XLogInsert(RM_HEAP_ID, info);
}

static void
put_tuple(Relation rel, HeapTuple tuple, ItemPointer base, HeapTuple identity)
{
	Buffer		vmbuffer = InvalidBuffer;
	Buffer		buffer = MIP_BUFFER_FOR_TUPLE(rel, tuple->t_len, &vmbuffer);
	bool		logical = RelationIsLogicallyLogged(rel);
	BlockNumber stub = InvalidBlockNumber;
	MipMapChange map;

	if (logical)
		stub = mip_logical_stub(rel, BufferGetBlockNumber(buffer));
	CheckForSerializableConflictIn(rel, NULL, InvalidBlockNumber);
	map = mip_map_begin(buffer, vmbuffer);

	START_CRIT_SECTION();
	RelationPutHeapTuple(rel, buffer, tuple, false);
	mip_map_clear(&map, rel, buffer);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(rel))
	{
		XLogRecPtr	lsn = logical ?
			mip_logical_log_update(rel, buffer, tuple, ItemPointerGetOffsetNumber(base),
								   identity, stub, &map) :
			log_insert(buffer, tuple, &map);

		PageSetLSN(BufferGetPage(buffer), lsn);
		mip_map_logged(&map, lsn);
	}
	END_CRIT_SECTION();

	UnlockReleaseBuffer(buffer);
	mip_map_end(&map);
	if (BufferIsValid(vmbuffer))
		ReleaseBuffer(vmbuffer);
}

void
mip_insert_version(Relation rel, ItemPointer base, TupleTableSlot *slot,
				   CommandId cid)
{
	bool		free_tuple;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, true, &free_tuple);
	HeapTuple	identity = NULL;
	HeapTuple	toasted;

	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	if (RelationIsLogicallyLogged(rel))
		identity = mip_logical_identity(rel, base, tuple);
	slot->tts_tableOid = tuple->t_tableOid = RelationGetRelid(rel);
	toasted = prepare_tuple(rel, tuple, cid);
	put_tuple(rel, toasted, base, identity);
	slot->tts_tid = tuple->t_self = toasted->t_self;

	if (toasted != tuple)
		heap_freetuple(toasted);
	if (free_tuple)
		heap_freetuple(tuple);
	if (identity)
		heap_freetuple(identity);
}
