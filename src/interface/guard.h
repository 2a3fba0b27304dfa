/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  What a MIP transaction may execute: executor and utility hooks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_GUARD_H
#define MIP_GUARD_H

extern void mip_guard_init(void);

#endif							/* MIP_GUARD_H */
