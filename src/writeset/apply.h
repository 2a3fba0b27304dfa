/*-------------------------------------------------------------------------
 *
 * apply.h
 *	  Applying a writeset to the tables of this database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_H
#define MIP_APPLY_H

#include "utils/rel.h"

#include "writeset/format.h"

/*
 * Makes all its changes, or errors out; returns how many there were. `check_table`
 * errors out where this transaction must not write to a table. `fires`: triggers of rows
 * that fire at replicas do.
 */
extern int64 mip_apply(const MipwSet *set, void (*check_table) (Relation rel), bool fires);

#endif							/* MIP_APPLY_H */
