/*-------------------------------------------------------------------------
 *
 * eviction.h
 *	  Losers: dooming them, and ending what they are doing.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_EVICTION_H
#define MIP_EVICTION_H

/*
 * Mark active instances of a family as losers: they must not go on. The caller
 * holds the family lock exclusively, so nobody begins, or is prepared, meanwhile.
 */
extern void mip_doom_others(const char *xid, int64 winner);
extern void mip_doom_one(const char *xid, int64 loser);

/* For assertions, by the same caller: are all active ones but this one doomed? */
extern bool mip_others_are_doomed(const char *xid, int64 winner);

/*
 * Called by a doomed instance that is not `running` any more. It does not hold
 * the registry lock.
 */
extern void mip_swallow_cancel(void);

/*
 * Ends what doomed instances are doing; waits briefly for them to be gone. The
 * caller holds the family lock exclusively.
 */
extern void mip_evict_doomed(const char *xid);

#endif							/* MIP_EVICTION_H */
