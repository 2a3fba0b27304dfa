/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  What a MIP transaction may execute.
 *
 * Refused are statements whose locks would make siblings wait for each other
 * (DDL, LOCK TABLE, TRUNCATE), functions that keep such locks, writes to tables
 * that have not opted in, and whatever follows mip.prepare in the same message,
 * which would silently become part of the prepared transaction, or follows a
 * ROLLBACK, which would take effect without the instance. mip.begin refuses
 * transactions that have done before what an instance may not. Raw two-phase
 * statements on instances are refused everywhere: they would skip the hand-over.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "optimizer/planner.h"
#include "parser/parser.h"
#include "parser/parsetree.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/gid.h"
#include "base/mip.h"
#include "base/stats.h"
#include "base/xid.h"
#include "family/current.h"
#include "family/eviction.h"
#include "family/family_lock.h"
#include "mipt/horizon.h"
#include "mipt/rows.h"
#include "tableam/am.h"
#include "tableam/plans.h"
#include "transam/instance.h"
#include "transam/session.h"
#include "transam/statement.h"
#include "workers/deadlock.h"
#include "interface/guard.h"

static planner_hook_type prev_planner;
static ExecutorStart_hook_type prev_executor_start;
static ExecutorRun_hook_type prev_executor_run;
static ExecutorFinish_hook_type prev_executor_finish;
static ProcessUtility_hook_type prev_process_utility;

/* ---- doomed instances and endings ---- */

/*
 * Losers are cancelled by the winner, or run into what it has taken from them,
 * and the waits of deadlocks' victims are failed: say why.
 */
static void
explain_error(MemoryContext context)
{
	bool		doomed = mip_in_transaction() && mip_mine.inst->doomed &&
		geterrcode() != ERRCODE_MIP_DOOMED;
	bool		victim = geterrcode() == ERRCODE_T_R_DEADLOCK_DETECTED &&
		mip_is_deadlock_victim();

	if (!doomed && !victim)
		return;
	MemoryContextSwitchTo(context);
	FlushErrorState();
	if (doomed)
		mip_doomed_error();
	mip_count(MIP_COUNT_DEADLOCKS);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("This statement waited for an instance of a request, whose retry waits for this transaction."),
			 errhint("Retry the transaction.")));
}

/*
 * Does a statement of the client run in a transaction that is being ended?
 * Deferred triggers run then, too: outside any portal, but for the cursors
 * that they open themselves; and cursors are stored.
 */
static bool
client_in_ending(void)
{
	return mip_in_transaction() && mip_mine.ending != MIP_RUNNING &&
		ActivePortal != NULL && !mip_in_trigger() && !mip_statement.storing_cursor;
}

/* What a client sends after an ending would become part of it. */
static void
check_may_execute(void)
{
	if (!mip_in_transaction())
		return;
	if (client_in_ending())
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("no statement may follow mip.prepare or mip.commit_one_phase in the same message"),
				 errdetail("It would become part of the transaction that is being ended."),
				 errhint("Send it on its own afterwards.")));
	mip_check_doomed();
}

/*
 * Statements run between enter and leave. Meanwhile a winner may cancel us
 * (mip_evict_doomed), and explain_error will say why; a cancel that comes too
 * late for that must not hit whatever follows.
 */
static void
enter(int levels)
{
	if (mip_statement.depth == 0)
	{
		(void) mip_is_deadlock_victim();	/* failed outside a statement */
		mip_statement.whole = NULL;
	}
	mip_statement.depth += levels;
	if (mip_in_transaction())
		mip_mine.inst->running = true;
}

static void
leave(int levels)
{
	mip_statement.depth -= levels;
	if (mip_statement.depth > 0 || !mip_in_transaction())
		return;
	mip_mine.inst->running = false;
	pg_memory_barrier();
	if (mip_mine.inst->doomed)
		mip_swallow_cancel();
}

/*
 * The same in PG_CATCH. Outside of savepoints the transaction is about to end,
 * as soon as the client has been told: it must not be taken for an idle one,
 * whose session is ended sooner.
 */
static void
leave_by_error(int levels, MemoryContext context)
{
	mip_statement.depth -= levels;
	/* nobody waits for a client that does not read of it */
	mip_family_unlock_all();
	if (mip_statement.depth == 0 && mip_in_transaction() && GetCurrentTransactionNestLevel() > 1)
		mip_mine.inst->running = false;
	explain_error(context);
	PG_RE_THROW();
}

/* ---- tables that have not opted in ---- */

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

static void
check_opted_in_oid(Oid relid, const char *what)
{
	Relation	rel = table_open(relid, AccessShareLock);

	check_opted_in(rel, what);
	table_close(rel, NoLock);
}

/* An expired request can be cancelled at most: not at the end of the work. */
static void
refuse_expired(void)
{
	if (unlikely(mip_mine.age != MIP_CURRENT))
		mip_raise_expired(mip_mine.xid);
}

static void
check_written_tables(PlannedStmt *stmt)
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

static void
check_routed_tables(EState *estate)
{
	ListCell   *lc;

	foreach(lc, estate->es_tuple_routing_result_relations)
		check_opted_in(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc, "write to");
}

/* `levels`: those of the statement that has been executed */
static void
check_locks(int levels)
{
	if (mip_statement.depth == levels && mip_in_transaction())
		mip_refuse_strong_locks();
}

/* ---- planner ---- */

/* It evaluates functions, whose statements are not the client's. */
static PlannedStmt *
mip_planner(Query *parse, const char *query, int options, ParamListInfo params)
{
	bool		saved = mip_statement.planning;
	PlannedStmt *plan;

	mip_statement.planning = true;
	PG_TRY();
	{
		if (prev_planner)
			plan = prev_planner(parse, query, options, params);
		else
			plan = standard_planner(parse, query, options, params);
	}
	PG_FINALLY();
	{
		mip_statement.planning = saved;
	}
	PG_END_TRY();
	return plan;
}

/* ---- executor ---- */

static void
mip_ExecutorStart(QueryDesc *desc, int eflags)
{
	MemoryContext context = CurrentMemoryContext;

	check_may_execute();
	if (mip_in_transaction() && !(eflags & EXEC_FLAG_EXPLAIN_ONLY))
		check_written_tables(desc->plannedstmt);

	/*
	 * partitions are chosen, by functions whose statements are not the
	 * client's
	 */
	enter(MIP_QUERY_DEPTH);
	PG_TRY();
	{
		if (prev_executor_start)
			prev_executor_start(desc, eflags);
		else
			standard_ExecutorStart(desc, eflags);
	}
	PG_CATCH();
	{
		leave_by_error(MIP_QUERY_DEPTH, context);
	}
	PG_END_TRY();
	leave(MIP_QUERY_DEPTH);
	mip_distrust_visibility_map(desc);
}

/*
 * Drivers that have asked for so many rows come back for more, or for the
 * news that there are none. But the transaction ends before that. Queries of
 * deferred triggers stop early by themselves.
 */
static void
refuse_part(QueryDesc *desc, uint64 count)
{
	if (count > 0 && desc->estate->es_processed >= count &&
		mip_statement.depth == 1 && mip_statement.whole)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("the rows of %s cannot be fetched in parts", mip_statement.whole),
				 errhint("Let the driver fetch all rows of this statement at once (a fetch size of 0).")));
}

static void
mip_ExecutorRun(MIP_EXECUTOR_RUN_ARGS)
{
	MemoryContext context = CurrentMemoryContext;
	bool		saved = mip_statement.storing_cursor;

	if (mip_in_transaction())
	{
		/* parallel workers know nothing of the overlay: run without them */
		desc->already_executed = true;
		/* a cursor may be older than the instance */
		if (desc->plannedstmt->rowMarks && ActivePortal && ActivePortal->visible)
			check_written_tables(desc->plannedstmt);
	}
	else if (desc->plannedstmt->resultRelations || desc->plannedstmt->rowMarks)
		mip_statement.changed = true;
	mip_statement.storing_cursor = saved || mip_stores_cursor();
	if (mip_statement.depth == 0)
		mip_statement.query_memory = desc->estate->es_query_cxt;
	enter(MIP_QUERY_DEPTH);
	PG_TRY();
	{
		if (prev_executor_run)
			prev_executor_run(MIP_EXECUTOR_RUN_PASS);
		else
			standard_ExecutorRun(MIP_EXECUTOR_RUN_PASS);
		refuse_part(desc, count);
		check_locks(MIP_QUERY_DEPTH);
	}
	PG_CATCH();
	{
		mip_statement.storing_cursor = saved;
		leave_by_error(MIP_QUERY_DEPTH, context);
	}
	PG_END_TRY();
	mip_statement.storing_cursor = saved;
	leave(MIP_QUERY_DEPTH);
}

static void
mip_ExecutorFinish(QueryDesc *desc)
{
	MemoryContext context = CurrentMemoryContext;

	enter(MIP_QUERY_DEPTH);
	PG_TRY();
	{
		if (prev_executor_finish)
			prev_executor_finish(desc);
		else
			standard_ExecutorFinish(desc);
		if (mip_in_transaction())
			check_routed_tables(desc->estate);
		check_locks(MIP_QUERY_DEPTH);
	}
	PG_CATCH();
	{
		leave_by_error(MIP_QUERY_DEPTH, context);
	}
	PG_END_TRY();
	leave(MIP_QUERY_DEPTH);
}

/* ---- utility statements ---- */

/* Without the library a name like ours may have been given to anything. */
static bool
is_instance(const char *gid)
{
	Oid			dbid;
	char		xid[MIP_XID_MAX + 4];
	int64		xinst;

	return mip_gid_parse(gid, &dbid, xid, &xinst) && dbid == MyDatabaseId &&
		mipt_is_pending(xid, xinst);
}

static void
refuse_two_phase(const TransactionStmt *stmt)
{
	const char *gid = stmt->gid;

	if (mip_gid_is_mip(gid) &&
		(stmt->kind == TRANS_STMT_PREPARE || is_instance(gid)))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("prepared transaction \"%s\" is an instance of a MIP family", gid),
				 errhint("Use mip.prepare, mip.commit and mip.rollback.")));
}

/* What is behind a statement in its message, but for blanks and comments */
static bool
is_followed(PlannedStmt *pstmt, const char *query)
{
	return pstmt->stmt_len > 0 &&
		raw_parser(query + pstmt->stmt_location + pstmt->stmt_len, RAW_PARSE_DEFAULT) != NIL;
}

/*
 * Who has an instance's transaction run the statements of others notices that
 * one of them has ended it, by the state that the server then reports; but
 * not before the whole message has been executed, nor if there is another
 * transaction by then. So there must be none.
 */
static void
refuse_successor(PlannedStmt *pstmt, const char *query)
{
	if (!mip_in_block())
		return;
	if (((TransactionStmt *) pstmt->utilityStmt)->chain)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("a MIP transaction cannot be ended with AND CHAIN"),
				 errhint("End it with mip.prepare, mip.commit_one_phase or ROLLBACK.")));
	if (is_followed(pstmt, query))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("no statement may follow the end of a MIP transaction in the same message"),
				 errdetail("It would take effect without the instance."),
				 errhint("Send it on its own afterwards.")));
}

static void
check_transaction_stmt(PlannedStmt *pstmt, const char *query)
{
	TransactionStmt *stmt = (TransactionStmt *) pstmt->utilityStmt;

	switch (stmt->kind)
	{
		case TRANS_STMT_COMMIT:
		case TRANS_STMT_ROLLBACK:
			refuse_successor(pstmt, query);
			break;
		case TRANS_STMT_PREPARE:
			refuse_successor(pstmt, query);
			refuse_two_phase(stmt);
			break;
		case TRANS_STMT_COMMIT_PREPARED:
		case TRANS_STMT_ROLLBACK_PREPARED:
			refuse_two_phase(stmt);
			break;
		default:
			break;
	}
}

static void
check_copy(CopyStmt *stmt)
{
	if (stmt->is_from && stmt->relation)
	{
		Relation	rel = table_openrv(stmt->relation, RowExclusiveLock);

		refuse_expired();
		check_opted_in(rel, "write to");
		table_close(rel, NoLock);
	}
}

/* EXPLAIN may run, or be about, another utility statement. */
static Node *
explained(Node *stmt)
{
	Query	   *query;

	if (!IsA(stmt, ExplainStmt))
		return stmt;
	query = castNode(Query, ((ExplainStmt *) stmt)->query);
	return query->utilityStmt ? query->utilityStmt : stmt;
}

/* Everything else is not known to be harmless beside siblings. */
static bool
is_harmless(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_TransactionStmt:
		case T_DeclareCursorStmt:
		case T_FetchStmt:
		case T_ClosePortalStmt:
		case T_PrepareStmt:
		case T_ExecuteStmt:
		case T_DeallocateStmt:
		case T_VariableSetStmt:
		case T_VariableShowStmt:
		case T_ConstraintsSetStmt:
		case T_DoStmt:
		case T_CallStmt:
		case T_CheckPointStmt:
		case T_LoadStmt:
		case T_CopyStmt:
		case T_ExplainStmt:
			return true;
		default:
			return false;
	}
}

/* In an instance */
static void
check_utility(Node *stmt)
{
	if (!is_harmless(stmt))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot execute %s in a MIP transaction",
						GetCommandTagName(CreateCommandTag(stmt))),
				 errdetail("Instances of one request would wait for each other.")));
	if (IsA(stmt, CopyStmt))
		check_copy((CopyStmt *) stmt);
	if (IsA(stmt, DeclareCursorStmt) &&
		(((DeclareCursorStmt *) stmt)->options & CURSOR_OPT_HOLD) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot declare a cursor WITH HOLD in a MIP transaction"),
				 errdetail("It would outlast the transaction, in a session that others use."),
				 errhint("Read it to its end within the transaction.")));
}

/* Outside of one. The locks of reads and writes keep no sibling waiting. */
static void
note_utility(Node *stmt)
{
	if (IsA(stmt, CopyStmt))
		mip_statement.changed |= ((CopyStmt *) stmt)->is_from;
	else if (IsA(stmt, LockStmt) && ((LockStmt *) stmt)->mode <= RowExclusiveLock)
		return;
	else if (!is_harmless(stmt))
		mip_statement.executed = GetCommandTagName(CreateCommandTag(stmt));
}

/* ROLLBACK must work for a doomed instance, too. */
static bool
is_rollback(Node *stmt)
{
	return IsA(stmt, TransactionStmt) &&
		(((TransactionStmt *) stmt)->kind == TRANS_STMT_ROLLBACK ||
		 ((TransactionStmt *) stmt)->kind == TRANS_STMT_ROLLBACK_TO);
}

static void
mip_ProcessUtility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				   ProcessUtilityContext context, ParamListInfo params,
				   QueryEnvironment *env, DestReceiver *dest,
				   QueryCompletion *qc)
{
	MemoryContext memory = CurrentMemoryContext;
	Node	   *stmt = pstmt->utilityStmt;
	bool		nested = !IsA(stmt, ExecuteStmt) && !IsA(stmt, TransactionStmt);
	Portal		saved = mip_statement.execute_portal;

	if (IsA(stmt, TransactionStmt))
		check_transaction_stmt(pstmt, query);
	if (!mip_in_transaction())
		note_utility(explained(stmt));
	else if (IsTransactionState() &&
			 !(is_rollback(stmt) && mip_mine.ending == MIP_RUNNING))
	{
		check_may_execute();
		check_utility(explained(stmt));
	}
	if (IsA(stmt, ExecuteStmt))
		mip_statement.execute_portal = ActivePortal;
	if (nested)
		enter(MIP_UTILITY_DEPTH);
	PG_TRY();
	{
		if (prev_process_utility)
			prev_process_utility(pstmt, query, read_only_tree, context, params,
								 env, dest, qc);
		else
			standard_ProcessUtility(pstmt, query, read_only_tree, context, params,
									env, dest, qc);
		if (mip_in_transaction() && IsA(stmt, PrepareStmt))
			mip_session_note_prepared(((PrepareStmt *) stmt)->name);
		if (mip_in_transaction() && IsA(stmt, CopyStmt))
			check_copy((CopyStmt *) stmt);
		if (nested)
			check_locks(MIP_UTILITY_DEPTH);
	}
	PG_CATCH();
	{
		mip_statement.execute_portal = saved;
		if (nested)
			leave_by_error(MIP_UTILITY_DEPTH, memory);
		PG_RE_THROW();
	}
	PG_END_TRY();
	mip_statement.execute_portal = saved;
	if (nested)
		leave(MIP_UTILITY_DEPTH);
}

void
mip_guard_init(void)
{
	prev_planner = planner_hook;
	planner_hook = mip_planner;
	prev_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = mip_ExecutorStart;
	prev_executor_run = ExecutorRun_hook;
	ExecutorRun_hook = mip_ExecutorRun;
	prev_executor_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = mip_ExecutorFinish;
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = mip_ProcessUtility;
}
