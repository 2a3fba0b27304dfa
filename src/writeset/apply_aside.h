/*-------------------------------------------------------------------------
 *
 * apply_aside.h
 *	  Indexes that a replica can do without.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_ASIDE_H
#define MIP_APPLY_ASIDE_H

#include "writeset/apply_target.h"

/*
 * Enters `n` new versions of rows into those indexes behind the needed ones. Where one of them fails,
 * for a reason that is not going to pass, it is set aside: neither written to nor read from until it is
 * rebuilt (pg_index.indisready, indisvalid), for which the table is locked with
 * AccessExclusiveLock.
 */
extern void mip_apply_enter_dispensable(MipApply *apply, MipTarget *target, TupleTableSlot **rows,
										int n, bool update, bool only_summarizing);

/*
 * Errors out if a key is there twice; but for those of an index that REINDEX CONCURRENTLY builds, or has left behind. The
 * keys of what that was made from, which may have gone, need not be unique: it is set aside, likewise.
 */
extern void mip_apply_check_doubts(MipApply *apply);

#endif							/* MIP_APPLY_ASIDE_H */
