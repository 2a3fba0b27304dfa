/*-------------------------------------------------------------------------
 *
 * locks.c
 *	  Reading the lock table: who is in whose way.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_largeobject.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "base/compat.h"
#include "base/locks.h"

bool
mip_same_lock(const LockInstanceData *a, const LockInstanceData *b)
{
	return memcmp(&a->locktag, &b->locktag, sizeof(LOCKTAG)) == 0;
}

bool
mip_modes_conflict(LOCKMASK held, LOCKMODE wanted)
{
	for (LOCKMODE mode = 1; mode <= MaxLockMode; mode++)
	{
		if ((held & LOCKBIT_ON(mode)) && DoLockModesConflict(mode, wanted))
			return true;
	}
	return false;
}

TransactionId
mip_lock_prepared(const LockData *locks, const LockInstanceData *entry)
{
	if (entry->pid != 0)
		return InvalidTransactionId;
	/* it is known by the lock on its own id */
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *other = &locks->locks[i];

		if (other->pid == 0 && mip_same_vxid(other, entry) &&
			other->locktag.locktag_type == LOCKTAG_TRANSACTION)
			return other->locktag.locktag_field1;
	}
	return InvalidTransactionId;
}

/*
 * Does `entry` wait in front of `wait`, for the same lock? If it has been there
 * for longer; or if some other mode that it has is in the way of somebody who
 * has: it was put in front of that one then (ProcSleep). For the same reason
 * `wait` may be in front.
 */
static bool
waits_in_front(const LockData *locks, const LockInstanceData *entry,
			   const LockInstanceData *wait)
{
	if (entry->waitLockMode == NoLock || entry->waitStart == 0 ||
		mip_modes_conflict(wait->holdMask, entry->waitLockMode))
		return false;
	if (entry->waitStart <= wait->waitStart)
		return true;
	for (int i = 0; entry->holdMask != 0 && i < locks->nelements; i++)
	{
		const LockInstanceData *other = &locks->locks[i];

		if (other != entry && mip_same_lock(other, wait) &&
			other->waitLockMode != NoLock && other->waitStart <= wait->waitStart &&
			mip_modes_conflict(entry->holdMask, other->waitLockMode))
			return true;
	}
	return false;
}

bool
mip_lock_blocks(const LockData *locks, const LockInstanceData *entry,
				const LockInstanceData *wait)
{
	if (mip_modes_conflict(entry->holdMask, wait->waitLockMode))
		return true;
	return DoLockModesConflict(entry->waitLockMode, wait->waitLockMode) &&
		waits_in_front(locks, entry, wait);
}

/* ---- locks of this backend ---- */

/* Returns false to stop. Called under a lightweight lock. */
typedef bool (*Visit) (const PROCLOCK *held, void *arg);

/*
 * Weaker locks on tables need not be in the lock table, and others may put them
 * there at any time; but what is looked for here we have put there ourselves.
 */
static void
visit_own_locks(Visit visit, void *arg)
{
	bool		go_on = true;

	for (int i = 0; i < NUM_LOCK_PARTITIONS && go_on; i++)
	{
		LWLock	   *partition = LockHashPartitionLockByIndex(i);
		PROCLOCK   *held = NULL;

		if (MIP_LOCKS_EMPTY(&MyProc->myProcLocks[i]))
			continue;
		LWLockAcquire(partition, LW_SHARED);
		while (go_on && (held = MIP_NEXT_LOCK(&MyProc->myProcLocks[i], held)) != NULL)
			go_on = visit(held, arg);
		LWLockRelease(partition);
	}
}

/*
 * Is it on a table or another object, and stronger than those of writes? Large
 * objects are left to whoever uses them: who deletes one locks it, as he does
 * its rows.
 */
static LOCKMODE
strong_mode(const PROCLOCK *held)
{
	const LOCKTAG *tag = &held->tag.myLock->tag;

	if (tag->locktag_type != LOCKTAG_RELATION &&
		(tag->locktag_type != LOCKTAG_OBJECT ||
		 tag->locktag_field2 == LargeObjectRelationId))
		return NoLock;
	for (LOCKMODE mode = MaxLockMode; mode > RowExclusiveLock; mode--)
	{
		if (held->holdMask & LOCKBIT_ON(mode))
			return mode;
	}
	return NoLock;
}

static bool
find_strong(const PROCLOCK *held, void *arg)
{
	MipOwnLock *found = arg;

	found->mode = strong_mode(held);
	found->tag = held->tag.myLock->tag;
	return found->mode == NoLock;
}

LOCKMODE
mip_own_strong_lock(LOCKTAG *tag)
{
	MipOwnLock	found = {.mode = NoLock};

	visit_own_locks(find_strong, &found);
	*tag = found.tag;
	return found.mode;
}

static bool
collect_written(const PROCLOCK *held, void *arg)
{
	const LOCKTAG *tag = &held->tag.myLock->tag;
	List	  **tables = arg;

	if (tag->locktag_type == LOCKTAG_RELATION && tag->locktag_field1 == MyDatabaseId &&
		(held->holdMask & ~(LOCKBIT_ON(RowExclusiveLock) - 1)) != 0)
		*tables = lappend_oid(*tables, tag->locktag_field2);
	return true;
}

/*
 * Most of these locks are in the process's own slots, where what has been given back
 * stays, too: the process itself knows what it has. Others may move a lock from there to
 * the lock table at any time, but leave the slot as it is.
 */
List *
mip_own_written_tables(void)
{
	List	   *tables = NIL;

	visit_own_locks(collect_written, &tables);
	for (int i = 0; i < MIP_LOCK_SLOTS; i++)
	{
		Oid			relid = MyProc->fpRelId[i];
		LOCKTAG		tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
		if (OidIsValid(relid) && mip_lock_held_by_me(&tag, RowExclusiveLock))
			tables = lappend_oid(tables, relid);
	}
	return tables;
}

static bool
collect_advisory(const PROCLOCK *held, void *arg)
{
	List	  **locks = arg;

	if (held->tag.myLock->tag.locktag_lockmethodid != USER_LOCKMETHOD)
		return true;
	for (LOCKMODE mode = 1; mode <= MaxLockMode; mode++)
	{
		MipOwnLock *lock;

		if (!(held->holdMask & LOCKBIT_ON(mode)))
			continue;
		lock = palloc0(sizeof(MipOwnLock));
		lock->tag = held->tag.myLock->tag;
		lock->mode = mode;
		*locks = lappend(*locks, lock);
	}
	return true;
}

/*
 * The lock table does not tell whether a lock is the session's or the transaction's:
 * the process itself counts that. It shows its count to who takes the lock once
 * more, which is no more than counting.
 */
static void
count_owners(MipOwnLock *lock)
{
	LOCALLOCK  *local;

	(void) mip_lock_acquire_local(&lock->tag, lock->mode, &local);
	for (int i = 0; i < local->numLockOwners; i++)
	{
		if (local->lockOwners[i].owner == NULL)
			lock->session = local->lockOwners[i].nLocks - 1;
	}
	lock->transaction = local->nLocks - 1 - lock->session;
	LockRelease(&lock->tag, lock->mode, true);
}

int
mip_compare_own_locks(const MipOwnLock *a, const MipOwnLock *b)
{
	int			order = memcmp(&a->tag, &b->tag, sizeof(LOCKTAG));

	return order != 0 ? order : a->mode - b->mode;
}

static int
compare_cells(const ListCell *a, const ListCell *b)
{
	return mip_compare_own_locks(lfirst(a), lfirst(b));
}

List *
mip_own_advisory_locks(void)
{
	List	   *locks = NIL;
	ListCell   *lc;

	visit_own_locks(collect_advisory, &locks);
	list_sort(locks, compare_cells);
	foreach(lc, locks)
		count_owners(lfirst(lc));
	return locks;
}

/* ---- any lock ---- */

/* Weak ones, which need not be in the lock table, too */
bool
mip_own_table_lock(void)
{
	LockData   *locks = GetLockStatusData();

	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *entry = &locks->locks[i];

		if (entry->pid == MyProcPid && entry->locktag.locktag_type == LOCKTAG_RELATION &&
			entry->locktag.locktag_field2 >= FirstNormalObjectId)
			return true;
	}
	return false;
}
