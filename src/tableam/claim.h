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
 * this version, and `verdict` for `mode` is not MIP_WAIT.
 */
typedef struct MipClaim
{
	Relation	rel;
	ItemPointerData tid;
	LockTupleMode mode;
	MipVerdict	verdict;
	bool		used;			/* somebody who runs is in xmax; maybe we */
	bool		exclusive;		/* we have locked it FOR UPDATE already */
	bool		held;			/* the mutex is, or the claim of who is alone
								 * (lone.c) */
	bool		queued;			/* heap's tuple lock is held */
	LOCKMODE	queue_mode;
} MipClaim;

/*
 * False, and nothing is held: somebody is in the way, and the policy is to skip.
 * An update gives the strongest mode and its new version: if somebody uses the
 * version, that says which mode it needs.
 */
extern bool mip_claim(MipClaim *claim, Relation rel, ItemPointer tid,
					  LockTupleMode mode, TupleTableSlot *update,
					  LockWaitPolicy policy, XLTW_Oper oper);

/* May be called again. */
extern void mip_release(MipClaim *claim);

/*
 * No sibling is kept from a version any more: of whoever has failed there, before his
 * client is told of it, and in the end. May be called when there is no claim.
 */
extern void mip_claim_let_go(void);

/*
 * Adds this transaction to the version's lockers (a lock-only multixact
 * member beside a sibling's update). False if the version has been replaced, or
 * if an outsider has come in: then the claim has to be made again.
 */
extern bool mip_join(MipClaim *claim);

/* The error of NOWAIT. */
pg_noreturn extern void mip_lock_not_available(Relation rel);

#endif							/* MIP_CLAIM_H */
