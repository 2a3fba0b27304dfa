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
 * errors out where this transaction must not write to a table.
 *
 * `as_is`: rows become what they are where the writeset comes from, stored generated columns
 * as well. No triggers of rows fire, no checks are made but by indexes, and what code of a
 * table's owner is executed for these is so with his rights.
 */
extern int64 mip_apply(const MipwSet *set, void (*check_table) (Relation rel), bool as_is);

#endif							/* MIP_APPLY_H */
