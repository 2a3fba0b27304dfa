/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  Deciding a family at this site.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_COMMIT_H
#define MIP_COMMIT_H

#include "mipt.h"

/* Each returns the MIPT afterwards; see commit.c for rules and errors. */
extern List *mip_family_commit(const char *xid, int64 winner);
extern List *mip_family_rollback(const char *xid, int64 loser);
extern bool mip_family_refuse(const char *xid, int64 xinst, ArrayType *sites);
extern int	mip_family_forget(const char *xid);

/*
 * Notes in the MIPT what commits and rollbacks of this transaction have left to
 * be noted, before it commits; takes the family locks until its end. May fail:
 * the decision stands all the same, and repeating it notes the rest.
 */
extern void mip_keep_books(void);
/* This transaction decides, or cleans up, by this function. */
extern void mip_begin_books(const char *function);
/* Before it is prepared: an error if it does. */
extern void mip_refuse_books(void);
/* At its end. */
extern void mip_lose_books(void);

#endif							/* MIP_COMMIT_H */
