/*-------------------------------------------------------------------------
 *
 * apply_check.h
 *	  Unique and exclusion constraints, once a writeset has been applied.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_CHECK_H
#define MIP_APPLY_CHECK_H

#include "writeset/apply_target.h"

/* Enters a new version into `n` of the indexes, from the `first` on, whatever else has its keys. */
extern void mip_apply_enter_some(MipApply *apply, MipTarget *target, int first, int n,
								 TupleTableSlot *row, bool update, bool only_summarizing);

/*
 * What there is to be known of a table's rows is void: it is truncated. Nothing of it
 * stays open but the table itself.
 */
extern void mip_apply_forget(MipApply *apply, MipTarget *target);

/* Errors out if a key is there twice. The table's indexes are open. */
extern void mip_apply_check_doubt(MipApply *apply, MipDoubt *doubt);

#endif							/* MIP_APPLY_CHECK_H */
