/*-------------------------------------------------------------------------
 *
 * rules.h
 *	  What the MIPT allows: who may prepare, and what the others are told.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_RULES_H
#define MIP_RULES_H

#include "base/compat.h"
#include "mipt/entry.h"

/*
 * May `xinst` prepare (one_phase: commit at once) beside these? An answer for as
 * long as the family lock is held, shared is enough, under which they were read, or
 * no transition has come since.
 */
extern void mipt_check_may_end(const char *xid, List *entries, int64 xinst,
							   bool one_phase);

/* Nothing is committed; all instances name the same sites. */
extern void mipt_check_undecided(const char *xid, List *entries);
extern void mipt_check_sites(const char *xid, List *entries, ArrayType *sites);

/*
 * The request's result is this one's, which is committed here, or prepared and no
 * other can be any more (mip_hand_over_begun). Gives all family locks back before
 * it waits until that is durable, and before the client is told [lock-let-go].
 */
pg_noreturn extern void mipt_raise_committed(const char *xid, const MiptEntry *entry);

#endif							/* MIP_RULES_H */
