/*-------------------------------------------------------------------------
 *
 * decide.h
 *	  Deciding a family at this site.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_DECIDE_H
#define MIP_DECIDE_H

#include "nodes/pg_list.h"
#include "utils/array.h"

/*
 * See decide.c for rules and errors. None of them keeps the family lock; what they
 * have to note is booked (books.h). The first three return the MIPT afterwards; of the
 * second one only its XINSTs and states count.
 */
extern List *mip_family_commit(const char *xid, int64 winner);
extern List *mip_family_commit_beside(const char *xid, int64 winner);
extern List *mip_family_rollback(const char *xid, int64 loser);

/* False if it has been prepared here. */
extern bool mip_family_refuse(const char *xid, int64 xinst, ArrayType *sites);

/* How many rows go. */
extern int	mip_family_forget(const char *xid);

#endif							/* MIP_DECIDE_H */
