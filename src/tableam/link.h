/*-------------------------------------------------------------------------
 *
 * link.h
 *	  Links: what an instance wrote over a base version, as its MIPT entry has it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_LINK_H
#define MIP_LINK_H

#include "access/htup_details.h"
#include "storage/itemptr.h"

/* flags of a link */
#define MIP_LINK_DELETE		0x01	/* base version deleted: no new version */
#define MIP_LINK_MOVED		0x02	/* ... because the row changed partition */
#define MIP_LINK_KEYS		0x04	/* key columns changed (or row deleted) */

typedef struct MipLink
{
	Oid			relid;
	TransactionId xmax;			/* the writing (sub)transaction */
	ItemPointerData base;
	ItemPointerData version;	/* invalid for a delete */
	CommandId	cid;			/* command that wrote it */
	uint32		flags;
} MipLink;

static inline int
mip_links_count(const bytea *links)
{
	return links ? VARSIZE_ANY_EXHDR(links) / sizeof(MipLink) : 0;
}

/* `links` must not be toasted; copies because of alignment. */
static inline MipLink
mip_links_get(const bytea *links, int i)
{
	MipLink		link;

	memcpy(&link, VARDATA_ANY(links) + i * sizeof(MipLink), sizeof(MipLink));
	return link;
}

#endif							/* MIP_LINK_H */
