/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  Deciding a family at this site.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_COMMIT_H
#define MIP_COMMIT_H

#include "nodes/pg_list.h"
#include "utils/array.h"

/* Each returns the MIPT afterwards; see commit.c for rules and errors. */
extern List *mip_family_commit(const char *xid, int64 winner);
extern List *mip_family_rollback(const char *xid, int64 loser);
extern bool mip_family_refuse(const char *xid, int64 xinst, ArrayType *sites);
extern int	mip_family_forget(const char *xid);

#endif							/* MIP_COMMIT_H */
