/*-------------------------------------------------------------------------
 *
 * family_lock.c
 *	  The family lock.
 *
 * A lock's tag has no room for an XID, and pg_locks shows it to everybody. So it
 * is a keyed hash: nobody can find an XID whose lock is that of another family,
 * and keep others from that one. A plain hash will not do, even if it is seeded:
 * there are ways to make two inputs collide under any seed. SipHash is made for this:
 * as long as its key is secret, the tags of all the XIDs that somebody has tried say
 * nothing of that of another one.
 *
 * Locks that are held are remembered, so that they can be given back before an
 * error is reported: the client may not read it, and the session hangs then.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/siphash.h"
#include "family/family_lock.h"

static uint8 *secret;			/* of the tags, in shared memory: the key */

/* How often what is locked exclusively has been given back, by tag: see family_lock.h. */
#define COUNTERS 128

static pg_atomic_uint64 *given_back;

/* A lock that is held, or waited for */
typedef struct HeldLock
{
	LOCKTAG		tag;
	LOCKMODE	mode;
	ResourceOwner owner;		/* NULL: the session */
	char		xid[MIP_XID_MAX + 1];
} HeldLock;

static List *held;				/* of HeldLock; TopMemoryContext */

/* ---- start-up ---- */

void
mip_family_lock_shmem_request(void)
{
	RequestAddinShmemSpace(add_size(MIP_SIPHASH_KEY, COUNTERS * sizeof(pg_atomic_uint64)));
}

void
mip_family_lock_shmem_startup(void)
{
	bool		found;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	secret = ShmemInitStruct("pg_mip secret", MIP_SIPHASH_KEY, &found);
	if (!found && !pg_strong_random(secret, MIP_SIPHASH_KEY))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random key")));
	given_back = ShmemInitStruct("pg_mip family locks given back",
								 COUNTERS * sizeof(pg_atomic_uint64), &found);
	for (int i = 0; !found && i < COUNTERS; i++)
		pg_atomic_init_u64(&given_back[i], 0);
}

/* ---- tags ---- */

static uint64
keyed_hash(const char *xid)
{
	size_t		length = strlen(xid);	/* of any: rows may come by SQL */
	uint8	   *input = palloc(sizeof(Oid) + length);
	uint64		hash;

	memcpy(input, &MyDatabaseId, sizeof(Oid));
	memcpy(input + sizeof(Oid), xid, length);
	hash = mip_siphash(secret, input, sizeof(Oid) + length);
	pfree(input);
	return hash;
}

static LOCKTAG
family_tag(const char *xid)
{
	/* the steps of a request ask for the same one again and again */
	static char last_xid[MIP_XID_MAX + 1];
	static uint64 last_hash;
	LOCKTAG		tag;

	if (strcmp(xid, last_xid) != 0)
	{
		last_hash = keyed_hash(xid);
		/* one that is cut off would be another request's */
		if (strlcpy(last_xid, xid, sizeof(last_xid)) >= sizeof(last_xid))
			last_xid[0] = '\0';
	}
	/* offsets of tuples (see claim.c) end far below 0xFFFF */
	tag.locktag_field1 = MyDatabaseId;
	tag.locktag_field2 = (uint32) (last_hash >> 32);
	tag.locktag_field3 = (uint32) last_hash;
	tag.locktag_field4 = 0xFFFF;
	tag.locktag_type = LOCKTAG_USERLOCK;
	tag.locktag_lockmethodid = DEFAULT_LOCKMETHOD;
	return tag;
}

/* ---- what may have been written meanwhile ---- */

static pg_atomic_uint64 *
counter_of(const LOCKTAG *tag)
{
	return &given_back[tag->locktag_field3 % COUNTERS];
}

uint64
mip_family_writes(const char *xid)
{
	LOCKTAG		tag = family_tag(xid);

	return pg_atomic_fetch_add_u64(counter_of(&tag), 0);	/* a barrier, both ways */
}

void
mip_families_written(void)
{
	for (int i = 0; given_back && i < COUNTERS; i++)
		pg_atomic_fetch_add_u64(&given_back[i], 1);
}

/* ---- locks ---- */

#ifdef USE_ASSERT_CHECKING
/* In this order nobody waits in a circle [lock-order]. */
static bool
is_next(const char *xid)
{
	ListCell   *lc;

	foreach(lc, held)
	{
		if (strcmp(((HeldLock *) lfirst(lc))->xid, xid) >= 0)
			return false;
	}
	return true;
}
#endif

/* Remembered first: that may fail, and a lock may have been granted to a wait that fails. */
static HeldLock *
remember(const char *xid, LOCKMODE mode, ResourceOwner owner)
{
	LOCKTAG		tag = family_tag(xid);
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	HeldLock   *lock = palloc(sizeof(HeldLock));

	lock->tag = tag;
	lock->mode = mode;
	lock->owner = owner;
	strlcpy(lock->xid, xid, sizeof(lock->xid));
	held = lappend(held, lock);
	MemoryContextSwitchTo(old);
	return lock;
}

static void
forget_last(void)
{
	pfree(llast(held));
	held = list_delete_last(held);
}

void
mip_family_lock(const char *xid, LOCKMODE mode)
{
	HeldLock   *lock;

	Assert(IsTransactionState());
	Assert(is_next(xid));
	lock = remember(xid, mode, CurrentResourceOwner);
	(void) LockAcquire(&lock->tag, mode, false, false);
}

bool
mip_family_lock_if_free(const char *xid, LOCKMODE mode)
{
	HeldLock   *lock;

	Assert(IsTransactionState());
	lock = remember(xid, mode, CurrentResourceOwner);
	if (LockAcquire(&lock->tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL)
		return true;
	forget_last();
	return false;
}

void
mip_family_lock_ending(const char *xid)
{
	HeldLock   *lock;

	Assert(is_next(xid));
	lock = remember(xid, ExclusiveLock, NULL);
	(void) LockAcquire(&lock->tag, ExclusiveLock, true, false);
}

void
mip_family_unlock(void)
{
	HeldLock   *lock = llast(held);
	ResourceOwner current = CurrentResourceOwner;

	if (lock->mode == ExclusiveLock)
		pg_atomic_fetch_add_u64(counter_of(&lock->tag), 1);
	if (lock->owner)
		CurrentResourceOwner = lock->owner;
	if (mip_lock_held_by_me(&lock->tag, lock->mode))
		LockRelease(&lock->tag, lock->mode, lock->owner == NULL);
	CurrentResourceOwner = current;
	forget_last();
}

void
mip_family_unlock_all(void)
{
	while (held)
		mip_family_unlock();
}

bool
mip_family_is_locked(void)
{
	ListCell   *lc;

	foreach(lc, held)
	{
		if (((HeldLock *) lfirst(lc))->mode == ExclusiveLock)
			return true;
	}
	return false;
}

bool
mip_family_locked(const char *xid, LOCKMODE mode)
{
	LOCKTAG		tag = family_tag(xid);

	Assert(mode == ShareLock || mode == ExclusiveLock);
	return mip_lock_held_by_me(&tag, mode) || mip_lock_held_by_me(&tag, ExclusiveLock);
}
