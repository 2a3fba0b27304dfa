/*-------------------------------------------------------------------------
 *
 * durable.h
 *	  What is told must not be lost: neither in a crash nor with this server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_DURABLE_H
#define MIP_DURABLE_H

#include "access/xlogdefs.h"

extern void mip_durable_shmem_request(void);
extern void mip_durable_shmem_startup(void);

/*
 * A commit whose WAL, up to here, is not flushed is about to become visible;
 * by way of unflushed.c only, in the critical section that makes it so.
 */
extern void mip_note_unflushed(XLogRecPtr lsn);

/*
 * Returns when all commits of instances that are visible here have been flushed
 * and, as this session's synchronous_commit wants it, are at the synchronous
 * standbys. An error (query canceled) if an interrupt ends the wait. Who only
 * refuses something does not hold the family lock meanwhile.
 */
extern void mip_wait_until_durable(void);

/* The same, of all that has happened here, commits or not. */
extern void mip_make_durable(void);

#endif							/* MIP_DURABLE_H */
