/*-------------------------------------------------------------------------
 *
 * plans.c
 *	  Plans that trust the visibility map.
 *
 * No scan may take rows for visible by the visibility map: a version that the
 * overlay has replaced can stand on an all-visible page. Nor may one in a
 * SERIALIZABLE transaction, of whomever: it has to look whether an overlay has
 * replaced them (predicate.c). Bitmap scans do not, on the servers that we run on
 * (MIP_OLDEST_SERVER). Index-only scans are not planned beside siblings, nor at
 * SERIALIZABLE. Such a plan that has been kept from before goes with the overlay's
 * first entry; where ResetPlanCache does not reach, it is refused.
 *
 * ResetPlanCache makes the session plan everything anew, so it is done only if
 * something has been planned since that may scan only an index. That is to save
 * time: should a plan be overlooked, it is refused once.
 *
 * Beside that, of all tables: some scans leave no mark for everybody who writes there
 * afterwards, as SERIALIZABLE needs it. So the plan does. Heap's scan of a range of TIDs
 * leaves none, nor one of single TIDs of those that are not there (mip tables: of all;
 * tableam_read.c). One by GiST marks the pages that it has read; who inserts is found by the
 * leaf, or where he first widens the key of a page above it. Once that has been widened,
 * by whomever, even if he was rolled back, nobody is who inserts below.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_am.h"
#include "nodes/execnodes.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "optimizer/paths.h"
#include "storage/predicate.h"
#include "utils/plancache.h"

#include "family/current.h"
#include "mipt/catalog.h"
#include "tableam/am.h"
#include "tableam/overlay.h"
#include "tableam/plans.h"

static set_rel_pathlist_hook_type prev_set_rel_pathlist;

/* May a plan that this session keeps scan only an index of a mip table? */
static bool index_only_planned;

static bool
distrust_visibility_map(PlanState *state, void *context)
{
	if (IsA(state, IndexOnlyScanState) &&
		mip_relation_is_mip(((IndexOnlyScanState *) state)->ss.ss_currentRelation))
	{
		ResetPlanCache();		/* whoever has made it, the retry is to have
								 * another */
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 mip_overlay_exists() ?
				 errmsg("a plan with an index-only scan cannot be used any more beside a sibling") :
				 errmsg("a plan with an index-only scan cannot be used at SERIALIZABLE"),
				 errhint("Retry the transaction: it will be planned anew.")));
	}
	return planstate_tree_walker(state, distrust_visibility_map, context);
}

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
mip_check_scans(QueryDesc *desc)
{
	if (desc->planstate && (IsolationIsSerializable() || mip_overlay_exists()))
		(void) distrust_visibility_map(desc->planstate, NULL);
	if (desc->planstate && IsolationIsSerializable())
		(void) lock_whole(desc->planstate, NULL);
}

/* An overlay begins. */
static void
discard_index_only_plans(void)
{
	if (!index_only_planned)
		return;
	ResetPlanCache();
	index_only_planned = false;
}

static bool
has_index_only(List *paths)
{
	ListCell   *lc;

	foreach(lc, paths)
	{
		if (((Path *) lfirst(lc))->pathtype == T_IndexOnlyScan)
			return true;
	}
	return false;
}

static bool
is_mip(Oid relid)
{
	Relation	rel = table_open(relid, NoLock);	/* the planner has one */
	bool		result = mip_relation_is_mip(rel);

	table_close(rel, NoLock);
	return result;
}

/* The planner chooses among these, and those of hooks that run after ours. */
static void
note_index_only(PlannerInfo *root, RelOptInfo *rel, Index rti, RangeTblEntry *rte)
{
	if (prev_set_rel_pathlist)
		prev_set_rel_pathlist(root, rel, rti, rte);
	if (!index_only_planned &&
		(has_index_only(rel->pathlist) || has_index_only(rel->partial_pathlist)))
		index_only_planned = is_mip(rte->relid);
}

/* Databases without the extension have no mip tables. */
bool
mip_may_plan_index_only(void)
{
	if (mip_in_transaction() && (mip_have_siblings() || mip_overlay_exists()))
		return false;
	return !IsolationIsSerializable() || !mipt_exists();
}

void
mip_plans_init(void)
{
	prev_set_rel_pathlist = set_rel_pathlist_hook;
	set_rel_pathlist_hook = note_index_only;
	mip_overlay_before_first(discard_index_only_plans);
}
