/*-------------------------------------------------------------------------
 *
 * refusals.h
 *	  What a replicated database refuses, since the other replicas would not have it.
 *
 * All error out with 0A000, and do nothing elsewhere.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_REFUSALS_H
#define MIP_REPLICATION_REFUSALS_H

#include "nodes/execnodes.h"
#include "nodes/plannodes.h"

extern void mip_refusals_init(void);

/* Tables that a plan writes to; those that its rows went to */
extern void mip_replica_check_plan(const PlannedStmt *stmt);
extern void mip_replica_check_routed(const EState *estate);

/* A utility statement */
extern void mip_replica_check_utility(Node *stmt);

/* A function of ours, by its name */
extern void mip_replica_refuse_function(const char *function);

/* What this transaction has locked for writing, before it is published */
extern void mip_replica_check_locked(void);

#endif							/* MIP_REPLICATION_REFUSALS_H */
