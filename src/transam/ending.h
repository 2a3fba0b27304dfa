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

#endif							/* MIP_ENDING_H */
