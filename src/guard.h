/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  What a MIP transaction may execute, and where the functions that end
 *	  transactions may be called: executor, utility and planner hooks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_GUARD_H
#define MIP_GUARD_H

#include "pg_mip.h"

extern void mip_guard_init(void);

/* Errors out unless called from a statement that the client sent itself. */
extern void mip_require_top_level(const char *function);

#endif							/* MIP_GUARD_H */
