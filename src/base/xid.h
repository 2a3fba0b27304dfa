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

#include "pg_mip.h"

typedef enum MipAge
{
	MIP_CURRENT,				/* may run; XIDs without a time always may */
	MIP_TOO_OLD,				/* by the clock; nothing of that age was removed here */
	MIP_BEHIND_HORIZON			/* for ever */
} MipAge;

extern int	mip_retention;		/* seconds; 0: for ever */

extern void mip_horizon_init(void);

/*
 * The time that an XID carries, in milliseconds since 1970: that of a UUID of
 * version 7 in its canonical form. False if it carries none.
 */
extern bool mip_xid_time(const char *xid, int64 *time);

/* `seconds` ago, in the same unit, by the clock. */
extern int64 mip_time_ago(int64 seconds);
extern TimestampTz mip_time_to_timestamp(int64 time);

extern MipAge mip_xid_age(const char *xid);

/* Raises MP007, and makes sure first that it stays true. */
pg_noreturn extern void mip_raise_expired(const char *xid);

/* Nothing as old as `time` runs from now on: at once, for all, durably. */
extern void mip_advance_horizon(int64 time);

#endif							/* MIP_HORIZON_H */
