/*-------------------------------------------------------------------------
 *
 * apply_generated.h
 *	  Generated columns that are updated with those that they are computed from.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_GENERATED_H
#define MIP_APPLY_GENERATED_H

#include "writeset/apply_target.h"

/*
 * Columns, as mip_target_given() has them, and those that are computed from them. In the
 * memory of the given ones, which it takes over.
 */
extern Bitmapset *mip_target_updated(MipApply *apply, MipTarget *target, Bitmapset *given);

#endif							/* MIP_APPLY_GENERATED_H */
