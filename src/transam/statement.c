/*-------------------------------------------------------------------------
 *
 * statement.c
 *	  The statement that this backend executes: whose it is, and what its
 *	  transaction has executed before.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "storage/lmgr.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "base/locks.h"
#include "base/mip.h"
#include "mipt/catalog.h"
#include "transam/statement.h"

MipStatement mip_statement;

/* EXECUTE opens a portal of its own; this is the client's then. */
static Portal
client_portal(void)
{
	return mip_statement.execute_portal ? mip_statement.execute_portal : ActivePortal;
}

/*
 * Does it return what it does to the client, for whom there is a format then? A function's
 * cursor, which a client may have run by its name, has none.
 */
static bool
is_for_client(Portal portal)
{
	return portal->tupDesc == NULL || portal->formats != NULL;
}

/*
 * Not while EXECUTE evaluates its arguments, or the protocol's Bind those of the
 * client: then there is no portal of the query's yet, or one of a function's cursor.
 * Such a cursor pg_cursors shows, as it does not what EXECUTE runs.
 */
static bool
portal_runs_query(void)
{
	Portal		execute = mip_statement.execute_portal;

	if (ActivePortal == NULL)
		return false;
	if (execute)
		return ActivePortal != execute && !ActivePortal->visible && is_for_client(execute);
	return is_for_client(ActivePortal);
}

bool
mip_in_trigger(void)
{
	return DatumGetInt32(DirectFunctionCall1(pg_trigger_depth, (Datum) 0)) > 0;
}

bool
mip_stores_cursor(void)
{
	return mip_statement.depth == 0 &&
		ActivePortal != NULL && ActivePortal->holdStore != NULL &&
		(ActivePortal->cursorOptions & CURSOR_OPT_HOLD) != 0;
}

bool
mip_is_call(FunctionCallInfo fcinfo)
{
	return fcinfo->context && IsA(fcinfo->context, CallContext);
}

/* Is this CALL the active portal's, and not one of what that evaluates? */
static bool
portal_calls(FunctionCallInfo fcinfo)
{
	Node	   *stmt;

	if (mip_statement.execute_portal || list_length(ActivePortal->stmts) != 1)
		return false;
	stmt = linitial_node(PlannedStmt, ActivePortal->stmts)->utilityStmt;
	return stmt && IsA(stmt, CallStmt) &&
		castNode(CallStmt, stmt)->funcexpr->funcid == fcinfo->flinfo->fn_oid;
}

/* Is this call one of the query at depth 1, or at the depth of a utility statement the CALL? */
static bool
is_at_top(FunctionCallInfo fcinfo)
{
	if (mip_is_call(fcinfo))
		return mip_statement.depth == MIP_UTILITY_DEPTH && portal_calls(fcinfo);
	return mip_statement.depth == MIP_QUERY_DEPTH && fcinfo->flinfo != NULL &&
		fcinfo->flinfo->fn_mcxt == mip_statement.query_memory;
}

/*
 * Deferred triggers run at depth 0, and so do cursors that are being stored,
 * functions that the planner evaluates, or EXECUTE for its arguments, and what is
 * not called by a statement at all: by the protocol's function call, or at login.
 * Languages may evaluate simple expressions without a statement, as PL/pgSQL
 * does, but not in the query's memory. CALL may be a function's cursor, at the depth
 * of the client's own where what is around it does not count.
 *
 * What the planner makes part of the query passes, as views do: SQL functions that
 * it inlines, defaults of columns, conditions of triggers. So it may: as a part of
 * the query it succeeds or fails with all of it, and nothing but its rest follows.
 * (Of those that end a transaction or decide, which return sets, a default or a
 * condition cannot be; and mip.begin refuses what changes rows.)
 */
void
mip_require_top_level(FunctionCallInfo fcinfo, const char *function)
{
	if (!portal_runs_query() || !is_at_top(fcinfo) || mip_in_trigger() ||
		mip_statement.planning || mip_statement.storing_cursor || debug_query_string == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("%s cannot be called from a function or from inside another statement", function),
				 errhint("Send SELECT * FROM %s(...) as a statement of its own.", function)));
}

static void
raise_not_sole(const char *function)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_NOT_USABLE),
			 errmsg("%s must be all that a statement does", function),
			 errhint("Send SELECT %s(...).", function)));
}

/* A call that is all that a plan does */
static FuncExpr *
sole_call(const PlannedStmt *stmt)
{
	Plan	   *plan = stmt->planTree;
	TargetEntry *target;

	if (!IsA(plan, Result) || outerPlan(plan) || list_length(plan->targetlist) != 1)
		return NULL;
	target = linitial(plan->targetlist);
	return IsA(target->expr, FuncExpr) ? (FuncExpr *) target->expr : NULL;
}

Oid
mip_sole_function(const Query *query)
{
	TargetEntry *target;

	if (query->commandType != CMD_SELECT || query->rtable != NIL ||
		list_length(query->targetList) != 1)
		return InvalidOid;
	target = linitial(query->targetList);
	return IsA(target->expr, FuncExpr) ? ((FuncExpr *) target->expr)->funcid : InvalidOid;
}

/* Is it one that is called by a statement of its own? */
static bool
has_to_be_sole(const char *function)
{
	static const char *const functions[] = {
		"mip.start", "mip.prepare_beside", "mip.commit_one_phase_beside", "mip.commit_beside",
		"mip.replicate_ddl"
	};

	for (int i = 0; i < lengthof(functions); i++)
	{
		if (strcmp(function, functions[i]) == 0)
			return true;
	}
	return false;
}

/*
 * A view's query, or that of a function in SQL, has become the whole plan, and nobody
 * could tell any more (mip_require_sole).
 */
void
mip_check_sole_plan(Oid function, const PlannedStmt *plan)
{
	FuncExpr   *call = sole_call(plan);
	char	   *schema;
	char	   *name;

	if (call == NULL || call->funcid == function || !mipt_exists())
		return;
	schema = get_namespace_name(get_func_namespace(call->funcid));
	name = get_func_name(call->funcid);
	if (schema == NULL || name == NULL)
		return;
	name = psprintf("%s.%s", schema, name);
	if (has_to_be_sole(name))
		raise_not_sole(name);
}

/*
 * Else it might be what somebody else has put into the statement: the default of a
 * column, the condition of a trigger, of a policy or of a domain; or beside it, by a rule.
 * Its arguments may be whatever they are.
 */
void
mip_require_sole(FunctionCallInfo fcinfo, const char *function)
{
	Assert(has_to_be_sole(function));
	mip_require_top_level(fcinfo, function);
	if (mip_is_call(fcinfo))
		return;
	if (ActivePortal->strategy != PORTAL_ONE_SELECT ||
		(Node *) sole_call(mip_statement.plan) != fcinfo->flinfo->fn_expr)
		raise_not_sole(function);
}

bool
mip_in_simple_query(Portal portal)
{
	return portal && portal->name[0] == '\0' && !portal->visible;
}

/*
 * The extended protocol lets clients fetch rows in parts. Queries are refused
 * if they do (refuse_part), but nobody sees the rows go that a portal stores
 * first.
 */
void
mip_require_whole(const char *function)
{
	Portal		portal = client_portal();

	if (portal && !mip_in_simple_query(portal) &&
		(portal->strategy == PORTAL_ONE_RETURNING ||
		 portal->strategy == PORTAL_ONE_MOD_WITH ||
		 portal->strategy == PORTAL_UTIL_SELECT))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("%s cannot be called by EXECUTE, CALL or a statement that changes rows in the extended query protocol",
						function),
				 errhint("Send SELECT * FROM %s(...) itself.", function)));
	mip_statement.whole = function;
}

void
mip_require_nothing_done(void)
{
	if (mip_statement.changed || TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("mip.begin must come before the transaction's first change or row lock")));
	if (mip_statement.executed)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("mip.begin must come before any %s", mip_statement.executed),
				 errdetail("A MIP transaction cannot execute it.")));
}

void
mip_statement_at_eoxact(void)
{
	mip_statement.changed = false;
	mip_statement.executed = NULL;
}

/* ---- locks that functions keep ---- */

static char *
locked_object(const LOCKTAG *tag)
{
	char	   *table = NULL;
	StringInfoData buf;

	if (tag->locktag_type == LOCKTAG_RELATION)
		table = get_rel_name(tag->locktag_field2);
	if (table)
		return psprintf("table \"%s\"", table);
	initStringInfo(&buf);
	DescribeLockTag(&buf, tag);
	return buf.data;
}

/*
 * Statements that lock tables are refused before they do; functions written in C,
 * as those for statistics, may do it unseen, and without a transaction id.
 * [siblings-never-wait]
 */
void
mip_refuse_strong_locks(void)
{
	LOCKTAG		tag;
	LOCKMODE	mode = mip_own_strong_lock(&tag);

	if (mode != NoLock)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("a MIP transaction cannot hold %s on %s",
						GetLockmodeName(DEFAULT_LOCKMETHOD, mode), locked_object(&tag)),
				 errdetail("A function that this transaction has called keeps it, so instances of one request would wait for each other."),
				 errhint("Call that function in a transaction of its own.")));
}

/* ---- utility statements ---- */

Node *
mip_explained(Node *stmt)
{
	Query	   *query;

	if (!IsA(stmt, ExplainStmt))
		return stmt;
	query = castNode(Query, ((ExplainStmt *) stmt)->query);
	return query->utilityStmt ? query->utilityStmt : stmt;
}

/* Everything else is not known to be so. */
bool
mip_is_harmless(Node *stmt)
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
