/*-------------------------------------------------------------------------
 *
 * apply_find.h
 *	  The row that a change of a writeset is about.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_FIND_H
#define MIP_APPLY_FIND_H

#include "writeset/apply_target.h"

/* The identity that the change gives, into target->wanted. Uses target->values. */
extern void mip_apply_want(const MipApply *apply, MipTarget *target, const MipwChange *change);

/*
 * Puts the row whose identity is in target->wanted into target->found. False: none that
 * the snapshot shows has been found; it is thoroughly looked for only if `again`, with a
 * snapshot that shows what this writeset has changed.
 */
extern bool mip_apply_find(MipApply *apply, MipTarget *target, bool again);

/* The snapshot is to show what this transaction has changed by commands before. */
extern void mip_apply_see_own(MipApply *apply);

/*
 * The snapshot is to show what has been changed meanwhile, by this transaction and, at
 * READ COMMITTED, by others.
 */
extern void mip_apply_look_again(MipApply *apply);

/* A row that this writeset has made, so that it may be found. May fix settings. */
extern void mip_apply_remember(MipApply *apply, MipTarget *target, TupleTableSlot *slot);

#endif							/* MIP_APPLY_FIND_H */
