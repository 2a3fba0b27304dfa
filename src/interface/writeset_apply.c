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
#include "replication/refusals.h"
#include "tableam/lost_reads.h"
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

/* There may be no statement that would note that a read is lost: PL/pgSQL's expressions. */
static int64
apply(const MipwSet *set)
{
	int64		applied;

	PG_TRY();
	{
		applied = mip_apply(set, check_table, false);
	}
	PG_CATCH();
	{
		mip_lost_reads_note();
		PG_RE_THROW();
	}
	PG_END_TRY();
	return applied;
}

Datum
mip_writeset_apply(PG_FUNCTION_ARGS)
{
	mip_require_preload();
	mip_replica_refuse_function("mip.writeset_apply");
	PreventCommandIfReadOnly("mip.writeset_apply()");
	PreventCommandIfParallelMode("mip.writeset_apply()");
	PG_RETURN_INT64(apply(mip_writeset_open(PG_GETARG_BYTEA_PP(0))));
}
