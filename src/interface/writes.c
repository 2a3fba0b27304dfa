/*-------------------------------------------------------------------------
 *
 * writes.c
 *	  What a MIP transaction may write to, or lock rows of.
 *
 * Tables that have not opted in are refused; and all tables, once the request has
 * expired: it can be cancelled at most.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_inherits.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/mip.h"
#include "family/current.h"
#include "mipt/horizon.h"
#include "tableam/am.h"
#include "interface/writes.h"

static void
refuse_table(Relation rel, const char *what)
{
	if (mip_relation_is_mip(rel))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot %s unlogged table \"%s\" in a MIP transaction",
						what, RelationGetRelationName(rel)),
				 errdetail("A crash empties it, and leaves instances that were prepared before.")));
	if (rel->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot %s foreign table \"%s\" in a MIP transaction",
						what, RelationGetRelationName(rel)),
				 errdetail("What is done on another server is not prepared with the instance."),
				 errhint("Make that database a site of the request.")));
	ereport(ERROR,
			(errcode(ERRCODE_MIP_NOT_USABLE),
			 errmsg("cannot %s table \"%s\" in a MIP transaction",
					what, RelationGetRelationName(rel)),
			 errdetail("It does not use the access method \"mip\", so instances of one request would wait for each other."),
			 errhint("Let it opt in: SELECT mip.enable('%s').",
					 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
												RelationGetRelationName(rel)))));
}

static bool
is_usable(Relation rel)
{
	return mip_relation_is_mip(rel) &&
		rel->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED;
}

/*
 * `rel` is open. Partitions may be reached by tuple routing at any time; those
 * that are attached meanwhile are checked afterwards.
 */
static void
check_opted_in(Relation rel, const char *what)
{
	ListCell   *lc;

	if (rel->rd_rel->relkind == RELKIND_VIEW ||
		rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		return;
	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
	{
		if (!is_usable(rel))
			refuse_table(rel, what);
		return;
	}
	foreach(lc, find_all_inheritors(RelationGetRelid(rel), AccessShareLock, NULL))
	{
		Relation	part = table_open(lfirst_oid(lc), NoLock);

		if (part->rd_rel->relkind != RELKIND_PARTITIONED_TABLE &&
			!is_usable(part))
			refuse_table(part, what);
		table_close(part, NoLock);
	}
}

/* Who executes a plan has locked its tables. */
static void
check_opted_in_oid(Oid relid, const char *what)
{
	Relation	rel = table_open(relid, NoLock);

	check_opted_in(rel, what);
	table_close(rel, NoLock);
}

/* Not only at the end of the work. */
static void
refuse_expired(void)
{
	Assert(mip_in_transaction());
	if (unlikely(mip_mine.age != MIP_CURRENT))
		mip_raise_expired(mip_mine.xid);
}

void
mip_check_written_tables(PlannedStmt *stmt)
{
	ListCell   *lc;

	if (stmt->resultRelations || stmt->rowMarks)
		refuse_expired();

	foreach(lc, stmt->resultRelations)
		check_opted_in_oid(rt_fetch(lfirst_int(lc), stmt->rtable)->relid, "write to");

	/*
	 * FOR UPDATE would block; FOR SHARE only what cannot be written anyway. A
	 * foreign table's markType says nothing of the locks at its server.
	 */
	foreach(lc, stmt->rowMarks)
	{
		PlanRowMark *mark = lfirst_node(PlanRowMark, lc);

		if (mark->strength >= LCS_FORNOKEYUPDATE && !mark->isParent)
			check_opted_in_oid(rt_fetch(mark->rti, stmt->rtable)->relid, "lock rows of");
	}
}

void
mip_check_routed_tables(EState *estate)
{
	ListCell   *lc;

	foreach(lc, estate->es_tuple_routing_result_relations)
		check_opted_in(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc, "write to");
}

void
mip_check_written_table(Relation rel)
{
	refuse_expired();
	check_opted_in(rel, "write to");
}
