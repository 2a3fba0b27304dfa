/*-------------------------------------------------------------------------
 *
 * horizon.c
 *	  Which requests are too old to run.
 *
 * A request runs at most once because its MIPT entry stays. To be able to
 * remove entries nevertheless, requests may carry their time in the XID, and
 * are refused (MP007) once they are older than mip.retention.
 *
 * The clock alone cannot be relied upon: after it has gone back, a request
 * whose entry is gone would run again. So there is a horizon: before an entry
 * is removed, the horizon is moved to its time, and whatever is not newer is
 * refused, whatever the clock says. Nor does it go by the clock alone where it
 * is moved: it is never newer than a request that was there. Thus a clock that
 * has jumped ahead, and is put right again, refuses no new ones. For the same
 * reason a refusal by the clock moves the horizon: who was told that a request
 * will never run again must be able to rely on it.
 *
 * The horizon is a sequence, since these are what is needed: not transactional
 * (a refusal is an error), logged, part of dumps, and not of publications.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid_d.h"
#include "commands/sequence.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/mip.h"
#include "base/stats.h"
#include "base/xid.h"
#include "family/family_lock.h"
#include "mipt/catalog.h"
#include "mipt/durable.h"
#include "mipt/horizon.h"

int			mip_retention;
int			mip_retention_timeless;

/* ---- the horizon ---- */

static Oid
horizon_relid(void)
{
	return mipt_relid(MIPT_HORIZON);
}

/* Of its page, which is released */
static int64
read_horizon(Buffer buffer, XLogRecPtr *moved)
{
	HeapTupleData tup;
	Form_pg_sequence_data data;
	ItemId		item;
	int64		result;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	item = PageGetItemId(BufferGetPage(buffer), FirstOffsetNumber);
	tup.t_data = (HeapTupleHeader) PageGetItem(BufferGetPage(buffer), item);
	data = (Form_pg_sequence_data) GETSTRUCT(&tup);
	result = data->is_called ? data->last_value : -1;
	*moved = PageGetLSN(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	return result;
}

/* Smaller than any time if there is none yet. Also when it was moved last. */
static int64
horizon(XLogRecPtr *moved)
{
	Buffer		buffer = mipt_noted_page(MIPT_HORIZON);
	Relation	rel;
	int64		result;

	if (BufferIsValid(buffer))
		return read_horizon(buffer, moved);
	rel = relation_open(horizon_relid(), AccessShareLock);
	buffer = ReadBuffer(rel, 0);
	mipt_note_page(MIPT_HORIZON, rel, buffer);
	result = read_horizon(buffer, moved);
	relation_close(rel, AccessShareLock);
	return result;
}

/* Nobody else may call setval for it, nor anybody in a read-only transaction. */
static void
set_horizon(int64 time)
{
	Oid			user;
	int			context;
	bool		read_only = XactReadOnly;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, context | SECURITY_LOCAL_USERID_CHANGE);
	XactReadOnly = false;
	DirectFunctionCall2(setval_oid, ObjectIdGetDatum(horizon_relid()), Int64GetDatum(time));
	XactReadOnly = read_only;
	SetUserIdAndSecContext(user, context);
}

void
mip_advance_horizon(int64 time)
{
	Oid			relid = horizon_relid();
	XLogRecPtr	moved;

	Assert(IsTransactionState());
	LockRelationOid(relid, ShareUpdateExclusiveLock);
	if (time > horizon(&moved))
	{
		set_horizon(time);
		moved = XactLastRecEnd;
	}
	UnlockRelationOid(relid, ShareUpdateExclusiveLock);
	XLogFlush(moved);
}

/* ---- the rule ---- */

static bool
is_too_old(int64 time)
{
	return mip_retention > 0 && time < mip_time_ago(mip_retention);
}

MipAge
mip_xid_age(const char *xid)
{
	int64		time;
	XLogRecPtr	moved;

	if (!mip_xid_time(xid, &time))
		return MIP_CURRENT;
	if (time <= horizon(&moved))
		return MIP_BEHIND_HORIZON;
	return is_too_old(time) ? MIP_TOO_OLD : MIP_CURRENT;
}

void
mip_raise_expired(const char *xid)
{
	int64		time = 0;

	if (mip_xid_time(xid, &time))
		mip_advance_horizon(time);
	mip_family_unlock_all();
	mip_wait_until_durable();
	mip_count(MIP_COUNT_REFUSED_EXPIRED);
	ereport(ERROR,
			(errcode(ERRCODE_MIP_EXPIRED),
			 errmsg("request \"%s\" has expired", xid),
			 errdetail_internal("{\"reason\": \"expired\"}"),
			 errhint("Whether it has been carried out before is not known here any more. It will not be from now on.")));
}

void
mip_horizon_init(void)
{
	DefineCustomIntVariable("mip.retention",
							"How long requests whose XID carries its time can be sent again.",
							"Older ones are refused, and their entries removed. 0: for ever.",
							&mip_retention, 30 * SECS_PER_DAY, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("mip.retention_timeless",
							"How long requests whose XID does not carry its time are known.",
							"Sent again after that they run again. 0: for ever.",
							&mip_retention_timeless, 0, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
}
