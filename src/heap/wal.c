/*-------------------------------------------------------------------------
 *
 * wal.c
 *	  Our resource manager. Changing a tuple's xmax: apply, log, replay. The
 *	  begin of an instance: for logical decoding only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/bufmask.h"
#include "access/heapam_xlog.h"
#include "access/rmgr.h"
#include "access/visibilitymap.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/relcache.h"

#include "base/compat.h"
#include "base/preload.h"
#include "heap/logical.h"
#include "heap/map.h"
#include "heap/wal.h"

/* The visibility map's page in XLOG_MIP_SET_XMAX, if it has changed. */
#define MAP_BLOCK	1

static void
apply(Page page, const MipXmaxChange *change)
{
	HeapTupleHeader htup = (HeapTupleHeader)
		PageGetItem(page, PageGetItemId(page, change->offnum));

	Assert(ItemIdIsNormal(PageGetItemId(page, change->offnum)));
	htup->t_infomask &= ~(HEAP_XMAX_BITS | HEAP_MOVED);
	htup->t_infomask |= change->infomask;
	htup->t_infomask2 &= ~HEAP_KEYS_UPDATED;
	htup->t_infomask2 |= change->infomask2;
	HeapTupleHeaderSetXmax(htup, change->xmax);
	if (change->flags & MIP_XMAX_SET_CTID)
		htup->t_ctid = change->ctid;
	if (change->flags & MIP_XMAX_CLEAR_HOT)
		HeapTupleHeaderClearHotUpdated(htup);
	if (change->flags & MIP_XMAX_UPDATED)
	{
		HeapTupleHeaderSetCmax(htup, change->cid, false);
		PageSetPrunable(page, change->updater);
	}
}

/* As heap_update, which does not log it: this page had no room for the new version. */
static void
hint_full(Buffer buffer, const MipXmaxChange *change)
{
	BlockNumber next = ItemPointerGetBlockNumberNoCheck(&change->ctid);

	if ((change->flags & MIP_XMAX_UPDATED) && next != BufferGetBlockNumber(buffer) &&
		next != MovedPartitionsBlockNumber)
		PageSetFull(BufferGetPage(buffer));
}

void
mip_set_xmax(Relation rel, Buffer buffer, Buffer vmbuffer, MipXmaxChange *change)
{
	Page		page = BufferGetPage(buffer);
	MipMapChange map;

	Assert(!(change->flags & MIP_XMAX_UPDATED) == !TransactionIdIsValid(change->updater));
	Assert(!(change->infomask & HEAP_XMAX_LOCK_ONLY) || !(change->flags & MIP_XMAX_UPDATED));
	mip_require_preload();		/* or nobody could replay it */
	map = mip_map_begin(buffer, vmbuffer);
	if (map.clear)
		change->flags |= MIP_XMAX_CLEAR_VM;

	START_CRIT_SECTION();
	mip_map_clear(&map, rel, buffer);
	apply(page, change);
	hint_full(buffer, change);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(rel))
	{
		XLogRecPtr	lsn;

		XLogBeginInsert();
		XLogRegisterData((char *) change, SizeOfMipXmaxChange);
		XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
		mip_map_register(&map, MAP_BLOCK);
		lsn = XLogInsert(RM_MIP_ID, XLOG_MIP_SET_XMAX);
		PageSetLSN(page, lsn);
		mip_map_logged(&map, lsn);
	}
	END_CRIT_SECTION();
	mip_map_end(&map);
}

/*
 * Logical decoding is to know an instance from its first record on: see
 * logical_decode.c.
 */
void
mip_log_begin(int64 xinst)
{
	if (!XLogLogicalInfoActive())
		return;
	XLogBeginInsert();
	XLogRegisterData((char *) &xinst, sizeof(xinst));
	(void) XLogInsert(RM_MIP_ID, XLOG_MIP_BEGIN);
}

/* ---- replay ---- */

static void
redo_map(XLogReaderState *record, MipFileLocator file, BlockNumber block)
{
	Relation	rel = CreateFakeRelcacheEntry(file);
	Buffer		vmbuffer = InvalidBuffer;

#ifdef MIP_MAP_IS_REGISTERED
	if (XLogRecHasBlockRef(record, MAP_BLOCK))
	{
		if (XLogReadBufferForRedo(record, MAP_BLOCK, &vmbuffer) == BLK_NEEDS_REDO &&
			visibilitymap_clear_locked(rel, block, vmbuffer,
									   VISIBILITYMAP_VALID_BITS))
			PageSetLSN(BufferGetPage(vmbuffer), record->EndRecPtr);
		if (BufferIsValid(vmbuffer))
			UnlockReleaseBuffer(vmbuffer);
		FreeFakeRelcacheEntry(rel);
		return;
	}
#endif
	visibilitymap_pin(rel, block, &vmbuffer);
	visibilitymap_clear(rel, block, vmbuffer, VISIBILITYMAP_VALID_BITS);
	ReleaseBuffer(vmbuffer);
	FreeFakeRelcacheEntry(rel);
}

static void
redo_set_xmax(XLogReaderState *record)
{
	MipXmaxChange change = {.cid = FirstCommandId};
	MipFileLocator file;
	BlockNumber block;
	Buffer		buffer;

	memcpy(&change, XLogRecGetData(record), SizeOfMipXmaxChange);
	XLogRecGetBlockTag(record, 0, &file, NULL, &block);

	/* The map first: it may be stale even where the page is not. */
	if (change.flags & MIP_XMAX_CLEAR_VM)
		redo_map(record, file, block);
	if (XLogReadBufferForRedo(record, 0, &buffer) == BLK_NEEDS_REDO)
	{
		Page		page = BufferGetPage(buffer);

		apply(page, &change);
		if (change.flags & MIP_XMAX_CLEAR_VM)
			PageClearAllVisible(page);
		PageSetLSN(page, record->EndRecPtr);
		MarkBufferDirty(buffer);
	}
	if (BufferIsValid(buffer))
		UnlockReleaseBuffer(buffer);
}

static uint8
opcode(XLogReaderState *record)
{
	return XLogRecGetInfo(record) & ~XLR_INFO_MASK;
}

static void
mip_redo(XLogReaderState *record)
{
	switch (opcode(record))
	{
		case XLOG_MIP_SET_XMAX:
			redo_set_xmax(record);
			break;
		case XLOG_MIP_BEGIN:
			break;
		default:
			elog(PANIC, "pg_mip: unknown WAL record type %u", opcode(record));
	}
}

static void
desc_set_xmax(StringInfo buf, const char *data)
{
	MipXmaxChange change;

	memcpy(&change, data, SizeOfMipXmaxChange);
	appendStringInfo(buf, "off: %u, xmax: %u, infomask: 0x%04X, infomask2: 0x%04X, flags: 0x%02X",
					 change.offnum, change.xmax, change.infomask,
					 change.infomask2, change.flags);
	if (change.flags & MIP_XMAX_SET_CTID)
		appendStringInfo(buf, ", ctid: (%u,%u)",
						 ItemPointerGetBlockNumberNoCheck(&change.ctid),
						 ItemPointerGetOffsetNumberNoCheck(&change.ctid));
}

static void
mip_desc(StringInfo buf, XLogReaderState *record)
{
	int64		xinst;

	switch (opcode(record))
	{
		case XLOG_MIP_SET_XMAX:
			desc_set_xmax(buf, XLogRecGetData(record));
			break;
		case XLOG_MIP_BEGIN:
			memcpy(&xinst, XLogRecGetData(record), sizeof(xinst));
			appendStringInfo(buf, "xinst: " INT64_FORMAT, xinst);
			break;
	}
}

static const char *
mip_identify(uint8 info)
{
	switch (info & ~XLR_INFO_MASK)
	{
		case XLOG_MIP_SET_XMAX:
			return "SET_XMAX";
		case XLOG_MIP_BEGIN:
			return "BEGIN";
		default:
			return NULL;
	}
}

void
mip_wal_register(void)
{
	static RmgrData rmgr = {
		.rm_name = "pg_mip",
		.rm_redo = mip_redo,
		.rm_desc = mip_desc,
		.rm_identify = mip_identify,
		.rm_mask = heap_mask,
		.rm_decode = mip_logical_decode,
	};

	RegisterCustomRmgr(RM_MIP_ID, &rmgr);
}
