/*-------------------------------------------------------------------------
 *
 * family_internal.h
 *	  The registry's memory, for the files that work on it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_FAMILY_INTERNAL_H
#define MIP_FAMILY_INTERNAL_H

#include "storage/lwlock.h"
#include "utils/hsearch.h"

#include "family/family.h"

typedef struct MipRegistry
{
	LWLock	   *lock;
	bool		rebuilt;		/* prepared instances found after start-up? */
	bool		pushed;			/* has the worker that the launcher waits for sent it? */
	uint32		next_family_id;
	int			free;			/* first free slot, or -1 */
	volatile int deadlock_victim;	/* pid, or 0 */
	TimestampTz victim_since;	/* the deadlock detector's own */
	int			nslots;
	MipInstance slots[FLEXIBLE_ARRAY_MEMBER];
} MipRegistry;

extern MipRegistry *mip_registry;

/* Finds a family of this cluster, or makes it (registry lock held exclusively). */
extern MipFamily *mip_find_family(Oid dbid, const char *xid, HASHACTION action);

#endif							/* MIP_FAMILY_INTERNAL_H */
