/*-------------------------------------------------------------------------
 *
 * definable.h
 *	  Which definitions are the same at all replicas.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_DEFINABLE_H
#define MIP_REPLICATION_DEFINABLE_H

#include "nodes/parsenodes.h"

/*
 * Errors out (0A000) unless the statement, which is about to be executed, defines something, and
 * leaves the same at all replicas; 42P01 and the like if it cannot be executed at all.
 */
extern void mip_check_definable(const RawStmt *raw, const char *command);

/* Nothing but numbers of the sequence, which are each replica's own, and not what it belongs to? */
extern bool mip_changes_numbers(const AlterSeqStmt *stmt);

#endif							/* MIP_REPLICATION_DEFINABLE_H */
