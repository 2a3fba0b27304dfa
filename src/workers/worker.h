/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  What all background workers of this library have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WORKER_H
#define MIP_WORKER_H

#include "postmaster/bgworker.h"

/*
 * A worker, to be registered, that runs `function` of this library; it starts when
 * recovery is over, and again some seconds after it has ended with an error.
 */
extern void mip_worker_describe(BackgroundWorker *worker, const char *type,
								const char *function, int flags);

/* For one that stays until ShutdownRequestPending: takes signals from now on. */
extern void mip_worker_listen(void);

/*
 * Waits for so many milliseconds, or until this process is signalled. True if the
 * settings have been read again.
 */
extern bool mip_worker_wait(long timeout);

#endif							/* MIP_WORKER_H */
