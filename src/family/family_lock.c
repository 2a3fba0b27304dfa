/*-------------------------------------------------------------------------
 *
 * family_lock.c
 *	  The family lock.
 *
 * A lock's tag has no room for an XID, and pg_locks shows it to everybody. So it
 * is a keyed hash: nobody can find an XID whose lock is that of another family,
 * and keep others from that one. A plain hash will not do, even if it is seeded:
 * there are ways to make two inputs collide under any seed.
 *
 * Locks that are held are remembered, so that they can be given back before an
 * error is reported: the client may not read it, and the session hangs then.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/mip.h"
#include "family/family_internal.h"
#include "family/family_lock.h"

static bool ending_locked;
static LOCKTAG ending_tag;

/* A lock of the current transaction */
typedef struct HeldLock
{
	LOCKTAG		tag;
	LOCKMODE	mode;
	ResourceOwner owner;
} HeldLock;

static List *held;				/* of HeldLock; TopMemoryContext */

/* ---- tags ---- */

static uint64
keyed_hash(const char *xid)
{
	pg_cryptohash_ctx *sha256 = pg_cryptohash_create(PG_SHA256);
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	uint64		hash;

	if (pg_cryptohash_init(sha256) < 0 ||
		pg_cryptohash_update(sha256, mip_registry->seed, MIP_SEED_LENGTH) < 0 ||
		pg_cryptohash_update(sha256, (const uint8 *) &MyDatabaseId, sizeof(Oid)) < 0 ||
		pg_cryptohash_update(sha256, (const uint8 *) xid, strlen(xid)) < 0 ||
		pg_cryptohash_final(sha256, digest, sizeof(digest)) < 0)
		elog(ERROR, "could not compute SHA-256 hash: %s", pg_cryptohash_error(sha256));
	pg_cryptohash_free(sha256);
	memcpy(&hash, digest, sizeof(hash));
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
		strlcpy(last_xid, xid, sizeof(last_xid));
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

/* ---- locks of the transaction ---- */

/* Remembered first: that may fail, and a lock may have been granted to a wait that fails. */
static HeldLock *
remember(const char *xid, LOCKMODE mode)
{
	LOCKTAG		tag = family_tag(xid);
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	HeldLock   *lock = palloc(sizeof(HeldLock));

	lock->tag = tag;
	lock->mode = mode;
	lock->owner = CurrentResourceOwner;
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
	HeldLock   *lock = remember(xid, mode);

	(void) LockAcquire(&lock->tag, mode, false, false);
}

bool
mip_family_lock_if_free(const char *xid, LOCKMODE mode)
{
	HeldLock   *lock = remember(xid, mode);

	if (LockAcquire(&lock->tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL)
		return true;
	forget_last();
	return false;
}

void
mip_family_unlock(void)
{
	HeldLock   *lock = llast(held);
	ResourceOwner current = CurrentResourceOwner;

	CurrentResourceOwner = lock->owner;
	if (mip_lock_held_by_me(&lock->tag, lock->mode))
		LockRelease(&lock->tag, lock->mode, false);
	CurrentResourceOwner = current;
	forget_last();
}

void
mip_family_unlock_all(void)
{
	while (held)
		mip_family_unlock();
	if (ending_locked)
	{
		ending_locked = false;
		LockRelease(&ending_tag, ExclusiveLock, true);
	}
}

bool
mip_family_is_locked(void)
{
	ListCell   *lc;
	bool		locked = ending_locked;

	foreach(lc, held)
		locked |= ((HeldLock *) lfirst(lc))->mode == ExclusiveLock;
	return locked;
}

/* ---- the lock of an instance that ends ---- */

void
mip_family_lock_ending(const char *xid)
{
	Assert(!ending_locked);
	ending_tag = family_tag(xid);
	(void) LockAcquire(&ending_tag, ExclusiveLock, true, false);
	ending_locked = true;
}
