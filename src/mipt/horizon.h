/*-------------------------------------------------------------------------
 *
 * horizon.h
 *	  Which requests are too old to run: the time of an XID, the retention,
 *	  and the horizon.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_HORIZON_H
#define MIP_HORIZON_H

#include "base/compat.h"
#include "base/xid.h"

/* Of requests whose XID carries its time, and of others. Seconds; 0: for ever */
extern int	mip_retention;
extern int	mip_retention_timeless;

extern void mip_horizon_init(void);

extern MipAge mip_xid_age(const char *xid);

/*
 * Raises MP007, and makes sure first that it stays true; gives all family locks back
 * before it waits for a standby [lock-let-go].
 */
pg_noreturn extern void mip_raise_expired(const char *xid);

/* Nothing as old as `time` runs from now on: at once, for all, durably. */
extern void mip_advance_horizon(int64 time);

#endif							/* MIP_HORIZON_H */
