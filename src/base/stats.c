/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counters of each database: mip.stats.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/preload.h"
#include "base/stats.h"

MipStats   *mip_my_stats;

static MipStats *databases;
static LWLock *lock;			/* entries are taken and freed under it */

PG_FUNCTION_INFO_V1(mip_stats);
PG_FUNCTION_INFO_V1(mip_stats_reset);

static Size
size(void)
{
	return mul_size(MIP_STATS_DATABASES, sizeof(MipStats));
}

void
mip_stats_shmem_request(void)
{
	RequestAddinShmemSpace(size());
	RequestNamedLWLockTranche("pg_mip_stats", 1);
}

void
mip_stats_shmem_startup(void)
{
	bool		found;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	lock = &GetNamedLWLockTranche("pg_mip_stats")->lock;
	databases = ShmemInitStruct("pg_mip counters", size(), &found);
	if (found)
		return;
	for (int i = 0; i < MIP_STATS_DATABASES; i++)
	{
		databases[i].dbid = InvalidOid;
		pg_atomic_init_u64(&databases[i].since, 0);
		for (int j = 0; j < MIP_COUNTERS; j++)
			pg_atomic_init_u64(&databases[i].counters[j], 0);
	}
}

static void
reset(MipStats *stats)
{
	for (int i = 0; i < MIP_COUNTERS; i++)
		pg_atomic_write_u64(&stats->counters[i], 0);
	pg_atomic_write_u64(&stats->since, (uint64) GetCurrentTimestamp());
}

MipStats *
mip_stats_attach(void)
{
	MipStats   *unused = NULL;

	if (databases == NULL || !OidIsValid(MyDatabaseId))
		return NULL;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < MIP_STATS_DATABASES && mip_my_stats == NULL; i++)
	{
		if (databases[i].dbid == MyDatabaseId)
			mip_my_stats = &databases[i];
		else if (unused == NULL && !OidIsValid(databases[i].dbid))
			unused = &databases[i];
	}
	if (mip_my_stats == NULL && unused)
	{
		reset(unused);
		unused->dbid = MyDatabaseId;
		mip_my_stats = unused;
	}
	LWLockRelease(lock);
	return mip_my_stats;
}

List *
mip_stats_databases(void)
{
	Oid			found[MIP_STATS_DATABASES];
	List	   *result = NIL;

	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < MIP_STATS_DATABASES; i++)
		found[i] = databases[i].dbid;
	LWLockRelease(lock);
	for (int i = 0; i < MIP_STATS_DATABASES; i++)
	{
		if (OidIsValid(found[i]))
			result = lappend_oid(result, found[i]);
	}
	return result;
}

void
mip_stats_drop(Oid dbid)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < MIP_STATS_DATABASES; i++)
	{
		if (databases[i].dbid == dbid)
			databases[i].dbid = InvalidOid;
	}
	LWLockRelease(lock);
}

/* One row: the counters in their order, and since when. */
Datum
mip_stats(PG_FUNCTION_ARGS)
{
	MipStats   *stats = mip_my_stats;
	TupleDesc	desc;
	Datum		values[MIP_COUNTERS + 1];
	bool		nulls[MIP_COUNTERS + 1] = {false};

	mip_require_preload();
	if (stats == NULL)
		stats = mip_stats_attach();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (stats == NULL)
		PG_RETURN_NULL();
	for (int i = 0; i < MIP_COUNTERS; i++)
		values[i] = Int64GetDatum((int64) pg_atomic_read_u64(&stats->counters[i]));
	values[MIP_COUNTERS] = TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&stats->since));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

Datum
mip_stats_reset(PG_FUNCTION_ARGS)
{
	mip_require_preload();
	if (mip_my_stats || mip_stats_attach())
		reset(mip_my_stats);
	PG_RETURN_VOID();
}
