/*-------------------------------------------------------------------------
 *
 * family.c
 *	  The registry of living instances, and the family lock.
 *
 * One shared hash of families and one array of instance slots, all guarded by
 * one lightweight lock that is held for a few instructions only. There are as
 * many slots as there can be backends and prepared transactions.
 *
 * A prepared instance may be finished by a backend that dies before it tells
 * the registry; such slots are recognised by their transaction not running
 * any more, and dropped when met.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "access/subtrans.h"
#include "access/twophase.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "family.h"
#include "instance.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/*
 * What mip_evict_doomed grants, in milliseconds: to clients that are between
 * two statements, to learn from the next one that they have lost (others wait
 * for their row locks meanwhile, so not for long); to running
 * statements, to be cancelled; and how long it waits for all to be gone.
 */
#define IDLE_PATIENCE_MS	10
#define CANCEL_PATIENCE_MS	200
#define EVICT_PATIENCE_MS	1000

typedef struct MipRegistry
{
	LWLock	   *lock;
	bool		rebuilt;		/* prepared instances found after start-up? */
	uint32		next_family_id;
	int			free;			/* first free slot, or -1 */
	volatile int deadlock_victim;	/* pid, or 0 */
	TimestampTz victim_since;	/* the deadlock detector's own */
	int			nslots;
	MipInstance slots[FLEXIBLE_ARRAY_MEMBER];
} MipRegistry;

static MipRegistry *registry;
static HTAB *families;

static bool ending_locked;
static LOCKTAG ending_tag;

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
	RequestAddinShmemSpace(registry_size());
	RequestAddinShmemSpace(hash_estimate_size(registry_slots(),
											  sizeof(MipFamily)));
	RequestNamedLWLockTranche("pg_mip", 1);
}

void
mip_family_shmem_startup(void)
{
	bool		found;
	HASHCTL		ctl;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	registry = ShmemInitStruct("pg_mip registry", registry_size(), &found);
	if (!found)
	{
		memset(registry, 0, registry_size());
		registry->lock = &(GetNamedLWLockTranche("pg_mip"))->lock;
		registry->nslots = registry_slots();
		registry->free = -1;
		for (int i = registry->nslots - 1; i >= 0; i--)
		{
			registry->slots[i].next = registry->free;
			registry->free = i;
		}
	}
	ctl.keysize = sizeof(MipFamilyKey);
	ctl.entrysize = sizeof(MipFamily);
	families = ShmemInitHash("pg_mip families", registry_slots(),
							 registry_slots(), &ctl, HASH_ELEM | HASH_BLOBS);
	LWLockRelease(AddinShmemInitLock);
}

/* ---- names ---- */

static void
family_key(MipFamilyKey *key, Oid dbid, const char *xid)
{
	memset(key, 0, sizeof(*key));
	key->dbid = dbid;
	strlcpy(key->xid, xid, sizeof(key->xid));
}

/* The gid of <xid, xinst> in this database; gid has room for GIDSIZE bytes. */
void
mip_gid(char *gid, const char *xid, int64 xinst)
{
	snprintf(gid, GIDSIZE, "mip:%u:" INT64_FORMAT ":%s",
			 MyDatabaseId, xinst, xid);
}

bool
mip_gid_is_mip(const char *gid)
{
	return strncmp(gid, "mip:", 4) == 0;
}

/* Takes a gid apart; false if mip_gid did not make it. */
bool
mip_gid_parse(const char *gid, Oid *dbid, char *xid, int64 *xinst)
{
	long long	inst;
	int			at = 0;

	if (sscanf(gid, "mip:%u:%lld:%n", dbid, &inst, &at) != 2 || at == 0 ||
		strlen(gid + at) == 0 || strlen(gid + at) > MIP_XID_MAX)
		return false;
	*xinst = inst;
	strlcpy(xid, gid + at, MIP_XID_MAX + 4);
	return true;
}

/* ---- the family lock ---- */

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

/* ---- slots; the caller holds registry->lock exclusively ---- */

static MipFamily *
find_family(Oid dbid, const char *xid, HASHACTION action)
{
	MipFamilyKey key;
	MipFamily  *family;
	bool		found;

	family_key(&key, dbid, xid);
	family = hash_search(families, &key, action, &found);
	if (family && !found)
	{
		family->id = registry->next_family_id++;
		family->first = -1;
		family->ninstances = 0;
		family->transitions = 0;
	}
	return family;
}

static MipInstance *
take_slot(MipFamily *family, int64 xinst)
{
	int			slot = registry->free;
	MipInstance *inst;

	if (slot < 0)
		elog(ERROR, "pg_mip: out of instance slots");
	inst = &registry->slots[slot];
	registry->free = inst->next;
	memset(inst, 0, sizeof(*inst));
	inst->family = family;
	inst->xinst = xinst;
	inst->next = family->first;
	family->first = slot;
	family->ninstances++;
	return inst;
}

static void
drop_slot(MipInstance *inst)
{
	MipFamily  *family = inst->family;
	int			slot = inst - registry->slots;
	int		   *at = &family->first;

	while (*at != slot)
		at = &registry->slots[*at].next;
	*at = inst->next;
	inst->family = NULL;
	inst->next = registry->free;
	registry->free = slot;
	if (--family->ninstances == 0)
		hash_search(families, &family->key, HASH_REMOVE, NULL);
}

/* Drops prepared instances that somebody finished without telling. */
static void
drop_stale(MipFamily *family)
{
	int			slot = family->first;

	while (slot >= 0)
	{
		MipInstance *inst = &registry->slots[slot];

		slot = inst->next;
		if (MipInstanceIsPrepared(inst) && !TransactionIdIsInProgress(inst->xid))
		{
			family->transitions++;
			drop_slot(inst);	/* may remove the family with its last member */
		}
	}
}

/* ---- start-up ---- */

typedef struct FoundPrepared
{
	Oid			dbid;
	char		xid[MIP_XID_MAX + 4];
	int64		xinst;
	TransactionId tid;
	Oid			owner;
	TimestampTz since;
} FoundPrepared;

/* Reads the prepared instances of all databases from pg_prepared_xacts. */
static List *
find_prepared(void)
{
	List	   *found = NIL;
	MemoryContext caller = CurrentMemoryContext;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute("SELECT p.gid, p.transaction, r.oid, p.prepared"
					" FROM pg_catalog.pg_prepared_xacts p"
					" LEFT JOIN pg_catalog.pg_roles r ON r.rolname OPERATOR(pg_catalog.=) p.owner"
					" WHERE pg_catalog.starts_with(p.gid, 'mip:')",
					true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_prepared_xacts");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	tup = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		FoundPrepared *p = MemoryContextAlloc(caller, sizeof(FoundPrepared));
		bool		isnull;
		MemoryContext old;

		if (!mip_gid_parse(SPI_getvalue(tup, desc, 1), &p->dbid, p->xid, &p->xinst))
			continue;
		p->tid = DatumGetTransactionId(SPI_getbinval(tup, desc, 2, &isnull));
		p->owner = DatumGetObjectId(SPI_getbinval(tup, desc, 3, &isnull));
		p->since = DatumGetTimestampTz(SPI_getbinval(tup, desc, 4, &isnull));
		old = MemoryContextSwitchTo(caller);
		found = lappend(found, p);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return found;
}

/*
 * Makes sure that the registry knows the instances that were prepared before
 * the server started. No instance can begin or be finished without this, so
 * the list cannot change between reading it and storing it.
 */
void
mip_registry_ensure(void)
{
	List	   *found;
	ListCell   *lc;

	mip_require_preload();
	/* a standby has no prepared transactions, only records of them */
	PreventCommandDuringRecovery("pg_mip");
	if (registry->rebuilt)
		return;
	found = find_prepared();
	LWLockAcquire(registry->lock, LW_EXCLUSIVE);
	if (!registry->rebuilt)
	{
		foreach(lc, found)
		{
			FoundPrepared *p = lfirst(lc);
			MipInstance *inst = take_slot(find_family(p->dbid, p->xid, HASH_ENTER),
										  p->xinst);

			inst->xid = p->tid;
			inst->owner = p->owner;
			inst->since = p->since;
		}
		registry->rebuilt = true;
	}
	LWLockRelease(registry->lock);
}

/* ---- instances ---- */

/*
 * Enters an instance of the current transaction, which must have its id.
 * Refuses (MP004) an XINST that is alive, (MP003) other sites than a living
 * sibling's, and families of another role.
 */
MipInstance *
mip_register(const char *xid, int64 xinst, Oid owner, uint64 sites)
{
	MipFamily  *family;
	MipInstance *mine;
	TransactionId tid = GetTopTransactionId();
	bool		duplicate = false,
				other_sites = false,
				other_owner = false;

	LWLockAcquire(registry->lock, LW_EXCLUSIVE);
	family = find_family(MyDatabaseId, xid, HASH_ENTER);
	mine = take_slot(family, xinst);
	mine->xid = tid;
	mine->pid = MyProcPid;
	mine->owner = owner;
	mine->sites = sites;
	mine->since = GetCurrentTransactionStartTimestamp();
	drop_stale(family);
	for (int slot = family->first; slot >= 0; slot = registry->slots[slot].next)
	{
		MipInstance *inst = &registry->slots[slot];

		if (inst == mine)
			continue;
		duplicate |= inst->xinst == xinst;
		other_owner |= inst->owner != owner;
		other_sites |= inst->sites != 0 && inst->sites != sites;
	}
	if (duplicate || other_owner || other_sites)
		drop_slot(mine);
	LWLockRelease(registry->lock);

	if (other_owner)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("family \"%s\" belongs to another role", xid)));
	if (duplicate)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_DUPLICATE),
				 errmsg("instance " INT64_FORMAT " of family \"%s\" exists already",
						xinst, xid),
				 errhint("Every attempt needs an XINST of its own.")));
	if (other_sites)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_SITES),
				 errmsg("instances of family \"%s\" have been begun with another set of sites", xid),
				 errhint("All instances of one XID must name the same sites.")));
	return mine;
}

/* The current transaction's instance is over. */
void
mip_unregister(MipInstance *inst)
{
	bool		doomed;

	LWLockAcquire(registry->lock, LW_EXCLUSIVE);
	doomed = inst->doomed;
	drop_slot(inst);
	LWLockRelease(registry->lock);

	if (doomed)
		mip_swallow_cancel();
}

/*
 * A cancel sent by the winner must not hit what this session does next. Who
 * sends one holds the registry lock and sees that we are running, so after
 * having had the lock ourselves none will come; one already sent is delivered,
 * at the latest, when a system call returns.
 */
void
mip_swallow_cancel(void)
{
	LWLockAcquire(registry->lock, LW_SHARED);
	LWLockRelease(registry->lock);
	(void) getppid();
	QueryCancelPending = false;
}

/* The current transaction's instance has just been prepared. */
void
mip_mark_prepared(MipInstance *inst)
{
	LWLockAcquire(registry->lock, LW_EXCLUSIVE);
	inst->pid = 0;
	inst->running = false;
	inst->family->transitions++;
	LWLockRelease(registry->lock);
}

List *
mip_family_instances(const char *xid)
{
	List	   *result = NIL;
	MipFamily  *family;
	MipInstance *copies;
	int			n = 0;

	copies = palloc(sizeof(MipInstance) * registry->nslots);
	LWLockAcquire(registry->lock, LW_EXCLUSIVE);
	family = find_family(MyDatabaseId, xid, HASH_FIND);
	if (family)
	{
		for (int slot = family->first; slot >= 0; slot = registry->slots[slot].next)
			copies[n++] = registry->slots[slot];
	}
	LWLockRelease(registry->lock);
	for (int i = 0; i < n; i++)
		result = lappend(result, &copies[i]);
	return result;
}

List *
mip_prepared_instances(void)
{
	List	   *result = NIL;
	MipInDoubt *found = palloc(sizeof(MipInDoubt) * registry->nslots);
	int			n = 0;

	LWLockAcquire(registry->lock, LW_SHARED);
	for (int slot = 0; slot < registry->nslots; slot++)
	{
		MipInstance *inst = &registry->slots[slot];

		if (inst->family && MipInstanceIsPrepared(inst) &&
			inst->family->key.dbid == MyDatabaseId)
		{
			found[n].xinst = inst->xinst;
			strlcpy(found[n++].xid, inst->family->key.xid, sizeof(found->xid));
		}
	}
	LWLockRelease(registry->lock);
	for (int i = 0; i < n; i++)
		result = lappend(result, &found[i]);
	return result;
}

void
mip_family_transition(const char *xid, int64 forget_xinst)
{
	MipFamily  *family;

	LWLockAcquire(registry->lock, LW_EXCLUSIVE);
	family = find_family(MyDatabaseId, xid, HASH_FIND);
	if (family)
	{
		int			slot = family->first;

		family->transitions++;
		while (slot >= 0)
		{
			MipInstance *inst = &registry->slots[slot];

			slot = inst->next;
			if (inst->xinst == forget_xinst && MipInstanceIsPrepared(inst))
				drop_slot(inst);
		}
	}
	LWLockRelease(registry->lock);
}

static TransactionId
topmost(TransactionId xid)
{
	/* what precedes every snapshot's xmin is not in progress */
	if (!TransactionIdIsNormal(xid) || TransactionIdPrecedes(xid, TransactionXmin))
		return InvalidTransactionId;
	return SubTransGetTopmostTransaction(xid);
}

/* False outside a MIP transaction. */
bool
mip_xid_is_sibling(TransactionId xid)
{
	TransactionId top;
	bool		result = false;

	if (!mip_in_transaction() || !mip_have_siblings())
		return false;
	top = topmost(xid);
	LWLockAcquire(registry->lock, LW_SHARED);
	for (int slot = mip_mine.family->first; slot >= 0;
		 slot = registry->slots[slot].next)
	{
		MipInstance *inst = &registry->slots[slot];

		if (inst != mip_mine.inst && TransactionIdEquals(inst->xid, top))
			result = true;
	}
	LWLockRelease(registry->lock);
	return result;
}

bool
mip_xid_is_instance(TransactionId xid)
{
	TransactionId top = topmost(xid);
	bool		result = false;

	if (registry == NULL)
		return false;
	LWLockAcquire(registry->lock, LW_SHARED);
	for (int slot = 0; slot < registry->nslots && !result; slot++)
	{
		MipInstance *inst = &registry->slots[slot];

		result = inst->family && TransactionIdEquals(inst->xid, top);
	}
	LWLockRelease(registry->lock);
	return result;
}

List *
mip_waiters(void)
{
	List	   *waiters = NIL;

	LWLockAcquire(registry->lock, LW_SHARED);
	for (int slot = 0; slot < registry->nslots; slot++)
	{
		MipInstance *inst = &registry->slots[slot];
		MipWaiter  *waiter;

		if (inst->family == NULL || MipInstanceIsPrepared(inst) ||
			inst->family->ninstances < 2)
			continue;
		waiter = palloc0(sizeof(MipWaiter));
		waiter->pid = inst->pid;
		for (int other = inst->family->first; other >= 0;
			 other = registry->slots[other].next)
		{
			MipInstance *sibling = &registry->slots[other];

			if (MipInstanceIsPrepared(sibling))
				waiter->prepared = lappend_xid(waiter->prepared, sibling->xid);
			else if (sibling != inst)
				waiter->active = lappend_int(waiter->active, sibling->pid);
		}
		waiters = lappend(waiters, waiter);
	}
	LWLockRelease(registry->lock);
	return waiters;
}

void
mip_set_deadlock_victim(int pid)
{
	registry->victim_since = GetCurrentTimestamp();
	registry->deadlock_victim = pid;
}

bool
mip_deadlock_victim_pending(int patience)
{
	return registry->deadlock_victim != 0 &&
		BackendPidGetProc(registry->deadlock_victim) != NULL &&
		!TimestampDifferenceExceeds(registry->victim_since, GetCurrentTimestamp(),
									patience);
}

/* True once for each time this backend was made the victim. */
bool
mip_is_deadlock_victim(void)
{
	if (registry == NULL || registry->deadlock_victim != MyProcPid)
		return false;
	registry->deadlock_victim = 0;
	return true;
}

/* ---- losers ---- */

/* Dooms the active instances whose being `xinst` equals `that`. */
static void
doom(const char *xid, int64 xinst, bool that)
{
	MipFamily  *family;

	LWLockAcquire(registry->lock, LW_EXCLUSIVE);
	family = find_family(MyDatabaseId, xid, HASH_FIND);
	for (int slot = family ? family->first : -1; slot >= 0;
		 slot = registry->slots[slot].next)
	{
		MipInstance *inst = &registry->slots[slot];

		if (!MipInstanceIsPrepared(inst) && (inst->xinst == xinst) == that)
			inst->doomed = true;
	}
	LWLockRelease(registry->lock);
}

void
mip_doom_others(const char *xid, int64 winner)
{
	doom(xid, winner, false);
}

void
mip_doom_one(const char *xid, int64 loser)
{
	doom(xid, loser, true);
}

/*
 * Signals the doomed instances of a family once; returns how many there are.
 * A statement that runs is cancelled, unless that is known not to help: it
 * does not reach one that waits for its client (COPY, a result nobody reads).
 * Such a session is ended, and so is one whose transaction stays idle; else
 * its locks would stay for as long as its client hangs.
 */
static int
signal_doomed(const char *xid, int waited)
{
	MipFamily  *family;
	int			n = 0;

	LWLockAcquire(registry->lock, LW_EXCLUSIVE);
	family = find_family(MyDatabaseId, xid, HASH_FIND);
	for (int slot = family ? family->first : -1; slot >= 0;
		 slot = registry->slots[slot].next)
	{
		MipInstance *inst = &registry->slots[slot];

		if (MipInstanceIsPrepared(inst) || !inst->doomed || inst->at_lock)
			continue;
		n++;
		if (waited >= (inst->running ? CANCEL_PATIENCE_MS : IDLE_PATIENCE_MS))
			(void) kill(inst->pid, SIGTERM);
		else if (inst->running)
			(void) kill(inst->pid, SIGINT);
	}
	LWLockRelease(registry->lock);
	return n;
}

void
mip_evict_doomed(const char *xid)
{
	int			waited = 0;

	for (int nap = 1;
		 signal_doomed(xid, waited) > 0 && waited < EVICT_PATIENCE_MS;
		 nap *= 2)
	{
		pg_usleep(nap * 1000L);
		waited += nap;
	}
}
