/*-------------------------------------------------------------------------
 *
 * build.c
 *	  Building indexes of a mip table.
 *
 * Where a replica executes a definition of all replicas its rows are what the others have, but
 * not which dead ones are among them, that only old snapshots see. An index may fail for these.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "catalog/index.h"
#include "nodes/execnodes.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "tableam/am.h"
#include "tableam/build.h"

static bool seen_only;			/* between mip_builds_begin and _end */

void
mip_builds_begin(void)
{
	seen_only = true;
}

void
mip_builds_end(void)
{
	seen_only = false;
}

/* ---- heap_getnext insists on heap's own routine ---- */

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
		else if (seen_only)
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

void
mip_tableam_build(TableAmRoutine *routine)
{
	routine->index_build_range_scan = mip_index_build_range_scan;
	routine->index_validate_scan = mip_index_validate_scan;
}
