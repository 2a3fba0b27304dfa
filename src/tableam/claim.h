/*-------------------------------------------------------------------------
 *
 * claim.h
 *	  How an instance claims a row version that a sibling may be using.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_CLAIM_H
#define MIP_CLAIM_H

#include "executor/tuptable.h"
#include "nodes/lockoptions.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "base/compat.h"

typedef enum MipVerdict
{
	MIP_CLEAR,					/* nothing of siblings in the way: heap's case */
	MIP_REPLACED,				/* not the latest version: nobody to wait for */
	MIP_OVERLAP,				/* only siblings are in the way */
	MIP_WAIT					/* an outsider is in the way */
} MipVerdict;

/*
 * mip_claim's promise to its caller until mip_release: no sibling touches
 * this version, and `verdict` for `mode` is not MIP_WAIT. If the claim failed
 * (NOWAIT is an error; SKIP LOCKED gives TM_WouldBlock) nothing is held.
 */
typedef struct MipClaim
{
	Relation	rel;
	ItemPointerData tid;
	LockTupleMode mode;
	MipVerdict	verdict;
	bool		used;			/* somebody who runs is in xmax; maybe we */
	bool		exclusive;		/* we have locked it FOR UPDATE already */
	LOCKTAG		mutex;
	bool		queued;			/* heap's tuple lock is held */
	LOCKMODE	queue_mode;
} MipClaim;

/*
 * Computes the lock mode that replacing the version by `slot` needs, when a
 * claim turns out to need it; used by updates.
 */
extern bool mip_claim(MipClaim *claim, Relation rel, ItemPointer tid,
					  LockTupleMode mode, TupleTableSlot *update,
					  LockWaitPolicy policy, XLTW_Oper oper);
extern void mip_release(MipClaim *claim);

/*
 * Adds this transaction to the version's lockers (a lock-only multixact
 * member beside a sibling's update). To be called under a claim with a verdict
 * other than MIP_REPLACED. False if the header has changed so that the claim
 * has to be made again (it is released).
 */
extern bool mip_join(MipClaim *claim);

/* The error of NOWAIT. */
pg_noreturn extern void mip_lock_not_available(Relation rel);

#endif							/* MIP_CLAIM_H */
