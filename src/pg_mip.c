/*-------------------------------------------------------------------------
 *
 * pg_mip.c
 *	  Module load: settings, shared memory, hooks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "deadlock.h"
#include "family.h"
#include "finish.h"
#include "fmgr.h"
#include "guard.h"
#include "horizon.h"
#include "instance.h"
#include "miscadmin.h"
#include "plans.h"
#include "push.h"
#include "stats.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "wal.h"

PG_MODULE_MAGIC;

char	   *mip_site_name;

static bool preloaded;
static shmem_request_hook_type prev_shmem_request;
static shmem_startup_hook_type prev_shmem_startup;

void		_PG_init(void);

static void
shmem_request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();
	mip_family_shmem_request();
	mip_stats_shmem_request();
}

static void
shmem_startup(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();
	mip_family_shmem_startup();
	mip_finish_shmem_startup();
	mip_stats_shmem_startup();
}

void
mip_require_preload(void)
{
	if (!preloaded)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("pg_mip must be loaded when the server starts"),
				 errhint("Add pg_mip to shared_preload_libraries and restart the server.")));
}

/* The server may be of an earlier minor release than what we were compiled for. */
static void
require_minor_release(void)
{
	int			server = atoi(GetConfigOption("server_version_num", false, false));

	if (server < MIP_OLDEST_SERVER)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("pg_mip needs PostgreSQL %d.%d or later, not %d.%d",
						MIP_OLDEST_SERVER / 10000, MIP_OLDEST_SERVER % 10000,
						server / 10000, server % 10000),
				 errdetail("Bitmap scans of earlier minor releases can return rows that are gone."),
				 errhint("Install the latest minor release of the server.")));
}

void
_PG_init(void)
{
	/* Not an error here: dropping the extension must stay possible. */
	if (!process_shared_preload_libraries_in_progress)
		return;
	require_minor_release();
	preloaded = true;

	DefineCustomStringVariable("mip.site_name",
							   "Name of this database as a site.",
							   "If set, mip.begin refuses a set of sites that does not contain it.",
							   &mip_site_name, "", PGC_SUSET, 0, NULL, NULL, NULL);
	mip_finish_init();
	mip_horizon_init();
	mip_push_init();
	mip_stop_init();
	MarkGUCPrefixReserved("mip");

	prev_shmem_request = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;

	mip_wal_register();
	mip_instance_init();
	mip_guard_init();
	mip_plans_init();
	mip_deadlock_init();
}
