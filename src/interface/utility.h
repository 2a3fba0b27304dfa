/*-------------------------------------------------------------------------
 *
 * utility.h
 *	  Utility statements that a MIP transaction may execute, and what others
 *	  may not do to it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_UTILITY_H
#define MIP_UTILITY_H

#include "nodes/plannodes.h"

/*
 * Errors out (MP006) if it ends an instance's transaction with something behind it,
 * or is a raw two-phase statement on an instance, whoever executes it.
 */
extern void mip_check_transaction_stmt(PlannedStmt *pstmt, const char *query);

/*
 * One that an instance is about to execute: errors out (MP006) unless it is known to
 * be harmless beside siblings.
 */
extern void mip_check_utility(Node *stmt);

/* One that an instance has executed */
extern void mip_utility_executed(Node *stmt);

/* One that is executed outside of instances: mip.begin may have to refuse it. */
extern void mip_note_utility(Node *stmt);

#endif							/* MIP_UTILITY_H */
