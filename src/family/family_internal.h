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
	LWLock	   *lock;			/* set at start-up, like nslots */
	int			nslots;

	/*
	 * Prepared instances found after start-up? Set once, under the lock, when
	 * all of them are in; who reads it without the lock takes that before he
	 * looks for them.
	 */
	volatile bool rebuilt;

	/* change under the lock, held exclusively */
	uint32		next_family_id;
	int			free;			/* first free slot, or -1 */

	/* not under the lock */
	struct Latch *launcher;		/* of whom pushes; set at its start, of a
								 * process that may be gone */
	volatile bool pushed;		/* set by a worker that the launcher waits for */
	volatile int deadlock_victim;	/* pid, or 0; set by the detector, under
									 * the lock of what the victim waits for,
									 * and cleared by the victim, which wakes
									 * up */
	TimestampTz victim_since;	/* the deadlock detector's own */

	MipInstance slots[FLEXIBLE_ARRAY_MEMBER];	/* see family.h */
} MipRegistry;

extern MipRegistry *mip_registry;

/*
 * Finds a family of this cluster (HASH_FIND), or makes it. The caller holds the
 * registry lock, exclusively in order to make one.
 */
extern MipFamily *mip_find_family(Oid dbid, const char *xid, HASHACTION action);

/* A new instance's slot. The caller holds the registry lock exclusively. */
extern MipInstance *mip_take_slot(MipFamily *family, int64 xinst);

static inline MipInstance *
mip_instance_at(int slot)
{
	Assert(LWLockHeldByMe(mip_registry->lock));
	return slot >= 0 ? &mip_registry->slots[slot] : NULL;
}

/* The instances of a family, of which there may be none. Under the registry lock. */
#define mip_foreach_instance(inst, family) \
	for (MipInstance *inst = (family) ? mip_instance_at((family)->first) : NULL; \
		 inst != NULL; inst = mip_instance_at(inst->next))

#endif							/* MIP_FAMILY_INTERNAL_H */
