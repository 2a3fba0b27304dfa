/*-------------------------------------------------------------------------
 *
 * expiry.h
 *	  Removing what nobody will ask for again.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_EXPIRY_H
#define MIP_EXPIRY_H

#include "datatype/timestamp.h"
#include "utils/array.h"

/* At most so many families a call, since their locks are held at once in the end. */
#define MIP_EXPIRE_MAX	500

extern void mip_family_acknowledge(const char *xid);

/*
 * Books the removal of expired families, or of their texts; returns how many. The
 * horizon has been moved then.
 */
extern int	mip_expire_families(void);

/*
 * Empties the links of winners where a crash came between commit and
 * book-keeping; returns of how many.
 */
extern int	mip_empty_kept_links(void);

/* An entry, as one looks for old ones: without texts. */
typedef struct MipFinished
{
	char	   *xid;
	int64		xinst;
	ArrayType  *sites;
	Oid			owner;
	TimestampTz since;
} MipFinished;

/* Committed, not acknowledged, of several sites, older than so many seconds. */
extern List *mip_finished_families(int64 seconds, int at_most);

#endif							/* MIP_EXPIRY_H */
