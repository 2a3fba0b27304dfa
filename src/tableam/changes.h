/*-------------------------------------------------------------------------
 *
 * changes.h
 *	  The changes of this transaction, in the order in which they were made.
 *
 * It is told of those that the overlay (overlay.c) consists of, no others.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_CHANGES_H
#define MIP_CHANGES_H

#include "tableam/link.h"

typedef struct MipChange
{
	MipLink		link;			/* what was replaced by what */
	SubTransactionId subid;		/* with which it would be rolled back */
} MipChange;

/* Appends a change of the current subtransaction; returns its number. */
extern int64 mip_changes_append(const MipLink *link);

/* How many there are; they are numbered from 0 on. */
extern int64 mip_changes_count(void);

/* Valid until the next one is appended. */
extern const MipChange *mip_changes_get(int64 number);

/*
 * Changes of a subtransaction go to its parent, or vanish: `forget` is called
 * for each before, the newest first.
 */
extern void mip_changes_at_eosubxact(bool commit, SubTransactionId mine,
									 SubTransactionId parent,
									 void (*forget) (const MipChange *change));
extern void mip_changes_at_eoxact(void);

#endif							/* MIP_CHANGES_H */
