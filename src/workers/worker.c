/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  What all background workers of this library have in common.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/guc.h"

#include "workers/worker.h"

#define RESTART_AFTER_S		5

void
mip_worker_describe(BackgroundWorker *worker, const char *type, const char *function, int flags)
{
	memset(worker, 0, sizeof(*worker));
	snprintf(worker->bgw_name, BGW_MAXLEN, "%s", type);
	snprintf(worker->bgw_type, BGW_MAXLEN, "%s", type);
	snprintf(worker->bgw_library_name, sizeof(worker->bgw_library_name), "pg_mip");
	snprintf(worker->bgw_function_name, sizeof(worker->bgw_function_name), "%s", function);
	worker->bgw_flags = flags;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = RESTART_AFTER_S;
}

void
mip_worker_listen(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
}

bool
mip_worker_wait(long timeout)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 timeout, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}
