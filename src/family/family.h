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
#include "utils/array.h"
#include "utils/dsa.h"

#include "base/mip.h"

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
	volatile uint64 notes;		/* how often losers were noted in the MIPT */
} MipFamily;

/* Why must an active instance not go on? */
typedef enum MipDoom
{
	MIP_NOT_DOOMED,
	MIP_DOOMED_FOR_SIBLING,		/* which is to be committed */
	MIP_DOOMED_GIVEN_UP			/* by mip.rollback or mip.refuse */
} MipDoom;

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
	TimestampTz prepared;		/* when it was; valid if it is */
	dsa_pointer declared;		/* the site set; invalid once prepared */
	ArrayType  *site_set;		/* the same, in copies */
	volatile MipDoom doomed;
	volatile bool at_lock;		/* ends: sees `doomed` once it has the lock */
	volatile bool running;		/* executes a statement right now */
	volatile int told;			/* how many errors have said `doomed` */
	volatile bool overlay;		/* may have one; set by its own backend */
} MipInstance;

#define MipInstanceIsPrepared(inst) ((inst)->pid == 0)

extern void mip_family_shmem_request(void);
extern void mip_family_shmem_startup(void);

/* For who has called `function`; refused without the library, and on a standby. */
extern void mip_registry_ensure(const char *function);

/* Enters and leaves; see the definitions for the refusals. */
extern MipInstance *mip_register(const char *xid, int64 xinst, Oid owner,
								 ArrayType *sites);
extern bool mip_unregister(MipInstance *inst, bool committed);
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

/*
 * When instances were prepared, in all databases; `now` if that lies in the
 * future, as when the clock has gone back.
 */
typedef struct MipPreparedAt
{
	Oid			dbid;
	TimestampTz prepared;
} MipPreparedAt;
extern List *mip_all_prepared(TimestampTz now);

/* Who is alive in this database. */
typedef struct MipLiving
{
	char		xid[MIP_XID_MAX + 4];
	int64		xinst;
	TransactionId tid;
	int			pid;			/* 0: prepared */
	Oid			owner;
} MipLiving;
extern List *mip_living_instances(void);

/* Is there any in this database? Looks closely: see family.c, drop_stale. */
extern bool mip_any_in_doubt(void);

/* Counts a transition of a family and forgets a prepared instance of it. */
extern void mip_family_transition(const char *xid, int64 forget_xinst);
/* Counts a note, after it has been made. */
extern void mip_family_noted(const char *xid);

/* An active instance that has siblings; deadlock.c looks after it. */
typedef struct MipWaiter
{
	int			pid;
	List	   *prepared;		/* transaction ids of prepared siblings */
	List	   *active;			/* pids of active siblings */
} MipWaiter;
extern List *mip_waiters(void);

#endif							/* MIP_FAMILY_H */
