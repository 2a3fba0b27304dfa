/*-------------------------------------------------------------------------
 *
 * family.h
 *	  The registry: which instances of which families are alive (active or
 *	  prepared) in this cluster. Shared memory; a cache of what PostgreSQL
 *	  itself keeps, rebuilt from pg_prepared_xacts after a restart.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_FAMILY_H
#define MIP_FAMILY_H

#include "access/transam.h"
#include "access/xact.h"
#include "pg_mip.h"

/* Key of a family; padded with zeros, compared as bytes. */
typedef struct MipFamilyKey
{
	Oid			dbid;
	char		xid[MIP_XID_MAX + 4];
} MipFamilyKey;

/* A family; its address stays valid while the caller has an instance in it. */
typedef struct MipFamily
{
	MipFamilyKey key;
	uint32		id;				/* unique among living families */
	int			first;			/* first instance slot, or -1 */
	volatile int ninstances;	/* read without lock as a hint */
	volatile uint64 transitions;	/* prepares, commits and rollbacks so far;
									 * changes only under the family lock */
} MipFamily;

/* A living instance. Fields change under the registry lock only. */
typedef struct MipInstance
{
	MipFamily  *family;			/* NULL: slot is free */
	int			next;			/* next slot of the family, or of the free list */
	int64		xinst;
	TransactionId xid;			/* PostgreSQL's id of the transaction */
	int			pid;			/* backend, or 0 once prepared */
	Oid			owner;
	uint64		sites;			/* hash of the site set, 0 = unknown */
	TimestampTz since;			/* begin */
	volatile bool doomed;		/* a sibling has won: must not go on */
	volatile bool at_lock;		/* ends: sees `doomed` once it has the lock */
	volatile bool running;		/* executes a statement right now */
} MipInstance;

#define MipInstanceIsPrepared(inst) ((inst)->pid == 0)

extern void mip_family_shmem_request(void);
extern void mip_family_shmem_startup(void);

/*
 * The family lock: a heavyweight lock on (database, XID). Shared for a
 * consistent reading of the MIPT, exclusive for each transition.
 *
 * mip_family_lock takes it for the current transaction (mip.commit and its
 * like, which run in one of their own, keep it to their end; readers give it
 * back). An instance that ends must not leave it with the prepared
 * transaction, so it takes it for the session; the transaction callbacks in
 * instance.c release it on every path. Only one can be held so.
 */
extern void mip_family_lock(const char *xid, LOCKMODE mode);
extern void mip_family_unlock(const char *xid, LOCKMODE mode);
extern void mip_family_lock_ending(const char *xid);
extern void mip_family_unlock_ending(void);

extern void mip_registry_ensure(void);

/* Enters and leaves; see the definitions for the refusals. */
extern MipInstance *mip_register(const char *xid, int64 xinst, Oid owner,
								 uint64 sites);
extern void mip_unregister(MipInstance *inst);
extern void mip_mark_prepared(MipInstance *inst);

/* Copies of the living instances of a family (caller: family lock, or a hint). */
extern List *mip_family_instances(const char *xid);
/* Same for all prepared instances of this database; fills in the XIDs. */
typedef struct MipInDoubt
{
	char		xid[MIP_XID_MAX + 4];
	int64		xinst;
} MipInDoubt;
extern List *mip_prepared_instances(void);

/* Counts a transition of a family and forgets a prepared instance of it. */
extern void mip_family_transition(const char *xid, int64 forget_xinst);

/* Mark active instances of a family as losers: they must not go on. */
extern void mip_doom_others(const char *xid, int64 winner);
extern void mip_doom_one(const char *xid, int64 loser);

/* Called by a doomed instance that is not `running` any more. */
extern void mip_swallow_cancel(void);
/* Ends what doomed instances are doing; waits briefly for them to be gone. */
extern void mip_evict_doomed(const char *xid);

/*
 * About a (sub)transaction in progress: is it a living sibling of my instance?
 * Is it an instance at all, of any family?
 */
extern bool mip_xid_is_sibling(TransactionId xid);
extern bool mip_xid_is_instance(TransactionId xid);

/* An active instance that has siblings; deadlock.c looks after it. */
typedef struct MipWaiter
{
	int			pid;
	List	   *prepared;		/* transaction ids of prepared siblings */
	List	   *active;			/* pids of active siblings */
} MipWaiter;
extern List *mip_waiters(void);

/*
 * One backend at a time can be told that its cancel means "deadlock"; it has
 * `patience` milliseconds to notice.
 */
extern void mip_set_deadlock_victim(int pid);
extern bool mip_deadlock_victim_pending(int patience);
extern bool mip_is_deadlock_victim(void);

/* gid of an instance's prepared transaction */
extern void mip_gid(char *gid, const char *xid, int64 xinst);
extern bool mip_gid_parse(const char *gid, Oid *dbid, char *xid, int64 *xinst);
extern bool mip_gid_is_mip(const char *gid);

#endif							/* MIP_FAMILY_H */
