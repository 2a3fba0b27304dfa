/*-------------------------------------------------------------------------
 *
 * subtransaction.h
 *	  Errors that can be gone on from.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SUBTRANSACTION_H
#define MIP_SUBTRANSACTION_H

/*
 * Executes the step in a subtransaction, in the caller's memory context. NULL, or the
 * error by which it has been rolled back, for ReThrowError or FreeErrorData.
 */
extern ErrorData *mip_try(void (*step) (void *arg), void *arg);

#endif							/* MIP_SUBTRANSACTION_H */
