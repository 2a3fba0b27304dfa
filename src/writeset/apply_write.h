/*-------------------------------------------------------------------------
 *
 * apply_write.h
 *	  Changes of rows, as a writeset has them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_WRITE_H
#define MIP_APPLY_WRITE_H

#include "writeset/apply_target.h"

/* May be done later: see mip_apply_flush. */
extern void mip_apply_insert(MipApply *apply, MipTarget *target, const MipwChange *change);

/* False: the row is not there. */
extern bool mip_apply_update(MipApply *apply, MipTarget *target, const MipwChange *change);
extern bool mip_apply_delete(MipApply *apply, MipTarget *target, const MipwChange *change);

/* Inserts what is to be inserted into this table; or into all. */
extern void mip_apply_flush(MipApply *apply, MipTarget *target);
extern void mip_apply_flush_all(MipApply *apply);

#endif							/* MIP_APPLY_WRITE_H */
