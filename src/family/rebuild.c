/*-------------------------------------------------------------------------
 *
 * rebuild.c
 *	  The registry after the server's start: who was prepared before.
 *
 * Who first needs the registry reads it from pg_prepared_xact().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
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

/* A column of a row of pg_prepared_xact(); none of these is ever null. */
static Datum
column(HeapTupleHeader row, AttrNumber number)
{
	bool		isnull;
	Datum		value = GetAttributeByNum(row, number, &isnull);

	Assert(!isnull);
	return value;
}

/*
 * Reads the prepared instances of all databases. Without a statement: that would have
 * the rights of whoever comes first, and call the hooks that call this.
 */
static List *
find_prepared(void)
{
	List	   *found = NIL;
	FmgrInfo	function;
	ReturnSetInfo set = {0};

	LOCAL_FCINFO(call, 0);

	set.type = T_ReturnSetInfo;
	set.allowedModes = SFRM_ValuePerCall;
	set.econtext = CreateStandaloneExprContext();
	fmgr_info(F_PG_PREPARED_XACT, &function);
	InitFunctionCallInfoData(*call, &function, 0, InvalidOid, NULL, (fmNodePtr) &set);
	for (;;)
	{
		Datum		next = FunctionCallInvoke(call);
		HeapTupleHeader row;
		FoundPrepared p;

		if (set.isDone != ExprMultipleResult)
			break;
		row = DatumGetHeapTupleHeader(next);
		/* without the library anybody may have used a name like ours */
		if (!mip_gid_parse(TextDatumGetCString(column(row, 2)), &p.dbid, p.xid, &p.xinst) ||
			p.dbid != DatumGetObjectId(column(row, 5)))
			continue;
		p.tid = DatumGetTransactionId(column(row, 1));
		p.since = DatumGetTimestampTz(column(row, 3));
		p.owner = DatumGetObjectId(column(row, 4));
		found = lappend(found, memcpy(palloc(sizeof(p)), &p, sizeof(p)));
	}
	FreeExprContext(set.econtext, true);
	return found;
}

/*
 * No instance can begin or be finished without this [rebuilt-first], so the list
 * cannot change between reading it and storing it.
 */
void
mip_registry_rebuild(void)
{
	List	   *found;
	ListCell   *lc;

	Assert(IsTransactionState());
	if (mip_registry == NULL || mip_registry->rebuilt)
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

void
mip_registry_ensure(const char *function)
{
	mip_require_preload();
	/* a standby has no prepared transactions, only records of them */
	PreventCommandDuringRecovery(function);
	mip_registry_rebuild();
}
