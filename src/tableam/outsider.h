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

#include "heap/version.h"

/* The version that mip_pending_owner has looked at last; zeros at first. */
typedef struct MipSeen
{
	ItemPointerData tid;
	MipHeader	header;
} MipSeen;

/*
 * heap has found this version live, and nobody who is changing it. *owner: the
 * instance whose overlay may have replaced it, if any. False: heap has to look once
 * more, since an overlay may have been handed over after it did.
 */
extern bool mip_pending_owner(Relation rel, ItemPointer tid, MipSeen *seen,
							  TransactionId *owner);

/*
 * To be called before heap's code takes a key share lock. False: somebody is
 * in the way and the policy is to skip.
 */
extern bool mip_mend_key_share(Relation rel, ItemPointer tid, LockWaitPolicy policy);

/*
 * To be called after it has taken one, with the page pinned. TM_BeingModified: it is not
 * there any more, and nobody to wait for, so take it again. TM_WouldBlock: likewise, but
 * somebody is in the way, and the policy is to skip.
 */
extern TM_Result mip_confirm_key_share(Relation rel, ItemPointer tid, LockWaitPolicy policy);

/*
 * To be called then, if those on later versions have been taken as well. TM_Updated: not
 * that on one of them, to which *tid is set. TM_WouldBlock: somebody is in the way and
 * the policy is to skip.
 */
extern TM_Result mip_missed_version(Relation rel, ItemPointer tid, LockWaitPolicy policy);

#endif							/* MIP_OUTSIDER_H */
