/*-------------------------------------------------------------------------
 *
 * family.c
 *	  The registry of living instances.
 *
 * One shared hash of families and one array of instance slots, under one
 * lightweight lock that is held for a few instructions only: family.h says who
 * may read what without it. There are as many slots as there can be backends and
 * prepared transactions.
 *
 * A prepared instance may be finished by a backend that dies before it tells
 * the registry; such slots are recognised by their transaction not running
 * any more, and dropped when met.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/mip.h"
#include "family/family.h"
#include "family/family_internal.h"
#include "family/family_lock.h"
#include "family/lone.h"
#include "family/refusal.h"
#include "family/sites.h"

MipRegistry *mip_registry;
static HTAB *families;

static int
registry_slots(void)
{
	return MaxBackends + max_prepared_xacts;
}

static Size
registry_size(void)
{
	return add_size(offsetof(MipRegistry, slots),
					mul_size(registry_slots(), sizeof(MipInstance)));
}

void
mip_family_shmem_request(void)
{
	RequestAddinShmemSpace(MIP_DECLARED_SIZE);
	RequestAddinShmemSpace(registry_size());
	RequestAddinShmemSpace(hash_estimate_size(registry_slots(),
											  sizeof(MipFamily)));
	RequestNamedLWLockTranche("pg_mip", 1);
}

/* Of what there is of the key, most of which is the zeros behind the XID. */
static uint32
hash_key(const void *key, Size size)
{
	const MipFamilyKey *family = key;

	return hash_bytes(key, offsetof(MipFamilyKey, xid) + strlen(family->xid));
}

void
mip_family_shmem_startup(void)
{
	bool		found;
	HASHCTL		ctl;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	mip_registry = ShmemInitStruct("pg_mip registry", registry_size(), &found);
	if (!found)
	{
		memset(mip_registry, 0, registry_size());
		mip_registry->lock = &(GetNamedLWLockTranche("pg_mip"))->lock;
		mip_registry->nslots = registry_slots();
		mip_registry->free = -1;
		for (int i = mip_registry->nslots - 1; i >= 0; i--)
		{
			mip_registry->slots[i].next = mip_registry->free;
			mip_registry->free = i;
		}
	}
	ctl.keysize = sizeof(MipFamilyKey);
	ctl.entrysize = sizeof(MipFamily);
	ctl.hash = hash_key;
	families = ShmemInitHash("pg_mip families", registry_slots(),
							 registry_slots(), &ctl, HASH_ELEM | HASH_FUNCTION);
	mip_declared_shmem_startup(mip_registry->lock->tranche);
}

static void
family_key(MipFamilyKey *key, Oid dbid, const char *xid)
{
	memset(key, 0, sizeof(*key));
	key->dbid = dbid;
	memcpy(key->xid, xid, strnlen(xid, sizeof(key->xid) - 1));
}

/* ---- slots ---- */

#ifdef USE_ASSERT_CHECKING
static bool
registry_is_mine(void)
{
	return LWLockHeldByMeInMode(mip_registry->lock, LW_EXCLUSIVE);
}
#endif

MipFamily *
mip_find_family(Oid dbid, const char *xid, HASHACTION action)
{
	MipFamilyKey key;
	MipFamily  *family;
	bool		found;

	Assert(registry_is_mine() ||
		   (action == HASH_FIND && LWLockHeldByMe(mip_registry->lock)));
	family_key(&key, dbid, xid);
	family = hash_search(families, &key, action, &found);
	if (family && !found)
	{
		family->id = mip_registry->next_family_id++;
		family->first = -1;
		family->ninstances = 0;
		family->joins = 0;
		family->transitions = 1;
		family->notes = 0;
		mip_lone_init(&family->lone);
	}
	return family;
}

MipInstance *
mip_take_slot(MipFamily *family, int64 xinst)
{
	int			slot = mip_registry->free;
	MipInstance *inst;

	Assert(registry_is_mine());
	if (slot < 0)
		elog(ERROR, "pg_mip: out of instance slots");
	inst = &mip_registry->slots[slot];
	mip_registry->free = inst->next;
	memset(inst, 0, sizeof(*inst));
	inst->family = family;
	inst->xinst = xinst;
	inst->next = family->first;
	family->first = slot;
	family->ninstances++;
	family->joins++;
	return inst;
}

static void
drop_slot(MipInstance *inst)
{
	MipFamily  *family = inst->family;
	int			slot = inst - mip_registry->slots;
	int		   *at = &family->first;

	Assert(registry_is_mine());
	while (*at != slot)
		at = &mip_registry->slots[*at].next;
	*at = inst->next;
	inst->family = NULL;
	inst->next = mip_registry->free;
	mip_registry->free = slot;
	if (--family->ninstances == 0)
	{
		Assert(family->lone.pid == 0);	/* [one-claim] */
		hash_search(families, &family->key, HASH_REMOVE, NULL);
	}
}

/*
 * Drops prepared instances that somebody finished without telling: an error came
 * between. Nobody else is misled by a transition that is counted as late as here:
 * where it was a winner's commit, the active ones had been doomed before; and a
 * loser that is gone forbids nothing.
 */
static void
drop_stale(MipFamily *family)
{
	int			slot = family->first;

	Assert(registry_is_mine());
	while (slot >= 0)
	{
		MipInstance *inst = &mip_registry->slots[slot];

		slot = inst->next;
		if (MipInstanceIsPrepared(inst) && !TransactionIdIsInProgress(inst->xid))
		{
			family->transitions++;
			drop_slot(inst);	/* may remove the family with its last member */
		}
	}
}

/* ---- instances ---- */

/*
 * Enters an instance of the current transaction. Refuses (MP004) an XINST that
 * is alive, (MP003) other sites than a living sibling's, and families of another
 * role.
 */
MipInstance *
mip_register(const char *xid, int64 xinst, Oid owner, ArrayType *sites)
{
	MipFamily  *family;
	MipInstance *mine;
	TransactionId tid = GetTopTransactionIdIfAny();
	dsa_pointer declared = mip_declare_sites(sites);
	bool		duplicate = false,
				other_sites = false,
				other_owner = false;

	Assert(mip_registry->rebuilt);
	Assert(TransactionIdIsValid(tid));
	Assert(mip_family_locked(xid, ShareLock));	/* [doomed-before-header] */
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	family = mip_find_family(MyDatabaseId, xid, HASH_ENTER);
	mine = mip_take_slot(family, xinst);
	mine->xid = tid;
	mine->pid = MyProcPid;
	mine->owner = owner;
	mine->sites = mip_sites_hash(sites);
	mine->declared = declared;
	mine->since = GetCurrentTransactionStartTimestamp();
	drop_stale(family);
	mip_foreach_instance(inst, family)
	{
		if (inst == mine)
			continue;
		duplicate |= inst->xinst == xinst;
		other_owner |= inst->owner != owner;
		other_sites |= inst->sites != 0 && inst->sites != mine->sites;
	}
	if (duplicate || other_owner || other_sites)
		drop_slot(mine);
	LWLockRelease(mip_registry->lock);

	if (other_owner)
		mip_raise_stranger(xid);
	if (duplicate)
		mip_raise_duplicate(xid, xinst);
	if (other_sites)
		mip_raise_other_sites(xid);
	return mine;
}

/*
 * The current transaction's instance is over, by a commit in one phase or not.
 * Was it doomed? Then a cancel may still be on its way: see mip_swallow_cancel.
 */
bool
mip_unregister(MipInstance *inst, bool committed)
{
	bool		doomed;

	Assert(inst->pid == MyProcPid);
	Assert(!committed || mip_family_locked(inst->family->key.xid, ExclusiveLock));	/* [counted-in-lock] */
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	doomed = inst->doomed;
	if (committed)
		inst->family->transitions++;
	drop_slot(inst);
	LWLockRelease(mip_registry->lock);
	return doomed;
}

/* The current transaction's instance has just been prepared. */
void
mip_mark_prepared(MipInstance *inst, uint64 alone)
{
	TimestampTz now = GetCurrentTimestamp();

	Assert(inst->pid == MyProcPid && !inst->doomed);
	Assert(mip_family_locked(inst->family->key.xid, ExclusiveLock));	/* [counted-in-lock] */
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	inst->pid = 0;
	inst->declared = InvalidDsaPointer;
	inst->running = false;
	inst->prepared = now;
	/* rows by SQL may have come since it was seen to be alone */
	inst->alone = alone != 0 && alone == mip_family_changes(inst->family) ? alone + 1 : 0;
	inst->family->transitions++;
	LWLockRelease(mip_registry->lock);
}

MipInstance *
mip_alone(const char *xid, int64 xinst)
{
	MipInstance *copy = NULL;
	MipFamily  *family;

	Assert(mip_family_locked(xid, ExclusiveLock));
	LWLockAcquire(mip_registry->lock, LW_SHARED);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	mip_foreach_instance(inst, family)
	{
		if (inst->xinst != xinst || !MipInstanceIsPrepared(inst) ||
			family->ninstances > 1 || inst->alone == 0 ||
			inst->alone != mip_family_changes(family))
			continue;
		copy = palloc(sizeof(MipInstance));
		*copy = *inst;
		copy->site_set = NULL;
	}
	LWLockRelease(mip_registry->lock);
	return copy && TransactionIdIsInProgress(copy->xid) ? copy : NULL;
}

List *
mip_family_instances(const char *xid)
{
	List	   *result = NIL;
	MipFamily  *family;

	LWLockAcquire(mip_registry->lock, LW_SHARED);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	mip_foreach_instance(inst, family)
	{
		MipInstance *copy = palloc(sizeof(MipInstance));

		*copy = *inst;
		copy->site_set = mip_declared_sites(copy->declared);
		result = lappend(result, copy);
	}
	LWLockRelease(mip_registry->lock);
	return result;
}

List *
mip_all_prepared(TimestampTz now)
{
	List	   *result = NIL;
	MipPreparedAt *found = palloc(sizeof(MipPreparedAt) * mip_registry->nslots);
	int			n = 0;

	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	for (int slot = 0; slot < mip_registry->nslots; slot++)
	{
		MipInstance *inst = &mip_registry->slots[slot];

		if (inst->family == NULL || !MipInstanceIsPrepared(inst))
			continue;
		inst->prepared = Min(inst->prepared, now);
		found[n].dbid = inst->family->key.dbid;
		found[n].pressed = inst->pressed;
		found[n++].prepared = inst->prepared;
		inst->pressed = false;
	}
	LWLockRelease(mip_registry->lock);
	for (int i = 0; i < n; i++)
		result = lappend(result, &found[i]);
	return result;
}

static void
copy_living(MipLiving *copy, const MipInstance *inst)
{
	strlcpy(copy->xid, inst->family->key.xid, sizeof(copy->xid));
	copy->xinst = inst->xinst;
	copy->tid = inst->xid;
	copy->pid = inst->pid;
	copy->owner = inst->owner;
}

List *
mip_living_instances(void)
{
	List	   *result = NIL;
	MipLiving  *found = palloc(sizeof(MipLiving) * mip_registry->nslots);
	int			n = 0;

	LWLockAcquire(mip_registry->lock, LW_SHARED);
	for (int slot = 0; slot < mip_registry->nslots; slot++)
	{
		MipInstance *inst = &mip_registry->slots[slot];

		if (inst->family == NULL || inst->family->key.dbid != MyDatabaseId)
			continue;
		copy_living(&found[n++], inst);
	}
	LWLockRelease(mip_registry->lock);
	for (int i = 0; i < n; i++)
		result = lappend(result, &found[i]);
	return result;
}

bool
mip_press(TransactionId tid, MipLiving *found)
{
	bool		pressed = false;

	if (!TransactionIdIsValid(tid))
		return false;
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	for (int slot = 0; slot < mip_registry->nslots; slot++)
	{
		MipInstance *inst = &mip_registry->slots[slot];

		if (inst->family == NULL || !TransactionIdEquals(inst->xid, tid) ||
			!MipInstanceIsPrepared(inst) || inst->family->key.dbid != MyDatabaseId)
			continue;
		inst->pressed = pressed = true;
		copy_living(found, inst);
	}
	LWLockRelease(mip_registry->lock);
	if (pressed && mip_registry->launcher)
		SetLatch(mip_registry->launcher);
	return pressed;
}

bool
mip_any_in_doubt(void)
{
	bool		any = false;

	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	for (int slot = 0; slot < mip_registry->nslots; slot++)
	{
		MipInstance *inst = &mip_registry->slots[slot];

		if (inst->family && inst->family->key.dbid == MyDatabaseId &&
			MipInstanceIsPrepared(inst))
			drop_stale(inst->family);
		any = any || (inst->family && inst->family->key.dbid == MyDatabaseId &&
					  MipInstanceIsPrepared(inst));
	}
	LWLockRelease(mip_registry->lock);
	return any;
}

void
mip_family_finished(const char *xid, int64 xinst)
{
	MipFamily  *family;

	Assert(mip_registry->rebuilt);
	Assert(mip_family_locked(xid, ExclusiveLock));	/* [counted-in-lock] */
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	if (family)
	{
		int			slot = family->first;

		family->transitions++;
		while (slot >= 0)
		{
			MipInstance *inst = &mip_registry->slots[slot];

			slot = inst->next;
			if (inst->xinst == xinst && MipInstanceIsPrepared(inst))
				drop_slot(inst);	/* may remove the family with its last
									 * member */
		}
	}
	LWLockRelease(mip_registry->lock);
}

void
mip_family_noted(const char *xid)
{
	MipFamily  *family;

	Assert(mip_family_locked(xid, ExclusiveLock));	/* [counted-in-lock] */
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	if (family)
		family->notes++;
	LWLockRelease(mip_registry->lock);
}

void
mip_family_disturbed(const char *xid)
{
	MipFamily  *family;

	if (mip_registry == NULL)
		return;
	mip_families_written();
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	family = mip_find_family(MyDatabaseId, xid, HASH_FIND);
	if (family)
		family->transitions++;
	LWLockRelease(mip_registry->lock);
}

void
mip_families_disturbed(void)
{
	if (mip_registry == NULL)
		return;
	mip_families_written();		/* who is not registered yet looks again */
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	for (int slot = 0; slot < mip_registry->nslots; slot++)
	{
		MipFamily  *family = mip_registry->slots[slot].family;

		if (family && family->key.dbid == MyDatabaseId)
			family->transitions++;
	}
	LWLockRelease(mip_registry->lock);
}

List *
mip_waiters(void)
{
	List	   *waiters = NIL;

	LWLockAcquire(mip_registry->lock, LW_SHARED);
	for (int slot = 0; slot < mip_registry->nslots; slot++)
	{
		MipInstance *inst = &mip_registry->slots[slot];
		MipWaiter  *waiter;

		if (inst->family == NULL || MipInstanceIsPrepared(inst) ||
			inst->family->ninstances < 2)
			continue;
		waiter = palloc0(sizeof(MipWaiter));
		waiter->pid = inst->pid;
		mip_foreach_instance(sibling, inst->family)
		{
			if (MipInstanceIsPrepared(sibling))
				waiter->prepared = lappend_xid(waiter->prepared, sibling->xid);
			else if (sibling != inst)
				waiter->active = lappend_int(waiter->active, sibling->pid);
		}
		waiters = lappend(waiters, waiter);
	}
	LWLockRelease(mip_registry->lock);
	return waiters;
}
