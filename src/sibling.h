/*-------------------------------------------------------------------------
 *
 * sibling.h
 *	  Who else has a row version in use, and how an instance claims one that
 *	  a sibling is using.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SIBLING_H
#define MIP_SIBLING_H

#include "access/multixact.h"
#include "nodes/lockoptions.h"
#include "overlay.h"
#include "storage/lmgr.h"

typedef enum MipVerdict
{
	MIP_CLEAR,					/* nothing of siblings in the way: heap's case */
	MIP_OVERLAP,				/* only siblings are in the way */
	MIP_WAIT					/* an outsider is in the way */
} MipVerdict;

/*
 * mip_claim's promise to its caller until mip_release: no sibling touches
 * this version, and `verdict` is MIP_CLEAR or MIP_OVERLAP for `mode`. If the
 * claim failed (NOWAIT is an error; SKIP LOCKED gives TM_WouldBlock) nothing
 * is held.
 */
typedef struct MipClaim
{
	Relation	rel;
	ItemPointerData tid;
	LockTupleMode mode;
	MipVerdict	verdict;
	bool		untouched;		/* nobody was in xmax at all */
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
 * member beside a sibling's update). To be called under a claim with verdict
 * MIP_OVERLAP. False if the header has changed so that the claim has to be
 * made again (it is released).
 */
extern bool mip_join(MipClaim *claim);

/*
 * To be called before heap's code takes a key share lock. False: somebody is
 * in the way and the policy is to skip.
 */
extern bool mip_mend_key_share(Relation rel, ItemPointer tid, LockWaitPolicy policy);

extern TransactionId mip_pending_owner(Relation rel, ItemPointer tid);

/* The infomask bits of a multixact of these members. */
extern void mip_multixact_bits(const MultiXactMember *members, int n,
							   uint16 *infomask, uint16 *infomask2);

#endif							/* MIP_SIBLING_H */
