/*-------------------------------------------------------------------------
 *
 * tableam.c
 *	  The table access method "mip": heap's routine with some callbacks
 *	  wrapped. On disk a mip table is a heap table.
 *
 * Outside a MIP transaction every wrapper is one branch in front of heap's
 * callback.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "tableam/am.h"
#include "tableam/capture.h"
#include "tableam/free_keys.h"
#include "tableam/look.h"
#include "tableam/tableam.h"

PG_FUNCTION_INFO_V1(mip_tableam_handler);

/* ---- index builds: heap_getnext insists on heap's own routine ---- */

/*
 * A copy of a relation's descriptor that says "heap", for heap's scan code
 * only; the relation itself must not change under its users' eyes (and a
 * relcache rebuild would undo it). Lives as long as resource owners may look
 * at it after an error.
 */
static Relation
heap_view(Relation rel)
{
	Relation	view = MemoryContextAlloc(TopTransactionContext, sizeof(RelationData));

	/* the view shares the relation's counters: make sure that it has some */
	(void) pgstat_should_count_relation(rel);
	*view = *rel;
	view->rd_tableam = mip_heap();
	view->rd_refcnt = 0;
	view->rd_smgr = NULL;
	return view;
}

static bool only_what_is_seen = false;

void
mip_index_what_is_seen(bool only)
{
	only_what_is_seen = only;
}

static double
mip_index_build_range_scan(Relation rel, Relation index, IndexInfo *info,
						   bool allow_sync, bool anyvisible, bool progress,
						   BlockNumber start_blockno, BlockNumber numblocks,
						   IndexBuildCallback callback, void *state,
						   TableScanDesc scan)
{
	Relation	view = heap_view(rel);
	bool		concurrent = info->ii_Concurrent;
	volatile double tuples;

	RelationIncrementReferenceCount(view);
	PG_TRY();
	{
		if (scan)
		{
			/* a parallel worker's scan: move its reference over as well */
			RelationIncrementReferenceCount(view);
			RelationDecrementReferenceCount(scan->rs_rd);
			scan->rs_rd = view;
		}
		else if (only_what_is_seen)
			info->ii_Concurrent = info->ii_BrokenHotChain = true;
		tuples = mip_heap()->index_build_range_scan(view, index, info, allow_sync,
													anyvisible, progress,
													start_blockno, numblocks,
													callback, state, scan);
	}
	PG_FINALLY();
	{
		info->ii_Concurrent = concurrent;
		RelationCloseSmgr(view);
	}
	PG_END_TRY();
	RelationDecrementReferenceCount(view);
	return tuples;
}

static void
mip_index_validate_scan(Relation rel, Relation index, IndexInfo *info,
						Snapshot snapshot, ValidateIndexState *state)
{
	Relation	view = heap_view(rel);

	RelationIncrementReferenceCount(view);
	PG_TRY();
	{
		mip_heap()->index_validate_scan(view, index, info, snapshot, state);
	}
	PG_FINALLY();
	{
		RelationCloseSmgr(view);
	}
	PG_END_TRY();
	RelationDecrementReferenceCount(view);
}

/* TOAST tables are plain heap: siblings never touch each other's chunks. */
static Oid
mip_relation_toast_am(Relation rel)
{
	return HEAP_TABLE_AM_OID;
}

static const TableAmRoutine *
mip_table_am(void)
{
	static bool ready = false;

	if (!ready)
	{
		mip_routine = *mip_heap();
		mip_routine.index_build_range_scan = mip_index_build_range_scan;
		mip_routine.index_validate_scan = mip_index_validate_scan;
		mip_routine.relation_toast_am = mip_relation_toast_am;
		mip_tableam_read(&mip_routine);
		mip_tableam_write(&mip_routine);
		mip_tableam_free_keys(&mip_routine);
		mip_tableam_look(&mip_routine);
		mip_tableam_capture(&mip_routine);
		ready = true;
	}
	return &mip_routine;
}

Datum
mip_tableam_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(mip_table_am());
}
