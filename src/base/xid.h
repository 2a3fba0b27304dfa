/*-------------------------------------------------------------------------
 *
 * xid.h
 *	  The times that XIDs carry.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_XID_H
#define MIP_XID_H

#include "datatype/timestamp.h"

/* Of a request; see horizon.c. */
typedef enum MipAge
{
	MIP_CURRENT,				/* may run; XIDs without a time always may */
	MIP_TOO_OLD,				/* by the clock; nothing of that age was
								 * removed here */
	MIP_BEHIND_HORIZON			/* for ever */
} MipAge;

extern void mip_xid_init(void);

/*
 * The time that an XID carries, in milliseconds since 1970: that of a UUID of
 * version 7 in its canonical form. False if it carries none.
 */
extern bool mip_xid_time(const char *xid, int64 *time);

/* `seconds` ago, in the same unit, by the clock. */
extern int64 mip_time_ago(int64 seconds);
extern TimestampTz mip_time_to_timestamp(int64 time);

#endif							/* MIP_XID_H */
