/*-------------------------------------------------------------------------
 *
 * writesets.c
 *	  SQL functions of writesets: making them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "base/preload.h"
#include "family/rebuild.h"
#include "writeset/extract.h"
#include "writeset/prepared.h"
#include "writeset/table.h"

PG_FUNCTION_INFO_V1(mip_writeset);
PG_FUNCTION_INFO_V1(mip_writeset_prepared);
PG_FUNCTION_INFO_V1(mip_relation_writeset);
PG_FUNCTION_INFO_V1(mip_relation_checksum);

static void
refuse_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what)));
}

/* 0: as many as there are */
static int64
max_bytes_argument(FunctionCallInfo fcinfo, int i)
{
	int64		max_bytes;

	if (PG_ARGISNULL(i))
		return 0;
	max_bytes = PG_GETARG_INT64(i);
	if (max_bytes < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_bytes must be positive, not " INT64_FORMAT, max_bytes)));
	return max_bytes;
}

Datum
mip_writeset(PG_FUNCTION_ARGS)
{
	mip_require_preload();
	if (PG_ARGISNULL(0))
		refuse_null("the number of the last change known");
	PG_RETURN_POINTER(mip_extract_own(PG_GETARG_INT64(0), max_bytes_argument(fcinfo, 1)));
}

Datum
mip_writeset_prepared(PG_FUNCTION_ARGS)
{
	mip_registry_ensure("mip.writeset");
	if (PG_ARGISNULL(0))
		refuse_null("the XID");
	if (PG_ARGISNULL(1))
		refuse_null("the XINST");
	if (PG_ARGISNULL(2))
		refuse_null("the number of the last change known");
	PG_RETURN_POINTER(mip_extract_prepared(text_to_cstring(PG_GETARG_TEXT_PP(0)),
										   PG_GETARG_INT64(1), PG_GETARG_INT64(2),
										   max_bytes_argument(fcinfo, 3)));
}

/* ---- whole tables ---- */

static void
put_writeset(struct varlena *writeset, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		value = PointerGetDatum(writeset);
	bool		isnull = false;

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &isnull);
}

Datum
mip_relation_writeset(PG_FUNCTION_ARGS)
{
	mip_require_preload();
	if (PG_ARGISNULL(0))
		refuse_null("the table");
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	mip_table_writesets(PG_GETARG_OID(0), max_bytes_argument(fcinfo, 1), put_writeset,
						fcinfo->resultinfo);
	return (Datum) 0;
}

Datum
mip_relation_checksum(PG_FUNCTION_ARGS)
{
	mip_require_preload();
	PG_RETURN_TEXT_P(cstring_to_text(mip_table_checksum(PG_GETARG_OID(0))));
}
