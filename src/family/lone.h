/*-------------------------------------------------------------------------
 *
 * lone.h
 *	  Claims of an instance that is alone in its family.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_LONE_H
#define MIP_LONE_H

#include "storage/condition_variable.h"
#include "storage/itemptr.h"
#include "storage/spin.h"

/* A family's; part of MipFamily. */
typedef struct MipLone
{
	slock_t		lock;
	/* under it: who has claimed which version; or 0 */
	int			pid;
	Oid			rel;
	ItemPointerData tid;

	ConditionVariable over;		/* waits for a claim's end */
} MipLone;

static inline void
mip_lone_init(MipLone *lone)
{
	SpinLockInit(&lone->lock);
	lone->pid = 0;
	ConditionVariableInit(&lone->over);
}

/*
 * Claims a version for this instance, if it has no siblings. False: it has, so it takes
 * the mutex; and none of them has claimed this version here, nor will one while this
 * instance lives. May wait until one is through with it. This backend has no other claim.
 */
extern bool mip_lone_claim(Oid rel, ItemPointer tid);

/* Is there one of this backend? */
extern bool mip_lone_claimed(void);

/*
 * This backend is through with it. May be called where there is none; must be before the
 * instance is unregistered, and when a subtransaction is rolled back.
 */
extern void mip_lone_withdraw(void);

#endif							/* MIP_LONE_H */
