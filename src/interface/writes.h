/*-------------------------------------------------------------------------
 *
 * writes.h
 *	  What a MIP transaction may write to, or lock rows of.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITES_H
#define MIP_WRITES_H

#include "nodes/execnodes.h"
#include "nodes/plannodes.h"
#include "utils/rel.h"

/*
 * All error out (MP006) where a table has not opted in, or can be none that does;
 * the first and the last one if the request has expired (MP007).
 */

/* Those that a plan writes to, or locks rows of */
extern void mip_check_written_tables(PlannedStmt *stmt);

/* Those that its rows went to: partitions, also one that has just been attached */
extern void mip_check_routed_tables(EState *estate);

/* One that is open */
extern void mip_check_written_table(Relation rel);

#endif							/* MIP_WRITES_H */
