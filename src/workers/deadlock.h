/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Deadlocks that pass through a sibling.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_DEADLOCK_H
#define MIP_DEADLOCK_H

/* Registers the background worker that looks for them. */
extern void mip_deadlock_init(void);

/* True once for each time this backend was made the victim. */
extern bool mip_is_deadlock_victim(void);

extern PGDLLEXPORT void mip_deadlock_main(Datum arg);

#endif							/* MIP_DEADLOCK_H */
