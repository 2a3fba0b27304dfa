/*-------------------------------------------------------------------------
 *
 * unflushed.h
 *	  Finishing a prepared instance without waiting for the WAL flush.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_UNFLUSHED_H
#define MIP_UNFLUSHED_H

#include "postgres.h"

/* mip.synchronous_commit_prepared; in the postmaster, with shared memory set up */
extern void mip_unflushed_init(void);
extern void mip_unflushed_shmem_startup(void);

/* Whether mip.commit need not wait: mip.synchronous_commit_prepared is off. */
extern bool mip_commits_unflushed(void);

/*
 * Commits or rolls back the prepared transaction with this name, unless there is
 * something about it, or this server, that needs PostgreSQL's own way: then false,
 * and nothing has happened. The caller has validated that it may be finished so,
 * and holds its family's lock exclusively.
 *
 * After a crash the transaction may be prepared again, until WAL has been flushed
 * up to here (by the WAL writer, within three times wal_writer_delay, or anybody
 * else).
 */
extern bool mip_finish_unflushed(const char *gid, bool commit);

#endif							/* MIP_UNFLUSHED_H */
