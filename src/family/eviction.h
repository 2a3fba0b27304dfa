/*-------------------------------------------------------------------------
 *
 * eviction.h
 *	  Losers: dooming them, and ending what they are doing.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_EVICTION_H
#define MIP_EVICTION_H

/* Mark active instances of a family as losers: they must not go on. */
extern void mip_doom_others(const char *xid, int64 winner);
extern void mip_doom_one(const char *xid, int64 loser);

/* Called by a doomed instance that is not `running` any more. */
extern void mip_swallow_cancel(void);
/* Ends what doomed instances are doing; waits briefly for them to be gone. */
extern void mip_evict_doomed(const char *xid);

#endif							/* MIP_EVICTION_H */
