/*-------------------------------------------------------------------------
 *
 * replication_functions.c
 *	  SQL functions of a replicated site.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

#include "base/locks.h"
#include "base/preload.h"
#include "replication/member.h"
#include "replication/message.h"
#include "replication/peers.h"
#include "replication/positions.h"
#include "replication/publish.h"
#include "replication/receive.h"
#include "replication/skip.h"
#include "replication/take.h"
#include "replication/verdicts.h"
#include "transam/statement.h"

/*
 * Keys that are remembered at most: about 40 bytes each. One transaction may have no more
 * than there is room for in a message.
 */
#define KEYS_REMEMBERED		(16 * 1024 * 1024)

PG_FUNCTION_INFO_V1(mip_replica_settings);
PG_FUNCTION_INFO_V1(mip_replica_start);
PG_FUNCTION_INFO_V1(mip_replica_receive);
PG_FUNCTION_INFO_V1(mip_replica_load);
PG_FUNCTION_INFO_V1(mip_replica_take);
PG_FUNCTION_INFO_V1(mip_replica_trim);
PG_FUNCTION_INFO_V1(mip_replica_leave);
PG_FUNCTION_INFO_V1(mip_replica_skip);
PG_FUNCTION_INFO_V1(mip_replication_members);
PG_FUNCTION_INFO_V1(mip_replication_refusals);
PG_FUNCTION_INFO_V1(mip_replicate_ddl);
PG_FUNCTION_INFO_V1(mip_wait_for);
PG_FUNCTION_INFO_V1(mip_last_position_sql);
PG_FUNCTION_INFO_V1(mip_replication_state);

static void
require_replicated(void)
{
	mip_require_preload();
	if (!mip_is_replicated())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not replicated"),
				 errhint("Set mip.replicated_database, and mip.member, and restart the server.")));
}

static Datum
row_of(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/* ---- the agent's ---- */

Datum
mip_replica_settings(PG_FUNCTION_ARGS)
{
	MipLogSettings settings = {PG_GETARG_INT32(0), KEYS_REMEMBERED, GetSystemIdentifier()};

	require_replicated();
	if (PG_GETARG_INT32(0) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("window must be positive, not %d", PG_GETARG_INT32(0))));
	mip_receive_check_prepared();
	PG_RETURN_BYTEA_P(mip_settings_message(&settings, mip_draw_id(), pstrdup(mip_member_name())));
}

Datum
mip_replica_start(PG_FUNCTION_ARGS)
{
	MipStart	start;
	bool		nulls[3] = {false};
	Datum		values[3];

	require_replicated();
	start = mip_receive_start();
	values[0] = CStringGetTextDatum(mip_member_name());
	values[1] = Int64GetDatum(start.applied);
	values[2] = Int64GetDatum(start.read_after);
	PG_RETURN_DATUM(row_of(fcinfo, values, nulls));
}

Datum
mip_replica_receive(PG_FUNCTION_ARGS)
{
	require_replicated();
	PG_RETURN_TEXT_P(cstring_to_text(mip_receive(PG_GETARG_INT64(0), PG_GETARG_BYTEA_PP(1))));
}

Datum
mip_replica_load(PG_FUNCTION_ARGS)
{
	Datum	   *messages;
	int			n;

	require_replicated();
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), BYTEAOID, -1, false, TYPALIGN_INT, &messages, NULL, &n);
	PG_RETURN_INT32(mip_receive_known(PG_GETARG_INT64(0), messages, n));
}

static void
put_message(const MipMessageId *id, bytea *message, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	pg_uuid_t	uuid;
	Datum		values[2] = {UUIDPGetDatum(&uuid), PointerGetDatum(message)};
	bool		nulls[2] = {false};

	memcpy(uuid.data, id, sizeof(uuid.data));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
mip_replica_take(PG_FUNCTION_ARGS)
{
	require_replicated();
	InitMaterializedSRF(fcinfo, 0);
	mip_take(PG_GETARG_INT64(0), PG_GETARG_INT32(1), PG_GETARG_INT64(2), put_message, fcinfo->resultinfo);
	return (Datum) 0;
}

Datum
mip_replica_trim(PG_FUNCTION_ARGS)
{
	require_replicated();
	PG_RETURN_INT64(mip_peers_trim());
}

Datum
mip_replica_leave(PG_FUNCTION_ARGS)
{
	char	   *member = text_to_cstring(PG_GETARG_TEXT_PP(0));

	require_replicated();
	if (strlen(member) >= NAMEDATALEN || member[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is no member's name", member)));
	mip_peers_leave(member);
	PG_RETURN_VOID();
}

Datum
mip_replica_skip(PG_FUNCTION_ARGS)
{
	require_replicated();
	mip_definition_skip(PG_GETARG_INT64(0));
	PG_RETURN_VOID();
}

/* ---- everybody's ---- */

Datum
mip_wait_for(PG_FUNCTION_ARGS)
{
	int64		position = PG_GETARG_INT64(0);

	require_replicated();
	if (position < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no position of a log is negative")));
	mip_wait_for_position(position);
	PG_RETURN_VOID();
}

Datum
mip_last_position_sql(PG_FUNCTION_ARGS)
{
	mip_require_preload();
	if (mip_last_position() == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(mip_last_position());
}

static void
require_own_transaction(FunctionCallInfo fcinfo)
{
	mip_require_sole(fcinfo, "mip.replicate_ddl");
	if (IsTransactionBlock() || TransactionIdIsValid(GetTopTransactionIdIfAny()) || mip_own_table_lock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", "mip.replicate_ddl"),
				 errdetail("Nor behind anything else in a pipeline, or by its arguments, that has a table locked."),
				 errhint("Give it all statements that belong together.")));
}

Datum
mip_replicate_ddl(PG_FUNCTION_ARGS)
{
	require_replicated();
	require_own_transaction(fcinfo);
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to change definitions of a replicated site")));
	PG_RETURN_INT64(mip_publish_definition(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

static int
count_waiting(void)
{
	int			n = 0;

	for (int i = 0; i < mip_member->ncommits; i++)
		n += mip_member->commits[i].state != MIP_COMMIT_NONE;
	return n;
}

Datum
mip_replication_state(PG_FUNCTION_ARGS)
{
	Datum		values[5 + MIP_REPLICATION_TOLD];
	bool		nulls[lengthof(values)] = {false};

	mip_require_preload();
	if (!mip_is_replicated())
	{
		memset(nulls, true, sizeof(nulls));
		PG_RETURN_DATUM(row_of(fcinfo, values, nulls));
	}
	mip_positions_load();
	LWLockAcquire(mip_member->lock, LW_SHARED);
	values[1] = Int64GetDatum(mip_member->applied);
	values[2] = Int64GetDatum(mip_member->history);
	values[3] = Int32GetDatum(mip_member->applier);
	nulls[3] = mip_member->applier == 0;
	values[4] = Int32GetDatum(count_waiting());
	for (int i = 0; i < MIP_REPLICATION_TOLD; i++)
		values[5 + i] = Int64GetDatum(mip_member->counters[i]);
	LWLockRelease(mip_member->lock);
	values[0] = CStringGetTextDatum(mip_member_name());
	PG_RETURN_DATUM(row_of(fcinfo, values, nulls));
}

static void
put_member(ReturnSetInfo *rsinfo, const MipPeer *peer, uint64 applied)
{
	Datum		values[4] = {
		CStringGetTextDatum(peer->name),
		Int64GetDatum(peer->applied),
		Int64GetDatum(applied > peer->applied ? applied - peer->applied : 0),
		TimestampTzGetDatum(peer->heard),
	};
	bool		nulls[4] = {false, false, false, peer->heard == 0};

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
mip_replication_members(PG_FUNCTION_ARGS)
{
	MipPeer		peers[MIP_PEERS_MAX];
	uint64		applied;

	mip_require_preload();
	InitMaterializedSRF(fcinfo, 0);
	if (!mip_is_replicated())
		return (Datum) 0;
	mip_positions_load();
	LWLockAcquire(mip_member->lock, LW_SHARED);
	memcpy(peers, mip_member->peers, sizeof(peers));
	applied = mip_member->applied;
	LWLockRelease(mip_member->lock);
	for (int i = 0; i < MIP_PEERS_MAX; i++)
	{
		if (peers[i].name[0] != '\0')
			put_member((ReturnSetInfo *) fcinfo->resultinfo, &peers[i], applied);
	}
	return (Datum) 0;
}

static void
put_refused(ReturnSetInfo *rsinfo, const MipRefused *refused)
{
	Datum		values[3] = {
		ObjectIdGetDatum(refused->table),
		CStringGetTextDatum(mip_refusal_name(refused->refusal)),
		Int64GetDatum(refused->count),
	};
	bool		nulls[3] = {!OidIsValid(refused->table)};

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
mip_replication_refusals(PG_FUNCTION_ARGS)
{
	MipRefused	refused[MIP_REFUSED_ENTRIES];

	mip_require_preload();
	InitMaterializedSRF(fcinfo, 0);
	if (!mip_is_replicated())
		return (Datum) 0;
	LWLockAcquire(mip_member->lock, LW_SHARED);
	memcpy(refused, mip_member->refused, sizeof(refused));
	LWLockRelease(mip_member->lock);
	for (int i = 0; i < MIP_REFUSED_ENTRIES; i++)
	{
		if (refused[i].count > 0)
			put_refused((ReturnSetInfo *) fcinfo->resultinfo, &refused[i]);
	}
	return (Datum) 0;
}
