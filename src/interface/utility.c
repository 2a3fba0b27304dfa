/*-------------------------------------------------------------------------
 *
 * utility.c
 *	  Utility statements that a MIP transaction may execute, and what others
 *	  may not do to it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "parser/parser.h"
#include "tcop/utility.h"

#include "base/gid.h"
#include "base/mip.h"
#include "family/current.h"
#include "mipt/rows.h"
#include "transam/instance.h"
#include "transam/session.h"
#include "transam/statement.h"
#include "interface/utility.h"
#include "interface/writes.h"

/* ---- ending transactions ---- */

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

void
mip_check_transaction_stmt(PlannedStmt *pstmt, const char *query)
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

/* ---- inside and outside of an instance ---- */

static void
check_copy(CopyStmt *stmt)
{
	if (stmt->is_from && stmt->relation)
	{
		Relation	rel = table_openrv(stmt->relation, RowExclusiveLock);

		mip_check_written_table(rel);
		table_close(rel, NoLock);
	}
}

void
mip_check_utility(Node *stmt)
{
	Assert(mip_in_transaction());
	stmt = mip_explained(stmt);
	if (!mip_is_harmless(stmt))
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

/* The locks of reads and writes keep no sibling waiting. */
void
mip_note_utility(Node *stmt)
{
	Assert(!mip_in_transaction());
	stmt = mip_explained(stmt);
	if (IsA(stmt, CopyStmt))
		mip_statement.changed |= ((CopyStmt *) stmt)->is_from;
	else if (IsA(stmt, LockStmt) && ((LockStmt *) stmt)->mode <= RowExclusiveLock)
		return;
	else if (!mip_is_harmless(stmt))
		mip_statement.executed = GetCommandTagName(CreateCommandTag(stmt));
}

void
mip_utility_executed(Node *stmt)
{
	if (IsA(stmt, PrepareStmt))
		mip_session_note_prepared(((PrepareStmt *) stmt)->name);
	if (IsA(stmt, CopyStmt))
		check_copy((CopyStmt *) stmt);
}
