/*-------------------------------------------------------------------------
 *
 * values.c
 *	  Values as writesets have them.
 *
 * Built-in types of fixed width are sent as they are, little-endian. None of them
 * holds an OID of this database, whose meaning would be another one elsewhere, and
 * none has changed its bytes between majors, as interval has, where infinity came
 * with 17. All others are sent as text: enums, arrays, composites, ranges, domains,
 * reg*, numeric, json, geometry, and whatever extensions bring.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "datatype/timestamp.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/guc.h"
#include "utils/inet.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/settings.h"
#include "writeset/input.h"
#include "writeset/values.h"

/* ---- settings ---- */

/*
 * What output and input functions go by. With an empty search_path they would look among
 * the session's temporary objects first.
 */
static const struct
{
	const char *name;
	const char *value;
}			settings[] =

{
	{"array_nulls", "on"},
	{"bytea_output", "hex"},
	{"DateStyle", "ISO, YMD"},
	{"extra_float_digits", "1"},
	{"IntervalStyle", "postgres"},
	{"lc_monetary", "C"},
	{"quote_all_identifiers", "off"},
	{"search_path", "pg_catalog, pg_temp"},
	{"TimeZone", "UTC"},
	{"xmlbinary", "base64"},
	{"xmloption", "content"},
};

int
mip_values_begin(void)
{
	int			level = NewGUCNestLevel();

	for (size_t i = 0; i < lengthof(settings); i++)
		mip_set_for_now(settings[i].name, settings[i].value);
	return level;
}

void
mip_values_end(int level)
{
	AtEOXact_GUC(false, level); /* and what others' code has set meanwhile */
}

/* ---- of fixed width ---- */

static uint64
bytes_number(const uint8 *bytes, int width)
{
	uint64		value = 0;

	for (int i = 0; i < width; i++)
		value |= (uint64) bytes[i] << (8 * i);
	return value;
}

/* Of types by reference that are an array of bytes anyway */
static bool
is_raw(Oid type)
{
	return type == UUIDOID || type == MACADDROID || type == MACADDR8OID;
}

/* Writes as many bytes as the type has, but MIPW_WIDEST may be written. */
static void
fixed_encode(const MipwCodec *codec, Datum datum, char *to)
{
	if (codec->typbyval)
		mipw_put_number(to, datum, 8);
	else if (is_raw(codec->type))
		memcpy(to, DatumGetPointer(datum), codec->width);
	else if (codec->type == TIMETZOID)
	{
		TimeTzADT  *time = DatumGetTimeTzADTP(datum);

		mipw_put_number(to, time->time, 8);
		mipw_put_number(to + 8, (uint32) time->zone, 4);
	}
	else
		mipw_put_number(to, DatumGetInt64(datum), 8);	/* by reference */
}

static Datum
fixed_datum(Oid type, int width, const uint8 *bytes)
{
	uint64		number = bytes_number(bytes, Min(width, 8));

	if (is_raw(type))
		return PointerGetDatum(memcpy(palloc(width), bytes, width));
	if (type == TIMETZOID)
	{
		TimeTzADT  *time = palloc(sizeof(TimeTzADT));

		time->time = number;
		time->zone = (int32) bytes_number(bytes + 8, 4);
		return TimeTzADTPGetDatum(time);
	}
	switch (width)
	{
		case 1:
			return CharGetDatum((char) number);
		case 2:
			return Int16GetDatum((int16) number);
		case 4:
			return Int32GetDatum((int32) number);
		default:
			return Int64GetDatum((int64) number);
	}
}

static bool
time_is_valid(int64 time)
{
	return time >= 0 && time <= USECS_PER_DAY;
}

/* Types whose functions rely on more than the width */
static bool
fixed_is_valid(Oid type, Datum datum)
{
	switch (type)
	{
		case DATEOID:
			{
				DateADT		date = DatumGetDateADT(datum);

				return DATE_NOT_FINITE(date) || IS_VALID_DATE(date);
			}
		case TIMEOID:
			return time_is_valid(DatumGetTimeADT(datum));
		case TIMETZOID:
			{
				TimeTzADT  *time = DatumGetTimeTzADTP(datum);

				return time_is_valid(time->time) &&
					time->zone > -TZDISP_LIMIT && time->zone < TZDISP_LIMIT;
			}
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			{
				Timestamp	timestamp = DatumGetTimestamp(datum);

				return TIMESTAMP_NOT_FINITE(timestamp) || IS_VALID_TIMESTAMP(timestamp);
			}
		default:
			return true;
	}
}

static Datum
fixed_decode(Oid type, int width, const uint8 *bytes)
{
	Datum		datum = fixed_datum(type, width, bytes);

	if (!fixed_is_valid(type, datum))
		mip_writeset_invalid("a date or time is out of range");
	return datum;
}

/* ---- types ---- */

static Oid
type_of_domain(Oid domain)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(domain));
	Oid			type;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", domain);
	type = ((Form_pg_type) GETSTRUCT(tuple))->typbasetype;
	ReleaseSysCache(tuple);
	return type;
}

Oid
mip_inner_type(Oid type)
{
	switch (get_typtype(type))
	{
		case TYPTYPE_DOMAIN:
			return type_of_domain(type);
		case TYPTYPE_RANGE:
			return get_range_subtype(type);
		case TYPTYPE_MULTIRANGE:
			return get_multirange_range(type);
		default:
			return get_element_type(type);
	}
}

Oid
mip_innermost_type(Oid type)
{
	Oid			inner;

	while (OidIsValid(inner = mip_inner_type(type)))
		type = inner;
	return type;
}

/* ---- both ways ---- */

/* So long is the part of a name that begins with a quote. */
static int
quoted_length(const char *quoted)
{
	int			length = 1;

	while (quoted[length] && (quoted[length] != '"' || quoted[length + 1] == '"'))
		length += quoted[length] == '"' ? 2 : 1;
	return length + (quoted[length] == '"');
}

static bool
is_plain(const char *word, int length)
{
	return length > 0 && (word[0] < '0' || word[0] > '9') &&
		strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

char *
mip_plain_name(const char *name)
{
	char	   *plain = palloc(strlen(name) + 1);
	char	   *to = plain;

	while (*name)
	{
		int			length = *name == '"' ? quoted_length(name) : 1;
		int			quote = *name == '"' && is_plain(name + 1, length - 2) ? 1 : 0;

		memcpy(to, name + quote, length - 2 * quote);
		to += length - 2 * quote;
		name += length;
	}
	*to = '\0';
	return plain;
}

char *
mip_type_name(Oid type)
{
	switch (type)
	{
		case CHAROID:
			return pstrdup("pg_catalog.\"char\"");
		case CHARARRAYOID:
			return pstrdup("pg_catalog.\"char\"[]");
			/* from 16 on "json" is a keyword, and written as such */
		case JSONOID:
			return pstrdup("pg_catalog.json");
		case JSONARRAYOID:
			return pstrdup("pg_catalog.json[]");
		default:
			return mip_plain_name(format_type_be_qualified(type));
	}
}

void
mip_codec_init(MipwCodec *codec, Oid type)
{
	char	   *name = mip_type_name(type);
	Oid			base = getBaseType(type);
	Oid			function;
	bool		varlena;

	memset(codec, 0, sizeof(MipwCodec));
	codec->type = type;
	codec->width = mipw_width(name);
	pfree(name);
	get_typlenbyval(type, &codec->typlen, &codec->typbyval);
	codec->plain = type == TEXTOID || type == VARCHAROID || type == BPCHAROID ||
		type == BYTEAOID;
	codec->stored_text = base == XMLOID;
	if (codec->width != MIPW_TEXT)
		return;
	getTypeOutputInfo(type, &function, &varlena);
	fmgr_info(function, &codec->output);
	getTypeInputInfo(base, &function, &codec->ioparam);
	fmgr_info(function, &codec->input);
}

void
mip_value_encode(MipwCodec *codec, Datum datum, uint8 *room, MipwValue *value)
{
	value->there = true;
	value->null = false;
	if (codec->width > 0)
	{
		fixed_encode(codec, datum, (char *) room);
		value->data = room;
		value->length = codec->width;
	}
	else if (codec->plain || codec->stored_text)
	{
		struct varlena *bytes = PG_DETOAST_DATUM_PACKED(datum);

		value->data = (const uint8 *) VARDATA_ANY(bytes);
		value->length = VARSIZE_ANY_EXHDR(bytes);
	}
	else
	{
		char	   *text = OutputFunctionCall(&codec->output, datum);

		value->data = (const uint8 *) text;

		value->length = strlen(text);
	}
}

void
mip_value_append_any(MipwBody *body, MipwCodec *codec, Datum datum)
{
	MipwValue	value;

	if (codec->width > 0)
	{
		fixed_encode(codec, datum, mipw_body_fixed(body, codec->width));
		return;
	}
	mip_value_encode(codec, datum, NULL, &value);
	mipw_body_string(body, value.data, value.length);
}

/* Does a text depend on what there is, as the name of a table does? */
static bool
is_about_names(int code)
{
	return code == ERRCODE_UNDEFINED_SCHEMA ||
		(ERRCODE_TO_CATEGORY(code) == ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION &&
		 code != ERRCODE_SYNTAX_ERROR && code != ERRCODE_INVALID_NAME);
}

/*
 * Of a built-in type it would be none anywhere, but for what a later major has added. Of
 * others, as enums, and of names it may be one where it comes from.
 */
pg_noreturn static void
refuse_text(const MipwCodec *codec, int code, const char *why)
{
	if (getBaseType(codec->type) < FirstNormalObjectId && !is_about_names(code))
		mip_writeset_invalid(why);
	ereport(ERROR,
			(errcode(ERRCODE_MIP_OTHER_TABLE),
			 errmsg("a value of the writeset is none of type %s here",
					format_type_be(codec->type)),
			 errdetail_internal("%s", why)));
}

/* Does the error say that a text is no value? */
static bool
is_about_text(int code)
{
	return ERRCODE_TO_CATEGORY(code) == ERRCODE_DATA_EXCEPTION ||
		code == ERRCODE_SYNTAX_ERROR || code == ERRCODE_INVALID_NAME ||
		(is_about_names(code) && code != ERRCODE_INSUFFICIENT_PRIVILEGE);
}

/*
 * Calls the input function. What else there may be wrong than that it is no value of the
 * type, as an interrupt, stays what it is.
 */
static Datum
input_call(MipwCodec *codec, char *text)
{
	MemoryContext context = CurrentMemoryContext;
	Datum		result = 0;

	PG_TRY();
	{
		result = InputFunctionCall(&codec->input, text, codec->ioparam, -1);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		if (!is_about_text(geterrcode()))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		refuse_text(codec, error->sqlerrcode, error->message);
	}
	PG_END_TRY();
	return result;
}

Datum
mip_value_decode(MipwCodec *codec, const MipwSet *set, const MipwValue *value)
{
	struct varlena *result;
	char	   *text;

	if (codec->width > 0)
		return fixed_decode(codec->type, codec->width, value->data);
	if (codec->width == MIPW_BYTES)
		return PointerGetDatum(cstring_to_text_with_len((const char *) value->data,
														value->length));
	text = mip_writeset_text(set, value->data, value->length);

	if (codec->plain)
	{
		result = cstring_to_text(text);
		pfree(text);
		return PointerGetDatum(result);
	}
	return input_call(codec, text);
}

/* ---- for people ---- */

/* The types that mipw_width() has a width for */
static Oid
fixed_type(const char *name)
{
	static const struct
	{
		const char *name;
		Oid			type;
	}			types[] =
	{
		{"bigint", INT8OID},
		{"boolean", BOOLOID},
		{"pg_catalog.\"char\"", CHAROID},
		{"pg_catalog.cid", CIDOID},
		{"pg_catalog.date", DATEOID},
		{"double precision", FLOAT8OID},
		{"integer", INT4OID},
		{"pg_catalog.macaddr", MACADDROID},
		{"pg_catalog.macaddr8", MACADDR8OID},
		{"pg_catalog.oid", OIDOID},
		{"pg_catalog.pg_lsn", LSNOID},
		{"real", FLOAT4OID},
		{"smallint", INT2OID},
		{"time with time zone", TIMETZOID},
		{"time without time zone", TIMEOID},
		{"timestamp with time zone", TIMESTAMPTZOID},
		{"timestamp without time zone", TIMESTAMPOID},
		{"pg_catalog.uuid", UUIDOID},
		{"pg_catalog.xid", XIDOID},
		{"pg_catalog.xid8", XID8OID},
	};

	for (size_t i = 0; i < lengthof(types); i++)
		if (strcmp(types[i].name, name) == 0)
			return types[i].type;
	elog(ERROR, "type %s has no width", name);
}

char *
mip_value_text(const MipwSet *set, const MipwColumn *column, const MipwValue *value)
{
	Oid			type;
	Oid			function;
	bool		varlena;

	if (column->width == MIPW_TEXT)
		return mip_writeset_text(set, value->data, value->length);
	if (column->width == MIPW_BYTES)
	{
		text	   *bytes = cstring_to_text_with_len((const char *) value->data, value->length);

		return DatumGetCString(DirectFunctionCall1(byteaout, PointerGetDatum(bytes)));
	}
	/* before 16, charout would write a byte that is no character */
	if (column->width == 1 && value->data[0] >= 0x80)
		return psprintf("\\%03o", value->data[0]);
	type = fixed_type(column->type);
	getTypeOutputInfo(type, &function, &varlena);
	return OidOutputFunctionCall(function, fixed_decode(type, column->width, value->data));
}
