/*-------------------------------------------------------------------------
 *
 * ending.h
 *	  How the MIP transaction of this backend ends: what the transaction
 *	  callbacks do.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_ENDING_H
#define MIP_ENDING_H

#include "utils/palloc.h"

extern void mip_ending_init(void);

/* Calls `function` when this transaction is altogether over, whichever way. */
extern void mip_call_when_over(MemoryContextCallbackFunction function);

/*
 * Is this the role that the instance will be prepared for? MP006 if not, which
 * says that it is `function` that has been called.
 */
extern void mip_check_role(const char *function);

/*
 * Has an instance that is about to be committed in one phase wait for its order among
 * those of other servers: with no family lock, before it takes it. True if it has got
 * one: then it is not for this server any more to refuse it. It errors out if it is refused there.
 */
extern void mip_order_by(bool (*order) (void));

#endif							/* MIP_ENDING_H */
