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
#include "durable.h"
#include "fmgr.h"
#include "horizon.h"
#include "mipt.h"
#include "miscadmin.h"
#include "stats.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

int			mip_retention;

static int	clock_offset;		/* for tests: how far the clock is wrong */

PG_FUNCTION_INFO_V1(mip_xid_time_sql);

/* ---- times ---- */

#define UNIX_EPOCH_MS \
	((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY * 1000)

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

/*
 * tttttttt-tttt-7xxx-Vxxx-xxxxxxxxxxxx, V one of 8, 9, a and b, in lower case:
 * so that XIDs with a time sort by it.
 */
bool
mip_xid_time(const char *xid, int64 *time)
{
	static const char form[] = "tttttttt-tttt-7xxx-Vxxx-xxxxxxxxxxxx";
	int64		result = 0;

	if (strlen(xid) != strlen(form))
		return false;
	for (int i = 0; form[i] != '\0'; i++)
	{
		int			digit = hex_digit(xid[i]);

		switch (form[i])
		{
			case '-':
			case '7':
				if (xid[i] != form[i])
					return false;
				break;
			case 't':
				result = result * 16 + digit;
				/* FALLTHROUGH */
			default:
				if (digit < 0 || (form[i] == 'V' && (digit & 0xC) != 0x8))
					return false;
		}
	}
	*time = result;
	return true;
}

int64
mip_time_ago(int64 seconds)
{
	return GetCurrentTimestamp() / 1000 + UNIX_EPOCH_MS +
		((int64) clock_offset - seconds) * 1000;
}

TimestampTz
mip_time_to_timestamp(int64 time)
{
	return (time - UNIX_EPOCH_MS) * 1000;
}

Datum
mip_xid_time_sql(PG_FUNCTION_ARGS)
{
	int64		time;

	if (!mip_xid_time(text_to_cstring(PG_GETARG_TEXT_PP(0)), &time))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(mip_time_to_timestamp(time));
}

/* ---- the horizon ---- */

static Oid
horizon_relid(void)
{
	return mipt_relid(MIPT_HORIZON);
}

/* Smaller than any time if there is none yet. Also when it was moved last. */
static int64
horizon(XLogRecPtr *moved)
{
	Relation	rel = relation_open(horizon_relid(), AccessShareLock);
	Buffer		buffer = ReadBuffer(rel, 0);
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
	DefineCustomIntVariable("mip.debug_clock_offset",
							"By how much the clock that requests expire by is wrong (tests).",
							NULL,
							&clock_offset, 0, -INT_MAX, INT_MAX,
							PGC_SUSET, GUC_UNIT_S | GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL,
							NULL, NULL, NULL);
}
