/*-------------------------------------------------------------------------
 *
 * seen.h
 *	  Types that a search through what types are made of has come to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_SEEN_H
#define MIP_WRITESET_SEEN_H

#include "utils/hsearch.h"

/* In the current memory context; hash_destroy() frees it. */
extern HTAB *mip_seen_create(void);

/* Is it the first time? */
extern bool mip_seen_first(HTAB *seen, Oid type);

#endif							/* MIP_WRITESET_SEEN_H */
