/*-------------------------------------------------------------------------
 *
 * scan_marks.c
 *	  Marks that a plan's scans do not leave themselves at SERIALIZABLE.
 *
 * Of all tables: some scans leave no mark for everybody who writes there afterwards,
 * as SERIALIZABLE needs it. So the plan does. Heap's scan of a range of TIDs leaves
 * none, nor one of single TIDs of those that are not there (mip tables: of all;
 * tableam_read.c). One by GiST marks the pages that it has read; who inserts is found by the
 * leaf, or where he first widens the key of a page above it. Once that has been widened,
 * by whomever, even if he was rolled back, nobody is who inserts below.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_am.h"
#include "nodes/execnodes.h"
#include "nodes/nodeFuncs.h"
#include "storage/predicate.h"

#include "tableam/am.h"
#include "tableam/scan_marks.h"

/* That is opened; NULL if there is none, or the plan is but explained. */
static Relation
scanned_index(PlanState *state)
{
	switch (nodeTag(state))
	{
		case T_IndexScanState:
			return ((IndexScanState *) state)->iss_RelationDesc;
		case T_IndexOnlyScanState:
			return ((IndexOnlyScanState *) state)->ioss_RelationDesc;
		case T_BitmapIndexScanState:
			return ((BitmapIndexScanState *) state)->biss_RelationDesc;
		default:
			return NULL;
	}
}

/* Does it look for TIDs without leaving a mark? WHERE CURRENT OF has read the row before. */
static bool
misses_tids(PlanState *state)
{
	if (IsA(state, TidRangeScanState))
		return true;
	return IsA(state, TidScanState) && !((TidScanState *) state)->tss_isCurrentOf &&
		!mip_relation_is_mip(((ScanState *) state)->ss_currentRelation);
}

/*
 * Of the whole table, for SIREAD locks know no ranges of pages, nor places without a
 * row; and of the whole GiST index.
 */
static bool
lock_whole(PlanState *state, void *context)
{
	Relation	index = scanned_index(state);

	if (misses_tids(state))
		PredicateLockRelation(((ScanState *) state)->ss_currentRelation,
							  state->state->es_snapshot);
	if (index && index->rd_rel->relam == GIST_AM_OID)
		PredicateLockRelation(index, state->state->es_snapshot);
	return planstate_tree_walker(state, lock_whole, context);
}

void
mip_mark_scans(QueryDesc *desc)
{
	if (desc->planstate && IsolationIsSerializable())
		(void) lock_whole(desc->planstate, NULL);
}
