/*-------------------------------------------------------------------------
 *
 * index_only.c
 *	  No scan of an index only where the visibility map is not to be trusted.
 *
 * No scan may take rows for visible by the visibility map: a version that the
 * overlay has replaced can stand on an all-visible page. Nor may one in a
 * SERIALIZABLE transaction, of whomever: it has to look whether an overlay has
 * replaced them (predicate.c). Bitmap scans do not, on the servers that we run on
 * (MIP_OLDEST_SERVER). Index-only scans are not planned beside siblings, nor at
 * SERIALIZABLE.
 *
 * What has been planned before, and is kept, or comes from elsewhere, is run with
 * index scans instead: the same index, the same conditions and order, but each value
 * comes from the row. The kept plan stays as it is, for who need not care. What runs
 * already when the overlay's first entry is made goes on: its snapshot is older.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"

#include "family/current.h"
#include "mipt/catalog.h"
#include "tableam/am.h"
#include "tableam/index_only.h"
#include "tableam/overlay.h"

typedef bool (*PlanVisitor) (Plan **plan, List *rtable);

/*
 * Calls visit for each plan of a tree, those below first, until it says true. It may
 * put another plan in the place of one.
 */
static bool
walk_plan(Plan **plan, PlanVisitor visit, List *rtable)
{
	List	   *children = NIL;
	ListCell   *lc;

	if (*plan == NULL)
		return false;
	check_stack_depth();
	switch (nodeTag(*plan))
	{
		case T_Append:
			children = ((Append *) *plan)->appendplans;
			break;
		case T_MergeAppend:
			children = ((MergeAppend *) *plan)->mergeplans;
			break;
		case T_CustomScan:
			children = ((CustomScan *) *plan)->custom_plans;
			break;
		case T_SubqueryScan:
			if (walk_plan(&((SubqueryScan *) *plan)->subplan, visit, rtable))
				return true;
			break;
		default:
			break;
	}
	foreach(lc, children)
	{
		if (walk_plan((Plan **) &lfirst(lc), visit, rtable))
			return true;
	}
	return walk_plan(&(*plan)->lefttree, visit, rtable) ||
		walk_plan(&(*plan)->righttree, visit, rtable) ||
		visit(plan, rtable);
}

static bool
walk_plans(PlannedStmt *stmt, PlanVisitor visit)
{
	ListCell   *lc;

	foreach(lc, stmt->subplans)
	{
		if (walk_plan((Plan **) &lfirst(lc), visit, stmt->rtable))
			return true;
	}
	return walk_plan(&stmt->planTree, visit, stmt->rtable);
}

/* A parallel worker has no lock yet. */
static bool
is_mip(Oid relid)
{
	Relation	rel = table_open(relid, AccessShareLock);
	bool		result = mip_relation_is_mip(rel);

	table_close(rel, AccessShareLock);
	return result;
}

static bool
trusts_visibility_map(Plan **plan, List *rtable)
{
	return IsA(*plan, IndexOnlyScan) &&
		is_mip(rt_fetch(((IndexOnlyScan *) *plan)->scan.scanrelid, rtable)->relid);
}

/* An expression over columns of the index, over those of its table. */
static Node *
over_table(Node *node, void *indextlist)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Var) && ((Var *) node)->varno == INDEX_VAR)
	{
		TargetEntry *column = get_tle_by_resno(indextlist, ((Var *) node)->varattno);

		return copyObject((Node *) column->expr);
	}
	return expression_tree_mutator(node, over_table, indextlist);
}

/* By what are the results of an index's ordering operators sorted? As the planner says it. */
static List *
sort_operators(const IndexOnlyScan *scan)
{
	List	   *operators = NIL;
	ListCell   *lc;

	foreach(lc, scan->indexorderby)
	{
		OpExpr	   *distance = lfirst_node(OpExpr, lc);
		Var		   *column = linitial_node(Var, distance->args);
		Oid			family = get_opclass_family(get_index_column_opclass(scan->indexid,
																		 column->varattno));
		Oid			type = distance->opresulttype;

		family = get_op_opfamily_sortfamily(distance->opno, family);
		operators = lappend_oid(operators,
								get_opfamily_member(family, type, type,
													BTLessStrategyNumber));
	}
	return operators;
}

static IndexScan *
index_scan(const IndexOnlyScan *only)
{
	IndexScan  *scan = makeNode(IndexScan);
	List	   *columns = only->indextlist;

	scan->scan = only->scan;
	scan->scan.plan.type = T_IndexScan;
	scan->scan.plan.targetlist = (List *) over_table((Node *) only->scan.plan.targetlist, columns);
	scan->scan.plan.qual = (List *) over_table((Node *) only->scan.plan.qual, columns);
	scan->indexid = only->indexid;
	scan->indexqual = only->indexqual;
	scan->indexqualorig = (List *) over_table((Node *) only->recheckqual, columns);
	scan->indexorderby = only->indexorderby;
	scan->indexorderbyorig = (List *) over_table((Node *) only->indexorderby, columns);
	scan->indexorderbyops = sort_operators(only);
	scan->indexorderdir = only->indexorderdir;
	return scan;
}

static bool
scan_table_too(Plan **plan, List *rtable)
{
	if (trusts_visibility_map(plan, rtable))
		*plan = (Plan *) index_scan((IndexOnlyScan *) *plan);
	return false;
}

void
mip_scan_table_too(QueryDesc *desc)
{
	PlannedStmt *stmt;

	if (!(IsolationIsSerializable() || mip_overlay_exists()) ||
		!walk_plans(desc->plannedstmt, trusts_visibility_map))
		return;
	stmt = makeNode(PlannedStmt);
	*stmt = *desc->plannedstmt;
	stmt->planTree = copyObject(stmt->planTree);
	stmt->subplans = copyObject(stmt->subplans);
	(void) walk_plans(stmt, scan_table_too);
	desc->plannedstmt = stmt;
}

/* Databases without the extension have no mip tables. */
bool
mip_may_plan_index_only(void)
{
	if (mip_in_transaction() && (mip_have_siblings() || mip_overlay_exists()))
		return false;
	return !IsolationIsSerializable() || !mipt_exists();
}
