/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Deadlocks that pass through a prepared sibling.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_DEADLOCK_H
#define MIP_DEADLOCK_H

#include "pg_mip.h"

/*
 * Errors out with 40P01 if the transaction that we are about to wait for
 * waits, however indirectly, for a sibling of ours.
 */
extern void mip_check_deadlock(TransactionId xid);

#endif							/* MIP_DEADLOCK_H */
