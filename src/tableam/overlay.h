/*-------------------------------------------------------------------------
 *
 * overlay.h
 *	  What this backend's instance wrote over base versions that siblings
 *	  have in use: backend-local, one entry a base version.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_OVERLAY_H
#define MIP_OVERLAY_H

#include "access/htup_details.h"
#include "lib/ilist.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "tableam/link.h"

/* Hashed as bytes: no padding, please. */
typedef struct MipOverlayKey
{
	Oid			relid;
	BlockNumber block;
	uint32		offset;
} MipOverlayKey;

typedef struct MipOverlayEntry
{
	MipOverlayKey key;			/* of the base version */
	MipLink		link;
	SubTransactionId subid;
	dlist_node	node;
} MipOverlayEntry;

/* Has a function called before the first entry of each overlay. */
extern void mip_overlay_before_first(void (*function) (void));

extern bool mip_overlay_exists(void);
extern MipOverlayEntry *mip_overlay_find(Relation rel, ItemPointer base);
extern void mip_overlay_add(Relation rel, ItemPointer base,
							ItemPointer version, CommandId cid, uint32 flags);

/* Is this base version replaced for a reader with this snapshot? */
extern bool mip_overlay_hides(Relation rel, ItemPointer tid, Snapshot snapshot);

/* The entry whose base version `version` descends from, or NULL. */
extern MipOverlayEntry *mip_overlay_base_of(Relation rel, ItemPointer version);
/* `next` is a later version of `version`, which mip_overlay_base_of knows. */
extern void mip_overlay_follow(Relation rel, ItemPointer version, ItemPointer next);

extern void mip_overlay_at_eosubxact(bool commit, SubTransactionId mine,
									 SubTransactionId parent);
extern void mip_overlay_at_eoxact(void);

/* All links as they are stored; NULL if there are none. */
extern bytea *mip_overlay_links(void);

#endif							/* MIP_OVERLAY_H */
