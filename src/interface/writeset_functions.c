/*-------------------------------------------------------------------------
 *
 * writeset_functions.c
 *	  SQL functions of writesets: what is in them, comparing and compacting them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "writeset/compact.h"
#include "writeset/format.h"
#include "writeset/input.h"
#include "writeset/values.h"

PG_FUNCTION_INFO_V1(mip_writeset_info);
PG_FUNCTION_INFO_V1(mip_writeset_changes);
PG_FUNCTION_INFO_V1(mip_writeset_conflicts);
PG_FUNCTION_INFO_V1(mip_writeset_compact_sql);

/* ---- what is in them ---- */

Datum
mip_writeset_info(PG_FUNCTION_ARGS)
{
	const MipwSet *set = mip_writeset_open(PG_GETARG_BYTEA_PP(0));
	int64		changes = (int64) set->inserted + set->updated + set->deleted + set->truncated;
	bool		nulls[10] = {false};
	Datum		values[10] = {
		Int32GetDatum(MIPW_VERSION),
		Int64GetDatum(set->first),
		Int64GetDatum(set->last),
		Int64GetDatum(changes),
		Int64GetDatum(set->inserted),
		Int64GetDatum(set->updated),
		Int64GetDatum(set->deleted),
		Int64GetDatum(set->truncated),
		Int64GetDatum(set->nkeys),
		Int64GetDatum(set->nrelations),
	};
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

static void
push_string(JsonbParseState **state, JsonbIteratorToken token, char *string)
{
	JsonbValue	value = {.type = jbvString};

	value.val.string.val = string;
	value.val.string.len = strlen(string);
	(void) pushJsonbValue(state, token, &value);
}

/* Values of some columns, by name: the i-th value is of column columns[i], or of i. */
static Datum
values_jsonb(const MipwSet *set, const MipwRelation *relation, const int *columns, int n,
			 const MipwValue *values)
{
	JsonbParseState *state = NULL;
	JsonbValue	null = {.type = jbvNull};

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < n; i++)
	{
		const MipwColumn *column = &relation->columns[columns ? columns[i] : i];

		if (!values[i].there)
			continue;
		push_string(&state, WJB_KEY, column->name);
		if (values[i].null)
			(void) pushJsonbValue(&state, WJB_VALUE, &null);
		else
			push_string(&state, WJB_VALUE, mip_value_text(set, column, &values[i]));
	}
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
}

static Datum
identity_jsonb(const MipwSet *set, const MipwChange *change)
{
	const MipwRelation *relation = change->relation;
	MipwValue  *values = palloc(relation->nidentity * sizeof(MipwValue) + 1);

	mipw_identity(change, values);
	return values_jsonb(set, relation, relation->identity, relation->nidentity, values);
}

static Datum
row_jsonb(const MipwSet *set, const MipwChange *change)
{
	const MipwRelation *relation = change->relation;
	MipwValue  *values = palloc(relation->ncolumns * sizeof(MipwValue) + 1);

	mipw_row(change, values);
	return values_jsonb(set, relation, NULL, relation->ncolumns, values);
}

static void
put_change(ReturnSetInfo *rsinfo, const MipwSet *set, const MipwChange *change)
{
	const MipwRelation *relation = change->relation;
	bool		has_identity = change->op == 'U' || change->op == 'D';
	bool		has_row = change->op == 'I' || change->op == 'U';
	Datum		values[5] = {0};
	bool		nulls[5] = {false, false, false, !has_identity, !has_row};

	values[0] = Int64GetDatum(change->number);
	values[1] = CharGetDatum(change->op);
	values[2] = CStringGetTextDatum(quote_qualified_identifier(relation->schema, relation->name));
	if (has_identity)
		values[3] = identity_jsonb(set, change);
	if (has_row)
		values[4] = row_jsonb(set, change);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
mip_writeset_changes(PG_FUNCTION_ARGS)
{
	const MipwSet *set = mip_writeset_open(PG_GETARG_BYTEA_PP(0));
	MipwCursor	cursor = mipw_changes(set);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pg_mip change",
												  ALLOCSET_DEFAULT_SIZES);
	int			level;
	MipwChange	change;

	InitMaterializedSRF(fcinfo, 0);
	level = mip_values_begin();
	while (mipw_next(&cursor, &change))
	{
		MemoryContext caller = MemoryContextSwitchTo(context);

		CHECK_FOR_INTERRUPTS();
		put_change((ReturnSetInfo *) fcinfo->resultinfo, set, &change);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(context);
	}
	mip_values_end(level);
	PG_RETURN_NULL();
}

/* ---- several of them ---- */

Datum
mip_writeset_conflicts(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(mipw_conflict(mip_writeset_open_raw(PG_GETARG_BYTEA_PP(0)),
								 mip_writeset_open_raw(PG_GETARG_BYTEA_PP(1))));
}

static void
refuse_null(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("a writeset to be compacted must not be null")));
}

Datum
mip_writeset_compact_sql(PG_FUNCTION_ARGS)
{
	const MipwSet **sets;
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	if (PG_ARGISNULL(0))
		refuse_null();
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), BYTEAOID, -1, false, TYPALIGN_INT,
					  &elements, &nulls, &n);
	sets = palloc(n * sizeof(MipwSet *) + 1);
	for (int i = 0; i < n; i++)
	{
		if (nulls[i])
			refuse_null();
		sets[i] = mip_writeset_open_raw(PG_DETOAST_DATUM_PACKED(elements[i]));
	}
	PG_RETURN_POINTER(mip_writeset_compact(sets, n));
}
