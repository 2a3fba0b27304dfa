/*-------------------------------------------------------------------------
 *
 * family_lock.h
 *	  The family lock: a heavyweight lock on (database, XID). Shared for a
 *	  consistent reading of the MIPT, exclusive for each transition.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_FAMILY_LOCK_H
#define MIP_FAMILY_LOCK_H

#include "storage/lockdefs.h"

extern void mip_family_lock_shmem_request(void);
extern void mip_family_lock_shmem_startup(void);

/*
 * mip_family_lock takes it for the current transaction (use mipt_lock where the
 * family may be another role's), mip_family_unlock gives back the one that was
 * taken last. An instance that ends must not leave it with the prepared
 * transaction, so it takes it for the session (mip_family_lock_ending). The
 * transaction callbacks in ending.c release all of them on every path, and
 * so does guard.c before an error is reported.
 *
 * Who waits for one while he holds others holds those of smaller XIDs only.
 */
extern void mip_family_lock(const char *xid, LOCKMODE mode);
extern bool mip_family_lock_if_free(const char *xid, LOCKMODE mode);
extern void mip_family_unlock(void);
extern void mip_family_lock_ending(const char *xid);
extern void mip_family_unlock_all(void);

/*
 * A number that is another one whenever rows of this family may have come into the
 * MIPT: whoever writes them gives its lock back afterwards, or calls the second
 * function before he commits. Read it before looking, and again behind the family
 * lock: if it is the same, what was found without the lock still holds. (Others'
 * rows change it as well.) [looked-once]
 */
extern uint64 mip_family_writes(const char *xid);
extern void mip_families_written(void);

/* For assertions: is some family's lock held, exclusively? */
extern bool mip_family_is_locked(void);

/* And this one's, in this mode or exclusively? */
extern bool mip_family_locked(const char *xid, LOCKMODE mode);

#endif							/* MIP_FAMILY_LOCK_H */
