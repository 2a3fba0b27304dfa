/*-------------------------------------------------------------------------
 *
 * executed.h
 *	  What a definition has executed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_EXECUTED_H
#define MIP_REPLICATION_EXECUTED_H

#include "nodes/plannodes.h"

/* From here to there a definition is executed, or tried out, which it is before it is sent. */
extern void mip_executed_begin(bool trial);
extern void mip_executed_end(void);

/* The next utility statement is the definition's own. */
extern void mip_executed_statement(void);

/* Is one, and not the script of an extension? */
extern bool mip_executes_definition(void);

/* Each errors out (0A000) if that may not be executed for a definition; elsewhere it does nothing. */
extern void mip_executed_check_plan(const PlannedStmt *stmt);
extern void mip_executed_check_utility(Node *stmt);
extern void mip_executed_check_function(Oid function);

#endif							/* MIP_REPLICATION_EXECUTED_H */
