/*-------------------------------------------------------------------------
 *
 * pg_mip.c
 *	  Module load: settings, shared memory, hooks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/guc.h"

#include "base/preload.h"
#include "base/stats.h"
#include "base/stop.h"
#include "base/xid.h"
#include "heap/wal.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "family/sites.h"
#include "family/telling.h"
#include "mipt/durable.h"
#include "mipt/horizon.h"
#include "replication/fits.h"
#include "replication/member.h"
#include "replication/peers.h"
#include "replication/publish.h"
#include "replication/receive.h"
#include "replication/refusals.h"
#include "replication/take.h"
#include "replication/trust.h"
#include "replication/way.h"
#include "tableam/capture.h"
#include "tableam/predicate.h"
#include "transam/across.h"
#include "transam/ending.h"
#include "transam/unflushed.h"
#include "workers/deadlock.h"
#include "workers/push.h"
#include "interface/function_call.h"
#include "interface/guard.h"

PG_MODULE_MAGIC;

static shmem_request_hook_type prev_shmem_request;
static shmem_startup_hook_type prev_shmem_startup;

void		_PG_init(void);

static void
shmem_request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();
	mip_family_shmem_request();
	mip_family_lock_shmem_request();
	mip_durable_shmem_request();
	mip_stats_shmem_request();
	mip_predicate_shmem_request();
	mip_across_shmem_request();
	mip_member_shmem_request();
}

static void
shmem_startup(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	mip_family_shmem_startup();
	mip_family_lock_shmem_startup();
	mip_durable_shmem_startup();
	mip_unflushed_shmem_startup();
	mip_stats_shmem_startup();
	mip_predicate_shmem_startup();
	mip_across_shmem_startup();
	mip_member_shmem_startup();
	LWLockRelease(AddinShmemInitLock);
}

/* Callbacks registered first come last: what there is to publish is there by then. */
static void
replication_init(void)
{
	mip_receive_init();
	mip_take_init();
	mip_publish_init();
	mip_way_init();
	mip_refusals_init();
	mip_trust_init();
	mip_fits_init();
}

void
_PG_init(void)
{
	/* Not an error here: dropping the extension must stay possible. */
	if (!process_shared_preload_libraries_in_progress)
		return;
	mip_preload_init();

	mip_sites_init();
	mip_unflushed_init();
	mip_horizon_init();
	mip_push_init();
	mip_across_init();
	mip_capture_init();
	mip_stop_init();
	mip_xid_init();
	mip_member_init();
	mip_peers_init();
	MarkGUCPrefixReserved("mip");

	prev_shmem_request = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;

	mip_wal_register();
	if (mip_member_is_configured())
		replication_init();
	mip_ending_init();
	mip_telling_init();
	mip_guard_init();
	mip_function_call_init();
	mip_deadlock_init();
}
