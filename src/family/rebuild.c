/*-------------------------------------------------------------------------
 *
 * rebuild.c
 *	  The registry after the server's start: who was prepared before.
 *
 * The first function that needs the registry reads it from pg_prepared_xacts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/gid.h"
#include "base/mip.h"
#include "base/preload.h"
#include "family/family.h"
#include "family/family_internal.h"
#include "family/rebuild.h"

typedef struct FoundPrepared
{
	Oid			dbid;
	char		xid[MIP_XID_MAX + 4];
	int64		xinst;
	TransactionId tid;
	Oid			owner;
	TimestampTz since;
} FoundPrepared;

/* Reads the prepared instances of all databases from pg_prepared_xacts. */
static List *
find_prepared(void)
{
	List	   *found = NIL;
	MemoryContext caller = CurrentMemoryContext;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute("SELECT p.gid, p.transaction, r.oid, p.prepared, d.oid"
					" FROM pg_catalog.pg_prepared_xacts p"
					" JOIN pg_catalog.pg_database d ON d.datname OPERATOR(pg_catalog.=) p.database"
					" LEFT JOIN pg_catalog.pg_roles r ON r.rolname OPERATOR(pg_catalog.=) p.owner"
					" WHERE pg_catalog.starts_with(p.gid, 'mip:')",
					true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_prepared_xacts");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	tup = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		FoundPrepared *p = MemoryContextAlloc(caller, sizeof(FoundPrepared));
		bool		isnull;
		MemoryContext old;

		/* without the library anybody may have used a name like ours */
		if (!mip_gid_parse(SPI_getvalue(tup, desc, 1), &p->dbid, p->xid, &p->xinst) ||
			p->dbid != DatumGetObjectId(SPI_getbinval(tup, desc, 5, &isnull)))
			continue;
		p->tid = DatumGetTransactionId(SPI_getbinval(tup, desc, 2, &isnull));
		p->owner = DatumGetObjectId(SPI_getbinval(tup, desc, 3, &isnull));
		p->since = DatumGetTimestampTz(SPI_getbinval(tup, desc, 4, &isnull));
		old = MemoryContextSwitchTo(caller);
		found = lappend(found, p);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return found;
}

/*
 * No instance can begin or be finished without this [rebuilt-first], so the list
 * cannot change between reading it and storing it.
 */
void
mip_registry_ensure(const char *function)
{
	List	   *found;
	ListCell   *lc;

	Assert(IsTransactionState());
	mip_require_preload();
	/* a standby has no prepared transactions, only records of them */
	PreventCommandDuringRecovery(function);
	if (mip_registry->rebuilt)
		return;
	found = find_prepared();
	LWLockAcquire(mip_registry->lock, LW_EXCLUSIVE);
	if (!mip_registry->rebuilt)
	{
		foreach(lc, found)
		{
			FoundPrepared *p = lfirst(lc);
			MipInstance *inst = mip_take_slot(mip_find_family(p->dbid, p->xid, HASH_ENTER),
											  p->xinst);

			inst->xid = p->tid;
			inst->owner = p->owner;
			inst->since = inst->prepared = p->since;
			inst->overlay = true;	/* not known */
		}
		mip_registry->rebuilt = true;
	}
	LWLockRelease(mip_registry->lock);
}
