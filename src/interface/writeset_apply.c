/*-------------------------------------------------------------------------
 *
 * writeset_apply.c
 *	  The SQL function that applies a writeset.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"

#include "base/preload.h"
#include "family/current.h"
#include "writeset/apply.h"
#include "writeset/input.h"
#include "interface/writes.h"

PG_FUNCTION_INFO_V1(mip_writeset_apply);

/* An instance writes to tables that have opted in. */
static void
check_table(Relation rel)
{
	if (mip_in_transaction())
		mip_check_written_table(rel);
}

Datum
mip_writeset_apply(PG_FUNCTION_ARGS)
{
	mip_require_preload();
	PreventCommandIfReadOnly("mip.writeset_apply()");
	PreventCommandIfParallelMode("mip.writeset_apply()");
	PG_RETURN_INT64(mip_apply(mip_writeset_open(PG_GETARG_BYTEA_PP(0)), check_table));
}
