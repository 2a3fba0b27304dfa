/*-------------------------------------------------------------------------
 *
 * functions.c
 *	  SQL functions: arguments in, rows out. Rules and effects are in
 *	  instance.c, decide.c and expiry.c.
 *
 * Those that requests are carried out, decided and cleaned up with. Others are
 * beside what they are about: waits.c, enable.c, stats.c, xid.c, and for the trigger
 * of mip.mipt, trigger.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "catalog/pg_enum.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "base/mip.h"
#include "base/preload.h"
#include "family/current.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "family/rebuild.h"
#include "family/sites.h"
#include "mipt/books.h"
#include "mipt/durable.h"
#include "mipt/entry.h"
#include "mipt/expiry.h"
#include "mipt/horizon.h"
#include "mipt/mipt.h"
#include "mipt/rows.h"
#include "replication/member.h"
#include "replication/publish.h"
#include "transam/decide.h"
#include "transam/instance.h"
#include "transam/statement.h"

PG_FUNCTION_INFO_V1(mip_begin);
PG_FUNCTION_INFO_V1(mip_begin_beside);
PG_FUNCTION_INFO_V1(mip_start);
PG_FUNCTION_INFO_V1(mip_prepare);
PG_FUNCTION_INFO_V1(mip_prepare_beside);
PG_FUNCTION_INFO_V1(mip_commit_one_phase);
PG_FUNCTION_INFO_V1(mip_commit_one_phase_beside);
PG_FUNCTION_INFO_V1(mip_commit);
PG_FUNCTION_INFO_V1(mip_commit_beside);
PG_FUNCTION_INFO_V1(mip_rollback);
PG_FUNCTION_INFO_V1(mip_refuse);
PG_FUNCTION_INFO_V1(mip_instances);
PG_FUNCTION_INFO_V1(mip_has_expired);
PG_FUNCTION_INFO_V1(mip_forget);
PG_FUNCTION_INFO_V1(mip_acknowledge);
PG_FUNCTION_INFO_V1(mip_expire);
PG_FUNCTION_INFO_V1(mip_finished);
PG_FUNCTION_INFO_V1(mip_prepared_instances);
PG_FUNCTION_INFO_V1(mip_ignore_replicated);

/* Labels of mip.state, in the order of MipState */
static const char *const state_labels[] = {
	"active", "prepared", "committed", "aborted"
};

/* ---- arguments ---- */

/* These have no STRICT semantics: a null key is an error, not a null result. */
static char *
xid_argument(FunctionCallInfo fcinfo)
{
	char	   *xid;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the XID must not be null")));
	xid = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (xid[0] == '\0' || strlen(xid) > MIP_XID_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("an XID must be 1 to %d bytes long, not %zu",
						MIP_XID_MAX, strlen(xid))));
	return xid;
}

static int64
xinst_argument(FunctionCallInfo fcinfo)
{
	int64		xinst;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the XINST must not be null")));
	xinst = PG_GETARG_INT64(1);
	if (xinst < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("an XINST must be positive, not " INT64_FORMAT, xinst)));
	return xinst;
}

static ArrayType *
sites_argument(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the set of sites must not be null"),
				 errhint("Give an empty array if there is no more than this one.")));
	return mip_sites_canonical(PG_GETARG_ARRAYTYPE_P(2));
}

static text *
text_argument(FunctionCallInfo fcinfo, int i, const char *what)
{
	if (PG_ARGISNULL(i))
		return NULL;
	if (toast_raw_datum_size(PG_GETARG_DATUM(i)) - VARHDRSZ > MIP_TEXT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a %s must not be longer than %d bytes", what, MIP_TEXT_MAX)));
	return PG_GETARG_TEXT_PP(i);
}

/* ---- rows ---- */

static Datum
state_datum(Oid type, MipState state)
{
	return DirectFunctionCall2(enum_in, CStringGetDatum(state_labels[state]),
							   ObjectIdGetDatum(type));
}

static Datum
owner_datum(Oid owner)
{
	char	   *name = GetUserNameFromId(owner, true);

	return DirectFunctionCall1(namein, CStringGetDatum(name ? name : "unknown"));
}

static void
put_entry(ReturnSetInfo *rsinfo, const MiptEntry *entry)
{
	TupleDesc	desc = rsinfo->setDesc;
	Datum		values[8];
	bool		nulls[8] = {false};

	values[0] = Int64GetDatum(entry->xinst);
	values[1] = state_datum(TupleDescAttr(desc, 1)->atttypid, entry->state);
	values[2] = PointerGetDatum(entry->request);
	nulls[2] = entry->request == NULL;
	values[3] = PointerGetDatum(entry->result);
	nulls[3] = entry->result == NULL;
	values[4] = PointerGetDatum(entry->sites);
	nulls[4] = entry->sites == NULL;
	values[5] = owner_datum(entry->owner);
	values[6] = TimestampTzGetDatum(entry->since);
	values[7] = BoolGetDatum(entry->acknowledged);
	tuplestore_putvalues(rsinfo->setResult, desc, values, nulls);
}

static Datum
return_entries(FunctionCallInfo fcinfo, List *entries)
{
	ListCell   *lc;

	foreach(lc, entries)
		put_entry((ReturnSetInfo *) fcinfo->resultinfo, lfirst(lc));
	return (Datum) 0;
}

/* An array, or NULL; of a procedure it is its only output, if it has any. */
static Datum
return_array(FunctionCallInfo fcinfo, ArrayType *array)
{
	Datum		value = PointerGetDatum(array);
	bool		isnull = array == NULL;
	TupleDesc	desc;

	if (mip_is_call(fcinfo) &&
		get_call_result_type(fcinfo, NULL, &desc) == TYPEFUNC_COMPOSITE)
		return HeapTupleGetDatum(heap_form_tuple(desc, &value, &isnull));
	fcinfo->isnull = isnull;
	return value;
}

/* The XINSTs of those that are not this one; NULL if there are none. */
static Datum
return_others(FunctionCallInfo fcinfo, List *entries, int64 xinst)
{
	Datum	   *others = palloc(list_length(entries) * sizeof(Datum) + 1);
	int			n = 0;
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->xinst != xinst)
			others[n++] = Int64GetDatum(entry->xinst);
	}
	return return_array(fcinfo, n == 0 ? NULL :
						construct_array(others, n, INT8OID, sizeof(int64),
										FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* ---- functions that belong to a MIP transaction ---- */

static List *
begin(FunctionCallInfo fcinfo)
{
	char	   *xid = xid_argument(fcinfo);
	int64		xinst = xinst_argument(fcinfo);

	return mip_instance_begin(xid, xinst, sites_argument(fcinfo), text_argument(fcinfo, 3, "key"),
							  text_argument(fcinfo, 4, "word"));
}

static List *
begin_in_block(FunctionCallInfo fcinfo, const char *function)
{
	mip_require_preload();
	mip_require_top_level(fcinfo, function);
	if (!IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s needs a transaction block", function),
				 errhint("Send BEGIN first.")));
	return begin(fcinfo);
}

/* Those that are prepared, but for the one that has begun. */
static Datum
return_prepared(FunctionCallInfo fcinfo, List *entries)
{
	List	   *prepared = NIL;
	ListCell   *lc;

	foreach(lc, entries)
	{
		if (((MiptEntry *) lfirst(lc))->state == MIP_PREPARED)
			prepared = lappend(prepared, lfirst(lc));
	}
	return return_others(fcinfo, prepared, PG_GETARG_INT64(1));
}

Datum
mip_begin(PG_FUNCTION_ARGS)
{
	(void) begin_in_block(fcinfo, "mip.begin");
	PG_RETURN_VOID();
}

Datum
mip_begin_beside(PG_FUNCTION_ARGS)
{
	return return_prepared(fcinfo, begin_in_block(fcinfo, "mip.begin_beside"));
}

/*
 * It is what the session runs transactions at: this statement has had its snapshot by
 * now, so it cannot be chosen any more.
 */
static void
require_isolation(FunctionCallInfo fcinfo)
{
	const char *isolation;
	char	   *wanted;

	if (PG_ARGISNULL(5))
		return;
	isolation = GetConfigOption("transaction_isolation", false, false);
	wanted = text_to_cstring(PG_GETARG_TEXT_PP(5));
	if (pg_strcasecmp(wanted, isolation) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INAPPROPRIATE_ISOLATION_LEVEL_FOR_BRANCH_TRANSACTION),
				 errmsg("a transaction of this session runs at \"%s\", not at \"%s\"", isolation, wanted),
				 errhint("Send BEGIN ISOLATION LEVEL and mip.begin, or set default_transaction_isolation before.")));
}

/*
 * Makes the transaction of this statement a block, as BEGIN does. From then on an error
 * leaves a failed one: a client that goes on regardless changes nothing.
 */
static void
begin_block(FunctionCallInfo fcinfo, const char *function)
{
	EndImplicitTransactionBlock();	/* of a message with more statements */
	if (IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", function),
				 errhint("Call mip.begin there.")));
	require_isolation(fcinfo);
	BeginTransactionBlock();
	CommitTransactionCommand(); /* commits nothing: the block has begun */
}

Datum
mip_start(PG_FUNCTION_ARGS)
{
	mip_require_preload();
	mip_require_sole(fcinfo, "mip.start");
	begin_block(fcinfo, "mip.start");
	return return_prepared(fcinfo, begin(fcinfo));
}

static List *
end_instance(FunctionCallInfo fcinfo,
			 List *(*end) (text *request, text *result, const text *key))
{
	return end(text_argument(fcinfo, 0, "request"), text_argument(fcinfo, 1, "result"),
			   text_argument(fcinfo, 2, "key"));
}

static Datum
end_with_rows(FunctionCallInfo fcinfo, const char *function,
			  List *(*end) (text *request, text *result, const text *key))
{
	mip_require_preload();
	mip_require_top_level(fcinfo, function);
	InitMaterializedSRF(fcinfo, 0);
	return return_entries(fcinfo, end_instance(fcinfo, end));
}

static Datum
end_beside(FunctionCallInfo fcinfo, const char *function,
		   List *(*end) (text *request, text *result, const text *key))
{
	List	   *entries;

	mip_require_preload();
	mip_require_sole(fcinfo, function);
	entries = end_instance(fcinfo, end);
	return return_others(fcinfo, entries, mip_mine.xinst);
}

Datum
mip_prepare(PG_FUNCTION_ARGS)
{
	return end_with_rows(fcinfo, "mip.prepare", mip_instance_prepare);
}

Datum
mip_prepare_beside(PG_FUNCTION_ARGS)
{
	return end_beside(fcinfo, "mip.prepare_beside", mip_instance_prepare);
}

Datum
mip_commit_one_phase(PG_FUNCTION_ARGS)
{
	return end_with_rows(fcinfo, "mip.commit_one_phase", mip_instance_commit_one_phase);
}

Datum
mip_commit_one_phase_beside(PG_FUNCTION_ARGS)
{
	return end_beside(fcinfo, "mip.commit_one_phase_beside", mip_instance_commit_one_phase);
}

/* ---- functions that work from any session ---- */

/* Each effect is durable at once, so there must be nothing to roll back. */
static void
require_no_block(FunctionCallInfo fcinfo, const char *function)
{
	mip_registry_ensure(function);
	mip_require_top_level(fcinfo, function);
	PreventInTransactionBlock(true, function);
	mip_begin_books(function);
}

static List *
read_family(const char *xid)
{
	List	   *entries;

	mipt_lock(xid, ShareLock);
	entries = mipt_read(xid);
	mip_family_unlock();
	return entries;
}

/* Is one of them committed, or may it be, here? */
static bool
is_open(List *entries)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		if (((MiptEntry *) lfirst(lc))->state != MIP_ABORTED)
			return true;
	}
	return false;
}

/*
 * All that there is of a family, for who may know of it. What is open here says that
 * something has come of it, or may: else, at a replicated site, the others are asked. What
 * runs here is not ended by being looked at.
 */
static List *
read_everywhere(const char *xid)
{
	List	   *entries = read_family(xid);

	if (is_open(entries) || !mip_needs_fence())
		return entries;
	mip_publish_fence(xid);
	return read_family(xid);
}

/* Whose it is: the caller's, if nobody has it yet. What only runs here does not count elsewhere. */
static Oid
owner_of(const char *xid)
{
	List	   *entries = read_family(xid);
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (ItemPointerIsValid(&entry->tid))
			return entry->owner;
	}
	return entries ? ((MiptEntry *) linitial(entries))->owner : GetUserId();
}

/* Where the family has become another role's before that came, it has been kept out. */
static void
require_refused(const char *xid, int64 xinst)
{
	ListCell   *lc;

	foreach(lc, read_family(xid))
	{
		MiptEntry  *entry = lfirst(lc);

		if (ItemPointerIsValid(&entry->tid) && (entry->xinst == xinst || entry->state == MIP_COMMITTED))
			return;
	}
	mip_refusal_kept_out();
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("instance " INT64_FORMAT " of family \"%s\" has not been refused: the family has become another role's",
					xinst, xid),
			 errhint("Call the function again.")));
}

/* At all replicas, where there are others. */
static void
refuse_everywhere(const char *xid, int64 xinst, ArrayType *sites)
{
	if (!mip_needs_fence())
		return;
	mip_publish_refusal(xid, xinst, owner_of(xid), sites);
	require_refused(xid, xinst);
}

static Datum
decide(FunctionCallInfo fcinfo, const char *function,
	   List *(*decide_for) (const char *xid, int64 xinst))
{
	char	   *xid = xid_argument(fcinfo);
	int64		xinst = xinst_argument(fcinfo);

	require_no_block(fcinfo, function);
	InitMaterializedSRF(fcinfo, 0);
	return return_entries(fcinfo, decide_for(xid, xinst));
}

Datum
mip_commit(PG_FUNCTION_ARGS)
{
	return decide(fcinfo, "mip.commit", mip_family_commit);
}

Datum
mip_commit_beside(PG_FUNCTION_ARGS)
{
	char	   *xid = xid_argument(fcinfo);
	int64		xinst = xinst_argument(fcinfo);

	require_no_block(fcinfo, "mip.commit_beside");
	mip_require_sole(fcinfo, "mip.commit_beside");
	return return_others(fcinfo, mip_family_commit_beside(xid, xinst), xinst);
}

static List *
roll_back(const char *xid, int64 xinst)
{
	refuse_everywhere(xid, xinst, NULL);
	return mip_family_rollback(xid, xinst);
}

Datum
mip_rollback(PG_FUNCTION_ARGS)
{
	return decide(fcinfo, "mip.rollback", roll_back);
}

Datum
mip_refuse(PG_FUNCTION_ARGS)
{
	char	   *xid = xid_argument(fcinfo);
	int64		xinst = xinst_argument(fcinfo);
	ArrayType  *sites = sites_argument(fcinfo);

	require_no_block(fcinfo, "mip.refuse");
	mip_require_whole("mip.refuse");
	refuse_everywhere(xid, xinst, sites);
	PG_RETURN_BOOL(mip_family_refuse(xid, xinst, sites));
}

Datum
mip_instances(PG_FUNCTION_ARGS)
{
	char	   *xid = xid_argument(fcinfo);
	List	   *entries;

	mip_registry_ensure("mip.instances");
	InitMaterializedSRF(fcinfo, 0);
	entries = read_everywhere(xid);
	mip_wait_until_durable();
	return return_entries(fcinfo, entries);
}

Datum
mip_has_expired(PG_FUNCTION_ARGS)
{
	char	   *xid = xid_argument(fcinfo);
	bool		expired;

	mip_registry_ensure("mip.has_expired");
	expired = mip_xid_age(xid) == MIP_BEHIND_HORIZON;
	if (expired)
		mip_wait_until_durable();	/* [told-is-durable] */
	PG_RETURN_BOOL(expired);
}

Datum
mip_forget(PG_FUNCTION_ARGS)
{
	char	   *xid = xid_argument(fcinfo);

	PreventCommandIfReadOnly("mip.forget");
	if (mip_publishes())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("requests of a replicated database cannot be forgotten"),
				 errdetail("The other replicas would still know of it, and this one would let it run again."),
				 errhint("They expire: see mip.retention.")));
	require_no_block(fcinfo, "mip.forget");
	mip_require_whole("mip.forget");
	PG_RETURN_INT32(mip_family_forget(xid));
}

Datum
mip_acknowledge(PG_FUNCTION_ARGS)
{
	char	   *xid = xid_argument(fcinfo);

	require_no_block(fcinfo, "mip.acknowledge");
	mip_family_acknowledge(xid);
	PG_RETURN_VOID();
}

Datum
mip_expire(PG_FUNCTION_ARGS)
{
	int64		expired;

	PreventCommandIfReadOnly("mip.expire");
	require_no_block(fcinfo, "mip.expire");
	expired = mip_expire_families();
	(void) mip_empty_kept_links();
	PG_RETURN_INT64(expired);
}

/* Nothing is older, and times are still times: 3,000 years. */
#define AGE_MAX		(INT64CONST(3000) * 366 * SECS_PER_DAY)

/* In seconds; of the retention if not given. */
static int64
age_argument(FunctionCallInfo fcinfo)
{
	Interval   *age;
	int64		seconds;

	if (PG_ARGISNULL(0))
		return mip_retention;
	age = PG_GETARG_INTERVAL_P(0);
	seconds = age->time / USECS_PER_SEC +
		(age->day + (int64) age->month * DAYS_PER_MONTH) * SECS_PER_DAY;
	return Max(Min(seconds, AGE_MAX), -AGE_MAX);
}

static void
put_finished(ReturnSetInfo *rsinfo, const MipFinished *found)
{
	Datum		values[5];
	bool		nulls[5] = {false};

	values[0] = CStringGetTextDatum(found->xid);
	values[1] = Int64GetDatum(found->xinst);
	values[2] = PointerGetDatum(found->sites);
	values[3] = owner_datum(found->owner);
	values[4] = TimestampTzGetDatum(found->since);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
mip_finished(PG_FUNCTION_ARGS)
{
	List	   *finished;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	if (PG_ARGISNULL(1) || PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the number of requests must be positive")));
	/* without a retention nothing is ever old */
	if (PG_ARGISNULL(0) && mip_retention == 0)
		return (Datum) 0;
	finished = mip_finished_families(age_argument(fcinfo), PG_GETARG_INT32(1));
	mip_wait_until_durable();
	foreach(lc, finished)
		put_finished((ReturnSetInfo *) fcinfo->resultinfo, lfirst(lc));
	return (Datum) 0;
}

static void
put_in_doubt(ReturnSetInfo *rsinfo, const MipLiving *found)
{
	MiptEntry  *entry = mipt_read_in_doubt(found->xid, found->xinst, mipt_load);
	Datum		values[6];
	bool		nulls[6] = {false};

	if (entry == NULL)
		return;
	values[0] = CStringGetTextDatum(found->xid);
	values[1] = Int64GetDatum(entry->xinst);
	values[2] = owner_datum(entry->owner);
	values[3] = TimestampTzGetDatum(entry->since);
	values[4] = PointerGetDatum(entry->request);
	nulls[4] = entry->request == NULL;
	values[5] = PointerGetDatum(entry->sites);
	nulls[5] = entry->sites == NULL;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Rows of mip.in_doubt: (xid, xinst, owner, since, request, sites). Families
 * of roles that the caller is not a member of are left out.
 */
Datum
mip_prepared_instances(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext family;
	ListCell   *lc;

	mip_registry_ensure("mip.in_doubt");
	InitMaterializedSRF(fcinfo, 0);
	/* not the texts of all families at a time */
	family = AllocSetContextCreate(caller, "pg_mip family", ALLOCSET_DEFAULT_SIZES);
	foreach(lc, mip_living_instances())
	{
		if (((MipLiving *) lfirst(lc))->pid != 0)
			continue;
		MemoryContextReset(family);
		MemoryContextSwitchTo(family);
		put_in_doubt((ReturnSetInfo *) fcinfo->resultinfo, lfirst(lc));
		MemoryContextSwitchTo(caller);
	}
	MemoryContextDelete(family);
	return (Datum) 0;
}

/* A trigger: what subscriptions would write is left out. */
Datum
mip_ignore_replicated(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		elog(ERROR, "mip.ignore_replicated is a trigger");
	if (IsLogicalWorker())
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
						   trigger->tg_newtuple : trigger->tg_trigtuple);
}
