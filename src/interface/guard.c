/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  What a MIP transaction may execute: hooks, and the books of statements.
 *
 * Refused are statements whose locks would make siblings wait for each other
 * (DDL, LOCK TABLE, TRUNCATE), functions that keep such locks, writes to tables
 * that have not opted in, and whatever follows mip.prepare in the same message,
 * which would silently become part of the prepared transaction, or follows a
 * ROLLBACK, which would take effect without the instance. mip.begin refuses
 * transactions that have done before what an instance may not. Raw two-phase
 * statements on instances are refused everywhere: they would skip the hand-over.
 * Which tables it may write to is in writes.c, utility statements are in utility.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/executor.h"
#include "optimizer/cost.h"
#include "optimizer/planner.h"
#include "parser/analyze.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/stats.h"
#include "family/current.h"
#include "family/eviction.h"
#include "family/family_lock.h"
#include "mipt/trigger.h"
#include "replication/refusals.h"
#include "tableam/claim.h"
#include "tableam/index_only.h"
#include "tableam/lost_reads.h"
#include "tableam/pivot.h"
#include "tableam/scan_marks.h"
#include "transam/across.h"
#include "transam/statement.h"
#include "workers/deadlock.h"
#include "interface/guard.h"
#include "interface/utility.h"
#include "interface/writes.h"

static post_parse_analyze_hook_type prev_post_parse_analyze;
static planner_hook_type prev_planner;
static ExecutorStart_hook_type prev_executor_start;
static ExecutorRun_hook_type prev_executor_run;
static ExecutorFinish_hook_type prev_executor_finish;
static ProcessUtility_hook_type prev_process_utility;

/* ---- doomed instances and endings ---- */

/*
 * Losers are cancelled by the winner, or run into what it has taken from them, the
 * waits of deadlocks' victims are failed, and what is in doubt lets others fail: say why.
 */
static void
explain_error(MemoryContext context)
{
	bool		doomed = mip_in_transaction() && mip_mine.inst->doomed &&
		geterrcode() != ERRCODE_MIP_DOOMED;
	bool		victim = geterrcode() == ERRCODE_T_R_DEADLOCK_DETECTED &&
		mip_is_deadlock_victim();

	if (!doomed && !victim)
	{
		mip_pivot_explain(context);
		return;
	}
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
 * late for that must not hit whatever follows [cancel-stays-inside].
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
	mip_lost_reads_note();
	/* nobody waits for a client that does not read of it */
	mip_claim_let_go();
	mip_family_unlock_all();
	if (mip_statement.depth == 0 && mip_in_transaction() && GetCurrentTransactionNestLevel() > 1)
		mip_mine.inst->running = false;
	explain_error(context);
	PG_RE_THROW();
}

/* `levels`: those of the statement that has been executed */
static void
check_locks(int levels)
{
	if (mip_statement.depth == levels && mip_in_transaction())
		mip_refuse_strong_locks();
}

/* ---- analysis ---- */

/* It has taken the snapshot, and the execution may be a message of its own. */
static void
mip_post_parse_analyze(ParseState *pstate, Query *query, JumbleState *jumble)
{
	if (prev_post_parse_analyze)
		prev_post_parse_analyze(pstate, query, jumble);
	if (query->utilityStmt == NULL || !IsA(query->utilityStmt, TransactionStmt))
		mip_across_follow();
}

/* ---- planner ---- */

/*
 * It evaluates functions, whose statements are not the client's; and it is not to
 * plan what cannot be used beside siblings.
 */
static PlannedStmt *
mip_planner(Query *parse, const char *query, int options, ParamListInfo params)
{
	bool		planning = mip_statement.planning;
	bool		index_only = enable_indexonlyscan;
	Oid			sole = mip_sole_function(parse);
	PlannedStmt *plan;

	mip_across_follow();
	enable_indexonlyscan = index_only && mip_may_plan_index_only();
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
		enable_indexonlyscan = index_only;
		mip_statement.planning = planning;
	}
	PG_END_TRY();
	mip_check_sole_plan(sole, plan);
	return plan;
}

/* ---- executor ---- */

static void
mip_ExecutorStart(QueryDesc *desc, int eflags)
{
	MemoryContext context = CurrentMemoryContext;

	check_may_execute();
	mip_across_follow();
	if (!(eflags & EXEC_FLAG_EXPLAIN_ONLY))
	{
		if (mip_in_transaction())
			mip_check_written_tables(desc->plannedstmt);
		mip_replica_check_plan(desc->plannedstmt);
	}
	mip_scan_table_too(desc);

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
	mip_mark_scans(desc);
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
			mip_check_written_tables(desc->plannedstmt);
	}
	else if (desc->plannedstmt->resultRelations || desc->plannedstmt->rowMarks)
		mip_statement.changed = true;
	mip_statement.storing_cursor = saved || mip_stores_cursor();
	if (mip_statement.depth == 0)
	{
		mip_statement.query_memory = desc->estate->es_query_cxt;
		mip_statement.plan = desc->plannedstmt;
	}
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

static bool
any_has_triggers(List *relations)
{
	ListCell   *lc;

	foreach(lc, relations)
	{
		if (((ResultRelInfo *) lfirst(lc))->ri_TrigDesc)
			return true;
	}
	return false;
}

/* Can it have run anything when it was finished? */
static bool
leaves_something(EState *estate)
{
	return estate->es_auxmodifytables != NIL ||
		estate->es_trig_target_relations != NIL ||
		any_has_triggers(estate->es_opened_result_relations) ||
		any_has_triggers(estate->es_tuple_routing_result_relations);
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
			mip_check_routed_tables(desc->estate);
		mip_replica_check_routed(desc->estate);
		if (leaves_something(desc->estate))
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

/* ROLLBACK must work for a doomed instance, too. */
static bool
is_rollback(Node *stmt)
{
	return IsA(stmt, TransactionStmt) &&
		(((TransactionStmt *) stmt)->kind == TRANS_STMT_ROLLBACK ||
		 ((TransactionStmt *) stmt)->kind == TRANS_STMT_ROLLBACK_TO);
}

/*
 * Is what it runs inside of another statement? Not the client's EXECUTE. (Inlined, gcc
 * would warn that setjmp may clobber what depends on it.)
 */
static pg_noinline bool
is_nested(Node *stmt, ProcessUtilityContext context)
{
	if (IsA(stmt, ExecuteStmt))
		return context != PROCESS_UTILITY_TOPLEVEL;
	return !IsA(stmt, TransactionStmt);
}

static bool
sets_many(Node *stmt, const char *what)
{
	return IsA(stmt, VariableSetStmt) &&
		((VariableSetStmt *) stmt)->kind == VAR_SET_MULTI &&
		strcmp(((VariableSetStmt *) stmt)->name, what) == 0;
}

/* Does it say how the transaction runs? */
static bool
sets_mode(Node *stmt)
{
	if (IsA(stmt, TransactionStmt))
		return ((TransactionStmt *) stmt)->kind == TRANS_STMT_BEGIN ||
			((TransactionStmt *) stmt)->kind == TRANS_STMT_START;
	return sets_many(stmt, "TRANSACTION");
}

static void
mip_ProcessUtility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				   ProcessUtilityContext context, ParamListInfo params,
				   QueryEnvironment *env, DestReceiver *dest,
				   QueryCompletion *qc)
{
	MemoryContext memory = CurrentMemoryContext;
	Node	   *stmt = pstmt->utilityStmt;
	bool		nested = is_nested(stmt, context);
	Portal		saved = mip_statement.execute_portal;

	if (IsA(stmt, TransactionStmt))
		mip_check_transaction_stmt(pstmt, query);
	if (!mip_in_transaction())
		mip_note_utility(stmt);
	else if (IsTransactionState() &&
			 !(is_rollback(stmt) && mip_mine.ending == MIP_RUNNING))
	{
		check_may_execute();
		mip_check_utility(stmt);
	}
	if (context != PROCESS_UTILITY_SUBCOMMAND)	/* what it is part of has been */
		mip_replica_check_utility(stmt);
	if (IsA(stmt, ExecuteStmt))
		mip_statement.execute_portal = ActivePortal;
	if (!IsA(stmt, TransactionStmt))
		mip_across_follow();	/* COPY reads without the executor */
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
		if (mip_in_transaction())
			mip_utility_executed(stmt);
		if (IsA(stmt, AlterTableStmt))
			mip_keep_triggers((AlterTableStmt *) stmt);
		if (nested)
			check_locks(MIP_UTILITY_DEPTH);
		if (sets_mode(stmt))
			mip_across_refuse_deferrable();
		if (sets_many(stmt, "TRANSACTION SNAPSHOT"))
			mip_across_check_imported();
	}
	PG_CATCH();
	{
		mip_statement.execute_portal = saved;
		if (nested)
			leave_by_error(MIP_UTILITY_DEPTH, memory);
		mip_lost_reads_note();
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
	prev_post_parse_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = mip_post_parse_analyze;
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
