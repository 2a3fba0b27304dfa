/*-------------------------------------------------------------------------
 *
 * wal.c
 *	  Changing a tuple's xmax: apply, log, replay.
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
#include "wal.h"

static void
apply(Page page, const MipXmaxChange *change)
{
	HeapTupleHeader htup = (HeapTupleHeader)
		PageGetItem(page, PageGetItemId(page, change->offnum));

	htup->t_infomask &= ~(HEAP_XMAX_BITS | HEAP_MOVED);
	htup->t_infomask |= change->infomask;
	htup->t_infomask2 &= ~HEAP_KEYS_UPDATED;
	htup->t_infomask2 |= change->infomask2;
	HeapTupleHeaderSetXmax(htup, change->xmax);
	if (change->flags & MIP_XMAX_SET_CTID)
		htup->t_ctid = change->ctid;
	if (change->flags & MIP_XMAX_CLEAR_HOT)
		HeapTupleHeaderClearHotUpdated(htup);
	if (change->flags & MIP_XMAX_CLEAR_VM)
		PageClearAllVisible(page);
	if (change->flags & MIP_XMAX_PRUNABLE)
		PageSetPrunable(page, change->updater);
}

void
mip_set_xmax(Relation rel, Buffer buffer, Buffer vmbuffer, MipXmaxChange *change)
{
	Page		page = BufferGetPage(buffer);
	BlockNumber block = BufferGetBlockNumber(buffer);

	if (PageIsAllVisible(page))
		change->flags |= MIP_XMAX_CLEAR_VM;

	START_CRIT_SECTION();
	if (change->flags & MIP_XMAX_CLEAR_VM)
		visibilitymap_clear(rel, block, vmbuffer, VISIBILITYMAP_VALID_BITS);
	apply(page, change);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(rel))
	{
		XLogRecPtr	lsn;

		XLogBeginInsert();
		XLogRegisterData((char *) change, SizeOfMipXmaxChange);
		XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
		lsn = XLogInsert(RM_MIP_ID, XLOG_MIP_SET_XMAX);
		PageSetLSN(page, lsn);
	}
	END_CRIT_SECTION();
}

static void
mip_redo(XLogReaderState *record)
{
	MipXmaxChange change;
	MipFileLocator file;
	BlockNumber block;
	Buffer		buffer;

	memcpy(&change, XLogRecGetData(record), SizeOfMipXmaxChange);
	XLogRecGetBlockTag(record, 0, &file, NULL, &block);

	/* The map first: it may be stale even where the page is not. */
	if (change.flags & MIP_XMAX_CLEAR_VM)
	{
		Relation	rel = CreateFakeRelcacheEntry(file);
		Buffer		vmbuffer = InvalidBuffer;

		visibilitymap_pin(rel, block, &vmbuffer);
		visibilitymap_clear(rel, block, vmbuffer, VISIBILITYMAP_VALID_BITS);
		ReleaseBuffer(vmbuffer);
		FreeFakeRelcacheEntry(rel);
	}
	if (XLogReadBufferForRedo(record, 0, &buffer) == BLK_NEEDS_REDO)
	{
		Page		page = BufferGetPage(buffer);

		apply(page, &change);
		PageSetLSN(page, record->EndRecPtr);
		MarkBufferDirty(buffer);
	}
	if (BufferIsValid(buffer))
		UnlockReleaseBuffer(buffer);
}

static void
mip_desc(StringInfo buf, XLogReaderState *record)
{
	MipXmaxChange change;

	memcpy(&change, XLogRecGetData(record), SizeOfMipXmaxChange);
	appendStringInfo(buf, "off: %u, xmax: %u, infomask: 0x%04X, infomask2: 0x%04X, flags: 0x%02X",
					 change.offnum, change.xmax, change.infomask,
					 change.infomask2, change.flags);
	if (change.flags & MIP_XMAX_SET_CTID)
		appendStringInfo(buf, ", ctid: (%u,%u)",
						 ItemPointerGetBlockNumberNoCheck(&change.ctid),
						 ItemPointerGetOffsetNumberNoCheck(&change.ctid));
}

static const char *
mip_identify(uint8 info)
{
	return (info & ~XLR_INFO_MASK) == XLOG_MIP_SET_XMAX ? "SET_XMAX" : NULL;
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
	};

	RegisterCustomRmgr(RM_MIP_ID, &rmgr);
}
