/*-------------------------------------------------------------------------
 *
 * finish.h
 *	  Committing a prepared winner without waiting for the WAL flush.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_FINISH_H
#define MIP_FINISH_H

#include "postgres.h"

/* mip.synchronous_commit_prepared; in the postmaster, with shared memory set up */
extern void mip_finish_init(void);
extern void mip_finish_shmem_startup(void);

/*
 * Commits the prepared transaction with this name if the setting allows it, and
 * if there is nothing about it, or this server, that needs PostgreSQL's own way:
 * then false, and nothing has happened. The caller has validated that it may be
 * committed, and holds its family's lock.
 *
 * After a crash the transaction may be prepared again, until WAL has been flushed
 * up to here (by the WAL writer, within three times wal_writer_delay, or anybody
 * else).
 */
extern bool mip_finish_unflushed(const char *gid);

#endif							/* MIP_FINISH_H */
