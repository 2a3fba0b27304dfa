/*-------------------------------------------------------------------------
 *
 * locks.h
 *	  Reading the lock table: who is in whose way.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_LOCKS_H
#define MIP_LOCKS_H

#include "nodes/pg_list.h"
#include "storage/lock.h"

/* A lock of this backend, in one mode */
typedef struct MipOwnLock
{
	LOCKTAG		tag;
	LOCKMODE	mode;
	int64		session;		/* how often the session has it */
	int64		transaction;	/* how often its transaction has it */
} MipOwnLock;

extern bool mip_same_lock(const LockInstanceData *a, const LockInstanceData *b);
extern bool mip_modes_conflict(LOCKMASK held, LOCKMODE wanted);

/* The prepared transaction that has this entry; invalid if a process has it. */
extern TransactionId mip_lock_prepared(const LockData *locks,
									   const LockInstanceData *entry);

/* Does `wait` have to wait for `entry`, of the same lock? */
extern bool mip_lock_blocks(const LockData *locks, const LockInstanceData *entry,
							const LockInstanceData *wait);

/*
 * Has this backend a lock on a table or another object that keeps a sibling
 * waiting that wants the same? Its mode, and what it is on, or NoLock. Takes
 * the lock table's lightweight locks.
 */
extern LOCKMODE mip_own_strong_lock(LOCKTAG *tag);

/*
 * The tables of this database that this backend's transaction may have written to, by
 * its locks on them: OIDs, some of them more than once. Takes the lock table's lightweight
 * locks, where it has locks there.
 */
extern List *mip_own_written_tables(void);

/* Has this backend's transaction a lock, in whatever mode, on a table that is no catalog? */
extern bool mip_own_table_lock(void);

/* The advisory locks that this backend has, of MipOwnLock, in their order */
extern List *mip_own_advisory_locks(void);
extern int	mip_compare_own_locks(const MipOwnLock *a, const MipOwnLock *b);

#endif							/* MIP_LOCKS_H */
