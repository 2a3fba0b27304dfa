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

/*
 * Puts the row whose identity is in target->wanted into target->found. False: there is
 * none that the snapshot shows.
 */
extern bool mip_apply_find(MipApply *apply, MipTarget *target);

/*
 * The snapshot is to show what has been changed meanwhile, by this transaction and, at
 * READ COMMITTED, by others.
 */
extern void mip_apply_look_again(MipApply *apply);

/* A row that this writeset has made, so that it may be found. */
extern void mip_apply_remember(MipTarget *target, TupleTableSlot *slot);

#endif							/* MIP_APPLY_FIND_H */
