/*-------------------------------------------------------------------------
 *
 * waits.c
 *	  Who waits for whom: mip.waits.
 *
 * As pg_locks and pg_blocking_pids, but with the instances' names, also of
 * prepared ones, which have no process.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid_d.h"
#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/locks.h"
#include "family/family.h"
#include "family/rebuild.h"

PG_FUNCTION_INFO_V1(mip_waits);

/* The instance that has this entry of the lock table, if the caller may know. */
static const MipLiving *
instance_of(const LockData *locks, const LockInstanceData *entry, List *living)
{
	TransactionId prepared = mip_lock_prepared(locks, entry);
	ListCell   *lc;

	foreach(lc, living)
	{
		const MipLiving *inst = lfirst(lc);

		if (entry->pid != 0 ? inst->pid == entry->pid :
			(inst->pid == 0 && TransactionIdEquals(inst->tid, prepared)))
			return has_privs_of_role(GetUserId(), inst->owner) ||
				has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ? inst : NULL;
	}
	return NULL;
}

static bool
is_in_this_database(const LockInstanceData *wait)
{
	PGPROC	   *proc = BackendPidGetProc(wait->pid);

	return proc != NULL && proc->databaseId == MyDatabaseId;
}

/* Heap locks the tuple before it waits for who has changed it. */
static Oid
relation_of(const LockData *locks, const LockInstanceData *wait)
{
	const LOCKTAG *tag = &wait->locktag;

	if (tag->locktag_type == LOCKTAG_RELATION || tag->locktag_type == LOCKTAG_RELATION_EXTEND ||
		tag->locktag_type == LOCKTAG_PAGE || tag->locktag_type == LOCKTAG_TUPLE)
		return tag->locktag_field1 == MyDatabaseId ? tag->locktag_field2 : InvalidOid;
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *other = &locks->locks[i];

		if (other->pid == wait->pid && other->holdMask != 0 &&
			other->locktag.locktag_type == LOCKTAG_TUPLE &&
			tag->locktag_type == LOCKTAG_TRANSACTION)
			return other->locktag.locktag_field2;
	}
	return InvalidOid;
}

static Datum
array_of(Datum *elems, int n, Oid type)
{
	if (type == TEXTOID)
		return PointerGetDatum(mip_construct_text_array(elems, n));
	return PointerGetDatum(construct_array(elems, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

static void
put_wait(ReturnSetInfo *rsinfo, const LockData *locks, const LockInstanceData *wait,
		 List *living)
{
	const MipLiving *self = instance_of(locks, wait, living);
	Datum	   *pids = palloc(sizeof(Datum) * locks->nelements);
	Datum	   *names = palloc(sizeof(Datum) * locks->nelements);
	int			npids = 0;
	int			nnames = 0;
	Oid			relation = relation_of(locks, wait);
	Datum		values[7];
	bool		nulls[7] = {false};

	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *entry = &locks->locks[i];
		const MipLiving *inst;

		if (entry == wait || !mip_same_lock(entry, wait) ||
			!mip_lock_blocks(locks, entry, wait))
			continue;
		inst = instance_of(locks, entry, living);
		if (entry->pid != 0)
			pids[npids++] = Int32GetDatum(entry->pid);
		if (inst)
			names[nnames++] = CStringGetTextDatum(psprintf("%s/" INT64_FORMAT,
														   inst->xid, inst->xinst));
	}
	values[0] = Int32GetDatum(wait->pid);
	nulls[1] = nulls[2] = self == NULL;
	if (self)
	{
		values[1] = CStringGetTextDatum(self->xid);
		values[2] = Int64GetDatum(self->xinst);
	}
	values[3] = array_of(pids, npids, INT4OID);
	values[4] = array_of(names, nnames, TEXTOID);
	values[5] = ObjectIdGetDatum(relation);
	nulls[5] = !OidIsValid(relation);
	values[6] = TimestampTzGetDatum(wait->waitStart);
	nulls[6] = wait->waitStart == 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
mip_waits(PG_FUNCTION_ARGS)
{
	LockData   *locks;
	List	   *living;

	mip_registry_ensure("mip.waits");
	InitMaterializedSRF(fcinfo, 0);
	locks = GetLockStatusData();
	living = mip_living_instances();
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *wait = &locks->locks[i];

		if (wait->waitLockMode != NoLock && is_in_this_database(wait))
			put_wait((ReturnSetInfo *) fcinfo->resultinfo, locks, wait, living);
	}
	return (Datum) 0;
}
