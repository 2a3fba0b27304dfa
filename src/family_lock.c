/*-------------------------------------------------------------------------
 *
 * family_lock.c
 *	  The family lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "family.h"
#include "miscadmin.h"
#include "storage/lock.h"

static bool ending_locked;
static LOCKTAG ending_tag;

static LOCKTAG
family_tag(const char *xid)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) xid,
										   strlen(xid), 0);
	LOCKTAG		tag;

	/* offsets of tuples (see sibling.c) end far below 0xFFFF */
	tag.locktag_field1 = MyDatabaseId;
	tag.locktag_field2 = (uint32) (hash >> 32);
	tag.locktag_field3 = (uint32) hash;
	tag.locktag_field4 = 0xFFFF;
	tag.locktag_type = LOCKTAG_USERLOCK;
	tag.locktag_lockmethodid = DEFAULT_LOCKMETHOD;
	return tag;
}

void
mip_family_lock(const char *xid, LOCKMODE mode)
{
	LOCKTAG		tag = family_tag(xid);

	(void) LockAcquire(&tag, mode, false, false);
}

/* False if anybody has it, this transaction included. */
bool
mip_family_lock_if_free(const char *xid, LOCKMODE mode)
{
	LOCKTAG		tag = family_tag(xid);
	LockAcquireResult result = LockAcquire(&tag, mode, false, true);

	if (result != LOCKACQUIRE_OK && result != LOCKACQUIRE_NOT_AVAIL)
		LockRelease(&tag, mode, false);
	return result == LOCKACQUIRE_OK;
}

void
mip_family_unlock(const char *xid, LOCKMODE mode)
{
	LOCKTAG		tag = family_tag(xid);

	LockRelease(&tag, mode, false);
}

void
mip_family_lock_ending(const char *xid)
{
	Assert(!ending_locked);
	ending_tag = family_tag(xid);
	(void) LockAcquire(&ending_tag, ExclusiveLock, true, false);
	ending_locked = true;
}

void
mip_family_unlock_ending(void)
{
	if (ending_locked)
	{
		ending_locked = false;
		LockRelease(&ending_tag, ExclusiveLock, true);
	}
}
