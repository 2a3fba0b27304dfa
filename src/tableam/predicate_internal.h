/*-------------------------------------------------------------------------
 *
 * predicate_internal.h
 *	  What PostgreSQL's SSI keeps in shared memory, as predicate.c has found it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PREDICATE_INTERNAL_H
#define MIP_PREDICATE_INTERNAL_H

#include "storage/predicate_internals.h"
#include "utils/hsearch.h"

#include "base/compat.h"

extern HTAB *mip_sxact_of_xid;
extern RWConflictPoolHeader mip_conflict_pool;
extern PredXactList mip_sxacts;

/* ---- the caller holds SerializableXactHashLock, exclusively to change something ---- */

/* Of a top-level transaction; NULL if it is not serializable, or over. */
static inline SERIALIZABLEXACT *
mip_find_sxact(TransactionId xid)
{
	SERIALIZABLEXIDTAG tag = {.xid = xid};
	SERIALIZABLEXID *found = hash_search(mip_sxact_of_xid, &tag, HASH_FIND, NULL);

	return found && !(found->myXact->flags & SXACT_FLAG_DOOMED) ? found->myXact : NULL;
}

/* ReleaseRWConflict */
static inline void
mip_release_conflict(RWConflict conflict)
{
	MIP_LIST_DELETE(&conflict->inLink);
	MIP_LIST_DELETE(&conflict->outLink);
	MIP_LIST_PUSH(&mip_conflict_pool->availableList, &conflict->outLink);
}

#endif							/* MIP_PREDICATE_INTERNAL_H */
