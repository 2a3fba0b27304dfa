/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  What a MIP transaction may execute, and where the functions that end
 *	  transactions may be called: executor and utility hooks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_GUARD_H
#define MIP_GUARD_H

#include "pg_mip.h"
#include "utils/portal.h"

extern void mip_guard_init(void);

/* Errors out unless called from a statement that the client sent itself. */
extern void mip_require_top_level(const char *function);

/*
 * Errors out if the client of that statement fetches its rows in parts: it
 * must not have any before the transaction has ended.
 */
extern void mip_require_whole(const char *function);

/* Is this the portal of a simple query? */
extern bool mip_in_simple_query(Portal portal);

/*
 * Errors out if this transaction has changed something, or executed what an
 * instance may not: to be called by mip.begin.
 */
extern void mip_require_nothing_done(void);
extern void mip_guard_at_eoxact(void);

#endif							/* MIP_GUARD_H */
