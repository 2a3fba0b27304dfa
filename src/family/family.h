/*-------------------------------------------------------------------------
 *
 * family.h
 *	  The registry: which instances of which families are alive (active or
 *	  prepared) in this cluster. Shared memory; a cache of what PostgreSQL
 *	  itself keeps, rebuilt from pg_prepared_xact() after a restart.
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
#include "family/lone.h"

/* Key of a family; padded with zeros, compared as bytes. */
typedef struct MipFamilyKey
{
	Oid			dbid;
	char		xid[MIP_XID_MAX + 4];
} MipFamilyKey;

/*
 * A family; its address stays valid while the caller has an instance in it. All
 * of it but `lone` changes under the registry lock, held exclusively. Without that lock
 * who has an instance in it reads
 *
 *	 - key and id, which stay;
 *	 - joins: who misses one that has just come takes the sibling for a
 *	   stranger, which may fail him for nothing (predicate.c);
 *	 - ninstances: who meets a sibling's transaction id on a page has locked
 *	   that page after the sibling was registered and wrote it, so he finds it
 *	   counted; who is alone in it, under lone.lock: see lone.c; who wants it for
 *	   anything else takes it for a hint, or holds the family lock exclusively, so
 *	   that nobody begins;
 *	 - transitions: a hint; with the family lock held exclusively all transitions
 *	   by functions, since these are counted before the lock is given back
 *	   [counted-in-lock]. It may also count up at any other time, for what has
 *	   happened unseen (family.c, drop_stale; trigger.c, note_row): then
 *	   somebody looks again for nothing;
 *	 - notes: likewise, for what is in the MIPT without being a transition.
 */
typedef struct MipFamily
{
	MipFamilyKey key;
	uint32		id;				/* unique among living families */
	int			first;			/* first instance slot, or -1 */
	volatile int ninstances;
	volatile uint64 joins;		/* how often an instance was registered */
	volatile uint64 transitions;	/* prepares, commits and rollbacks so far,
									 * counted from 1 */
	volatile uint64 notes;		/* how often losers were noted in the MIPT */
	MipLone		lone;			/* see lone.h */
} MipFamily;

/* Changes with each transition, and each note; never 0. */
static inline uint64
mip_family_changes(const MipFamily *family)
{
	return family->transitions + family->notes;
}

/* Why must an active instance not go on? */
typedef enum MipDoom
{
	MIP_NOT_DOOMED,
	MIP_DOOMED_FOR_SIBLING,		/* which is to be committed */
	MIP_DOOMED_GIVEN_UP			/* by mip.rollback or mip.refuse */
} MipDoom;

/*
 * A living instance. Others read it under the registry lock. Its own backend
 * reads it without: but for `doomed` nobody else changes it while it is active.
 */
typedef struct MipInstance
{
	/* change under the registry lock, held exclusively */
	MipFamily  *family;			/* NULL: slot is free */
	int			next;			/* next slot of the family, or of the free
								 * list */
	int64		xinst;
	TransactionId xid;			/* PostgreSQL's id of the transaction */
	int			pid;			/* backend, or 0 once prepared */
	Oid			owner;
	uint64		sites;			/* hash of the site set, 0 = unknown */
	TimestampTz since;			/* begin */
	TimestampTz prepared;		/* when it was; valid if it is */
	bool		pressed;		/* prepared, and somebody has failed for it
								 * (mip_press) */
	uint64		alone;			/* prepared with nobody else in the MIPT, when
								 * mip_family_changes() was this; or 0, as
								 * after a restart */
	dsa_pointer declared;		/* the site set; invalid once prepared */
	ArrayType  *site_set;		/* the same, in copies */

	/*
	 * Set by who holds the family lock exclusively, too, and never cleared.
	 * Its backend reads it without a lock, after it has locked and read a
	 * page: it is set before a winner changes the first one
	 * [doomed-before-header].
	 */
	volatile MipDoom doomed;

	/*
	 * Its own backend's, who changes them at any time, without a lock. Who
	 * ends doomed instances reads `running` after `doomed` has been set;
	 * leave in guard.c reads `doomed` after it has cleared `running`, so one
	 * of them sees what the other has done (mip_swallow_cancel). Of the first
	 * two he may see a value that was true a moment ago: then he asks for
	 * something that does not help, and looks again.
	 */
	volatile bool running;		/* executes a statement right now */
	volatile bool at_lock;		/* ends: sees `doomed` once it has the lock */
	volatile int told;			/* how many errors have said `doomed` */
	volatile bool overlay;		/* may have one; set before its first entry */
} MipInstance;

#define MipInstanceIsPrepared(inst) ((inst)->pid == 0)

extern void mip_family_shmem_request(void);
extern void mip_family_shmem_startup(void);


/*
 * Enters and leaves; see the definitions for the refusals. The caller holds the
 * family lock: shared to enter, exclusively to be prepared or committed.
 */
extern MipInstance *mip_register(const char *xid, int64 xinst, Oid owner,
								 ArrayType *sites);
extern bool mip_unregister(MipInstance *inst, bool committed);

/*
 * `alone`: what mip_family_changes() was when the MIPT had nobody else, nor was its row to
 * have links or places; else 0.
 */
extern void mip_mark_prepared(MipInstance *inst, uint64 alone);

/*
 * Copies of the living instances of a family. With the family lock nobody is
 * prepared or decided meanwhile, with an exclusive one nobody begins either;
 * instances that are active may end at any time.
 */
extern List *mip_family_instances(const char *xid);

/*
 * A copy, without sites, of a prepared instance which has been alone in its family and
 * in the MIPT, as above, since it began; else NULL. With the family lock held
 * exclusively that stays so.
 */
extern MipInstance *mip_alone(const char *xid, int64 xinst);

/*
 * When instances were prepared, in all databases; `now` if that lies in the
 * future, as when the clock has gone back. Whether they have been pressed since
 * this was asked last.
 */
typedef struct MipPreparedAt
{
	Oid			dbid;
	TimestampTz prepared;
	bool		pressed;
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

/*
 * Somebody fails because of this transaction. If it is an instance in doubt, of
 * this database: true, and it is to be pushed at once. Takes the registry lock only.
 */
extern bool mip_press(TransactionId tid, MipLiving *found);

/* Is there any in this database? Looks closely: see family.c, drop_stale. */
extern bool mip_any_in_doubt(void);

/*
 * A prepared instance has been finished: counts the transition, and forgets it.
 * The caller holds the family lock exclusively.
 */
extern void mip_family_finished(const char *xid, int64 xinst);

/* Losers have been noted; others see it once the caller's family lock is gone. */
extern void mip_family_noted(const char *xid);

/*
 * Somebody writes to a family's rows, or has written to those of any families here,
 * who does not go by their locks.
 */
extern void mip_family_disturbed(const char *xid);
extern void mip_families_disturbed(void);

/* An active instance that has siblings; deadlock.c looks after it. */
typedef struct MipWaiter
{
	int			pid;
	List	   *prepared;		/* transaction ids of prepared siblings */
	List	   *active;			/* pids of active siblings */
} MipWaiter;
extern List *mip_waiters(void);

#endif							/* MIP_FAMILY_H */
