/*-------------------------------------------------------------------------
 *
 * apply_column.c
 *	  Columns of a writeset as those of a table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/datum.h"

#include "writeset/apply_column.h"

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

void
mip_column_init(MipColumn *column, Form_pg_attribute attr)
{
	memset(column, 0, sizeof(MipColumn));
	if (attr == NULL)
		return;
	column->attno = attr->attnum;
	mip_codec_init(&column->codec, attr->atttypid, attr->atttypmod);
	column->fixed = column->codec.width == MIPW_TEXT && !has_own_form(attr->atttypid);
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
mip_column_hash(const MipColumn *column, Datum value)
{
	const MipwCodec *codec = &column->codec;

	return is_exact(codec) ? datum_image_hash(value, codec->typbyval, codec->typlen) : 0;
}
