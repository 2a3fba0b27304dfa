/*-------------------------------------------------------------------------
 *
 * outsider.h
 *	  What heap's own code cannot see in the headers of versions that an
 *	  overlay has replaced, on behalf of everybody else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_OUTSIDER_H
#define MIP_OUTSIDER_H

#include "nodes/lockoptions.h"
#include "storage/itemptr.h"
#include "utils/rel.h"

/* The instance whose overlay may have replaced this live version, if any. */
extern TransactionId mip_pending_owner(Relation rel, ItemPointer tid);

/*
 * To be called before heap's code takes a key share lock. False: somebody is
 * in the way and the policy is to skip.
 */
extern bool mip_mend_key_share(Relation rel, ItemPointer tid, LockWaitPolicy policy);

#endif							/* MIP_OUTSIDER_H */
