/*-------------------------------------------------------------------------
 *
 * logical.c
 *	  Logging overlay changes so that logical decoding sees them as made.
 *
 * On the page an overlay's new version comes alone, and its delete is
 * nothing at all: the base version's header changes no earlier than at the
 * hand-over, if ever, and often by somebody else. Logical decoding is to see
 * an update and a delete nevertheless, within the instance's transaction. So
 * both are logged as heap's own records of these, with a stub in place of the
 * base version's page: a block of the free space map, with an image that redo
 * always restores. Having restored it, redo does not look for the old version
 * there. Decoding reads neither block numbers nor forks.
 *
 * The stub is an empty page, 24 bytes in WAL and to the free space map a page
 * that knows of no space, at a place behind those that the table needs. What
 * the map says is a hint in any case.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/heaptoast.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/catalog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fsm_internals.h"
#include "utils/datum.h"

#include "base/compat.h"
#include "heap/logical.h"
#include "heap/map.h"
#include "heap/version.h"
#include "heap/wal.h"

/* ---- the stub ---- */

static PGAlignedBlock stub_page;

/* The levels of a free space map, at most. */
#define FSM_LEVELS	4

/*
 * A block of the free space map behind the leaf for the table's last block.
 * Redo of an update compares the numbers of both blocks, and takes equal ones
 * for the same page: not `other`, therefore.
 */
BlockNumber
mip_logical_stub(Relation rel, BlockNumber other)
{
	BlockNumber leaf = RelationGetNumberOfBlocks(rel) / SlotsPerFSMPage;
	BlockNumber block = FSM_LEVELS;

	if (PageIsNew(stub_page.data))
		PageInit(stub_page.data, BLCKSZ, 0);
	for (; leaf > 0; leaf /= SlotsPerFSMPage)
		block += leaf;
	return block == other ? block + 1 : block;
}

/* No image without REGBUF_FORCE_IMAGE if full_page_writes is off. */
static void
register_stub(Relation rel, uint8 block_id, BlockNumber block)
{
	XLogRegisterBlock(block_id, &rel->MIP_RD_LOCATOR, FSM_FORKNUM, block,
					  stub_page.data, REGBUF_STANDARD | REGBUF_FORCE_IMAGE);
}

/* ---- replica identity: heap's ExtractReplicaIdentity ---- */

static bool
identity_changes(Relation rel, Bitmapset *columns, HeapTuple old, HeapTuple new)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int			i = -1;

	while ((i = bms_next_member(columns, i)) >= 0)
	{
		AttrNumber	attno = i + FirstLowInvalidHeapAttributeNumber;
		Form_pg_attribute att = TupleDescAttr(desc, attno - 1);
		bool		was_null,
					is_null;
		Datum		was = heap_getattr(old, attno, desc, &was_null);
		Datum		is = heap_getattr(new, attno, desc, &is_null);

		if (was_null || is_null)
			return true;
		/* decoding could not fetch it */
		if (att->attlen == -1 && VARATT_IS_EXTERNAL(DatumGetPointer(was)))
			return true;
		if (!datumIsEqual(was, is, att->attbyval, att->attlen))
			return true;
	}
	return false;
}

/* `old` without the columns that do not identify it. */
static HeapTuple
identity_of(Relation rel, Bitmapset *columns, HeapTuple old)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	HeapTuple	key;

	heap_deform_tuple(old, desc, values, nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		if (!bms_is_member(i + 1 - FirstLowInvalidHeapAttributeNumber, columns))
			nulls[i] = true;
	}
	key = heap_form_tuple(desc, values, nulls);
	pfree(values);
	pfree(nulls);
	return key;
}

/* All of it for REPLICA IDENTITY FULL, else the key if it is needed. */
HeapTuple
mip_logical_identity(Relation rel, ItemPointer base, HeapTuple new)
{
	char		kind = rel->rd_rel->relreplident;
	Bitmapset  *columns = NULL;
	MipHeader	header;
	HeapTuple	old;
	HeapTuple	identity = NULL;

	Assert(RelationIsLogicallyLogged(rel));
	if (kind == REPLICA_IDENTITY_NOTHING)
		return NULL;
	if (kind != REPLICA_IDENTITY_FULL)
	{
		columns = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_IDENTITY_KEY);
		if (bms_is_empty(columns))
			return NULL;
	}
	if (!mip_read_header(rel, base, &header, &old))
		elog(ERROR, "pg_mip: a version that was just locked is gone");
	if (kind == REPLICA_IDENTITY_FULL)
		identity = old;
	else if (new == NULL || identity_changes(rel, columns, old, new))
		identity = identity_of(rel, columns, old);
	if (identity && HeapTupleHasExternal(identity))
		identity = toast_flatten_tuple(identity, RelationGetDescr(rel));
	if (identity != old)
		heap_freetuple(old);
	bms_free(columns);
	return identity;
}

/* Its header and data at the end of a record. */
static void
register_identity(HeapTuple identity, xl_heap_header *header)
{
	*header = mip_xl_heap_header(identity->t_data);
	XLogRegisterData((char *) header, SizeOfHeapHeader);
	XLogRegisterData((char *) identity->t_data + SizeofHeapTupleHeader,
					 identity->t_len - SizeofHeapTupleHeader);
}

static bool
identity_is_full(Relation rel)
{
	return rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL;
}

/* ---- update ---- */

XLogRecPtr
mip_logical_log_update(Relation rel, Buffer buffer, HeapTuple tuple,
					   OffsetNumber base, HeapTuple identity, BlockNumber stub,
					   const MipMapChange *map)
{
	uint8		info = XLOG_HEAP_UPDATE;
	uint8		flags = REGBUF_STANDARD | REGBUF_KEEP_DATA;
	xl_heap_update xlrec = {0};
	xl_heap_header header = mip_xl_heap_header(tuple->t_data);
	xl_heap_header identity_header;

	Assert(CritSectionCount > 0);
	Assert(mip_buffer_is_exclusive(buffer));
	Assert(stub != BufferGetBlockNumber(buffer));
	xlrec.old_xmax = GetCurrentTransactionId();
	xlrec.old_offnum = base;
	xlrec.new_xmax = InvalidTransactionId;
	xlrec.new_offnum = ItemPointerGetOffsetNumber(&tuple->t_self);
	xlrec.flags = XLH_UPDATE_CONTAINS_NEW_TUPLE;
	if (map->clear)
		xlrec.flags |= XLH_UPDATE_NEW_ALL_VISIBLE_CLEARED;
	if (identity)
		xlrec.flags |= identity_is_full(rel) ?
			XLH_UPDATE_CONTAINS_OLD_TUPLE : XLH_UPDATE_CONTAINS_OLD_KEY;
	if (mip_is_only_tuple(buffer, tuple))
	{
		info |= XLOG_HEAP_INIT_PAGE;
		flags |= REGBUF_WILL_INIT;
	}

	XLogBeginInsert();
	XLogRegisterBuffer(0, buffer, flags);
	register_stub(rel, 1, stub);
	mip_map_register(map, MIP_HEAP_UPDATE_MAP_BLOCK);
	XLogRegisterData((char *) &xlrec, SizeOfHeapUpdate);
	XLogRegisterBufData(0, (char *) &header, SizeOfHeapHeader);
	XLogRegisterBufData(0, (char *) tuple->t_data + SizeofHeapTupleHeader,
						tuple->t_len - SizeofHeapTupleHeader);
	if (identity)
		register_identity(identity, &identity_header);
	XLogSetRecordFlags(XLOG_INCLUDE_ORIGIN);
	return XLogInsert(RM_HEAP_ID, info);
}

/* ---- delete ---- */

/* No page changes. */
void
mip_logical_delete(Relation rel, ItemPointer base, bool changing_part)
{
	HeapTuple	identity = mip_logical_identity(rel, base, NULL);
	BlockNumber stub = mip_logical_stub(rel, InvalidBlockNumber);
	xl_heap_delete xlrec = {0};
	xl_heap_header header;

	xlrec.xmax = GetCurrentTransactionId();
	xlrec.offnum = ItemPointerGetOffsetNumber(base);
	if (changing_part)
		xlrec.flags |= XLH_DELETE_IS_PARTITION_MOVE;
	if (identity)
		xlrec.flags |= identity_is_full(rel) ?
			XLH_DELETE_CONTAINS_OLD_TUPLE : XLH_DELETE_CONTAINS_OLD_KEY;

	XLogBeginInsert();
	XLogRegisterData((char *) &xlrec, SizeOfHeapDelete);
	register_stub(rel, 0, stub);
	if (identity)
		register_identity(identity, &header);
	XLogSetRecordFlags(XLOG_INCLUDE_ORIGIN);
	(void) XLogInsert(RM_HEAP_ID, XLOG_HEAP_DELETE);

	if (identity)
		heap_freetuple(identity);
}
