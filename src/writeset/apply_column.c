/*-------------------------------------------------------------------------
 *
 * apply_column.c
 *	  Columns of a writeset as those of a table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"

#include "writeset/apply_column.h"
#include "writeset/input.h"

/* Of common types that are sent as text: whose functions do not go by settings? */
static bool
has_own_form(Oid type)
{
	switch (type)
	{
		case BPCHAROID:
		case CIDROID:
		case INETOID:
		case JSONBOID:
		case JSONOID:
		case NAMEOID:
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
			return true;
		default:
			return false;
	}
}

/*
 * As an INSERT does it: the value is one of its type, and then made to fit. Of arrays
 * that is done element by element, which their input function does as well.
 */
static void
init_fit(MipColumn *column, Oid type)
{
	Oid			function;

	if (column->typmod < 0)
		return;
	switch (find_typmod_coercion_function(type, &function))
	{
		case COERCION_PATH_FUNC:
			fmgr_info(function, &column->fit);
			column->fit_nargs = get_func_nargs(function);
			break;
		case COERCION_PATH_ARRAYCOERCE:
			column->fits_input = true;
			break;
		default:
			break;
	}
}

void
mip_column_init(MipColumn *column, Form_pg_attribute attr)
{
	Oid			type;

	memset(column, 0, sizeof(MipColumn));
	if (attr == NULL)
		return;
	column->attno = attr->attnum;
	mip_codec_init(&column->codec, attr->atttypid);
	column->typmod = attr->atttypmod;
	type = getBaseTypeAndTypmod(attr->atttypid, &column->typmod);
	if (type != attr->atttypid)
		column->domain = attr->atttypid;
	column->memory = CurrentMemoryContext;
	column->fixed = column->codec.width == MIPW_TEXT && !has_own_form(type);
	init_fit(column, type);
}

Datum
mip_column_value(MipColumn *column, const MipwSet *set, const MipwValue *value)
{
	Datum		datum = mip_value_decode(&column->codec, set, value);

	if (column->fit_nargs >= 3)
		return FunctionCall3(&column->fit, datum, Int32GetDatum(column->typmod),
							 BoolGetDatum(false));
	if (column->fit_nargs > 0)
		return FunctionCall2(&column->fit, datum, Int32GetDatum(column->typmod));
	if (column->fits_input)
		return InputFunctionCall(&column->codec.input,
								 mip_writeset_text(set, value->data, value->length),
								 column->codec.ioparam, column->typmod);
	return datum;
}

void
mip_column_check_domain(MipColumn *column, Datum value, bool isnull)
{
	if (OidIsValid(column->domain))
		domain_check(value, isnull, column->domain, &column->domain_info, column->memory);
}

/* Have the same values always the same bytes? */
static bool
is_exact(const MipwCodec *codec)
{
	return codec->width != MIPW_TEXT || codec->plain || codec->type == JSONOID;
}

/*
 * Types may store the same value in more than one way, as arrays do with room for nulls
 * that are not there; but they write two values differently.
 */
bool
mip_column_same(MipColumn *column, Datum a, Datum b)
{
	MipwCodec  *codec = &column->codec;

	if (datum_image_eq(a, b, codec->typbyval, codec->typlen))
		return true;
	return !is_exact(codec) &&
		strcmp(OutputFunctionCall(&codec->output, a), OutputFunctionCall(&codec->output, b)) == 0;
}

uint32
mip_column_hash(MipColumn *column, Datum value)
{
	MipwCodec  *codec = &column->codec;
	char	   *text;

	if (is_exact(codec))
		return datum_image_hash(value, codec->typbyval, codec->typlen);
	text = OutputFunctionCall(&codec->output, value);

	return hash_bytes((const unsigned char *) text, strlen(text));
}
