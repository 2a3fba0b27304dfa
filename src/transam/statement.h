/*-------------------------------------------------------------------------
 *
 * statement.h
 *	  The statement that this backend executes: whose it is, and what its
 *	  transaction has executed before. guard.c keeps the books of it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_STATEMENT_H
#define MIP_STATEMENT_H

#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "utils/portal.h"

/*
 * Nesting of statements. A function that ends the transaction may only be
 * called by a query of the client itself, at depth 1. Its EXECUTE does not count;
 * other utility statements go one deeper, since what they call by themselves
 * (DO in an expression, CALL for an argument) is inside another statement, too.
 */
#define MIP_QUERY_DEPTH		1
#define MIP_UTILITY_DEPTH	2

typedef struct MipStatement
{
	/* of the statement */
	int			depth;			/* 0: none is running */
	MemoryContext query_memory; /* of the query at depth 1: its calls are set
								 * up there */
	PlannedStmt *plan;			/* its plan */
	Portal		execute_portal; /* the client's, if it runs EXECUTE */
	bool		planning;		/* a statement is being planned, which may run
								 * others */
	bool		storing_cursor; /* the end of a transaction reads a cursor
								 * WITH HOLD */
	const char *whole;			/* whose rows have to be fetched at once */

	/*
	 * Of the transaction, outside of instances. Has it run a statement that
	 * changes or locks rows? Its XID does not tell of those at other servers,
	 * where postgres_fdw commits them before a commit in one phase is
	 * refused.
	 */
	bool		changed;
	const char *executed;		/* a utility statement, which instances may
								 * not */
} MipStatement;

extern MipStatement mip_statement;

/* EXPLAIN may run, or be about, another utility statement: that one, or `stmt` itself. */
extern Node *mip_explained(Node *stmt);

/*
 * Is it a utility statement that neither defines anything, nor locks more than statements
 * within it do? COPY writes to a table.
 */
extern bool mip_is_harmless(Node *stmt);

/* Does a trigger run? */
extern bool mip_in_trigger(void);

/* Does the active portal store a cursor WITH HOLD, since its transaction ends? */
extern bool mip_stores_cursor(void);

/* Is it made by CALL? */
extern bool mip_is_call(FunctionCallInfo fcinfo);

/*
 * Errors out unless the call `fcinfo`, of `function`, is a statement's that the
 * client sent itself.
 */
extern void mip_require_top_level(FunctionCallInfo fcinfo, const char *function);

/*
 * The same, and unless that statement is SELECT of this call and nothing else, or CALL. Of a
 * query before it is planned, and its plan: mip_check_sole_plan errors out where such a
 * call has become all of it that was not (mip_sole_function).
 */
extern void mip_require_sole(FunctionCallInfo fcinfo, const char *function);
extern Oid	mip_sole_function(const Query *query);
extern void mip_check_sole_plan(Oid function, const PlannedStmt *plan);

/*
 * Errors out if the client of that statement fetches its rows in parts: it
 * must not have any before the transaction has ended.
 */
extern void mip_require_whole(const char *function);

/* Is this the portal of a simple query? */
extern bool mip_in_simple_query(Portal portal);

/*
 * Errors out if this transaction has changed something, or executed what an
 * instance may not: to be called by mip.begin.
 */
extern void mip_require_nothing_done(void);
extern void mip_statement_at_eoxact(void);

/*
 * Errors out if this transaction has a lock that keeps siblings waiting: at the
 * end of each statement, and of an instance.
 */
extern void mip_refuse_strong_locks(void);

#endif							/* MIP_STATEMENT_H */
