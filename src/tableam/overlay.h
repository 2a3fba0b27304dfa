/*-------------------------------------------------------------------------
 *
 * overlay.h
 *	  Those changes of this transaction whose base version siblings have in
 *	  use.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_OVERLAY_H
#define MIP_OVERLAY_H

#include "storage/itemptr.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "tableam/link.h"

/*
 * This instance may have an overlay from now on: before it becomes a locker for
 * that, so that whoever finds it there knows.
 */
extern void mip_overlay_announce(void);

extern bool mip_overlay_exists(void);

/* What replaces this base version, or NULL. Valid until the next change. */
extern const MipLink *mip_overlay_find(Relation rel, ItemPointer base);

/*
 * `version` (NULL: nothing, a delete) replaces `base` from command `cid` on. To
 * be called under a claim on it.
 */
extern void mip_overlay_add(Relation rel, ItemPointer base,
							ItemPointer version, CommandId cid, uint32 flags);

/* Is this base version replaced for a reader with this snapshot? */
extern bool mip_overlay_hides(Relation rel, ItemPointer tid, Snapshot snapshot);

/* What replaces the base version that `version` descends from, or NULL. */
extern const MipLink *mip_overlay_base_of(Relation rel, ItemPointer version);

/* `next` is a later version of `version`, which mip_overlay_base_of knows. */
extern void mip_overlay_follow(Relation rel, ItemPointer version, ItemPointer next);

extern void mip_overlay_at_eosubxact(bool commit, SubTransactionId mine,
									 SubTransactionId parent);
extern void mip_overlay_at_eoxact(void);

/* All links as they are stored; NULL if there are none. */
extern bytea *mip_overlay_links(void);

#endif							/* MIP_OVERLAY_H */
