/*-------------------------------------------------------------------------
 *
 * preload.c
 *	  Has the library been loaded when the server started, and by one that it
 *	  can work in?
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/guc.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/preload.h"

static bool preloaded;

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
mip_preload_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	require_minor_release();
	preloaded = true;
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
