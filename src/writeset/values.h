/*-------------------------------------------------------------------------
 *
 * values.h
 *	  Values as writesets have them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_VALUES_H
#define MIP_WRITESET_VALUES_H

#include "fmgr.h"

#include "base/compat.h"
#include "writeset/format.h"
#include "writeset/format_body.h"

/* How values of a column become bytes and the other way round. */
typedef struct MipwCodec
{
	Oid			type;
	int16		typlen;
	bool		typbyval;
	int			width;			/* mipw_width() of the type's name */
	bool		plain;			/* varlena, whose bytes are its text, or
								 * bytea's */
	bool		stored_text;	/* likewise, and what the output function
								 * writes is less: of xml */
	FmgrInfo	output;			/* else; MIPW_TEXT only */
	FmgrInfo	input;			/* of a domain's base type; MIPW_TEXT only */
	Oid			ioparam;
} MipwCodec;

/* What a domain, an array, or a range is made of; 0: the type is none of these */
extern Oid	mip_inner_type(Oid type);
extern Oid	mip_innermost_type(Oid type);

/*
 * A type's name in a writeset, the same with every major version of PostgreSQL; and one
 * without the quotes that go by what is a keyword: what is left is no word of lower-case
 * letters, digits and underscores.
 */
extern char *mip_type_name(Oid type);
extern char *mip_plain_name(const char *name);

extern void mip_codec_init(MipwCodec *codec, Oid type);

/*
 * Output and input functions have to be called under fixed settings, whatever the
 * session's: an array of dates would not be read, or read wrongly, elsewhere. Between
 * these two they are. An error ends it, too: the caller's settings come back.
 */
extern int	mip_values_begin(void);
extern void mip_values_end(int level);

/*
 * The bytes of `datum`, as mipw_body() takes them. They are in `room`, which has
 * MIPW_WIDEST bytes, or in the current memory context, or the datum's own.
 */
extern void mip_value_encode(MipwCodec *codec, Datum datum, uint8 *room, MipwValue *value);

/* Appends them: for mip_value_put(), of whatever type */
extern void mip_value_append_any(MipwBody *body, MipwCodec *codec, Datum datum);

/* Of a varlena: neither compressed nor out of line */
static inline bool
mip_value_is_at_hand(Datum datum)
{
	return !VARATT_IS_COMPRESSED(DatumGetPointer(datum)) &&
		!VARATT_IS_EXTERNAL(DatumGetPointer(datum));
}

/* Appends them, from here on; returns the end. */
static inline char *
mip_value_put(MipwBody *body, MipwCodec *codec, Datum datum, char *to)
{
	if (codec->plain && mip_value_is_at_hand(datum))
		return mipw_body_put_string(body, to, VARDATA_ANY(DatumGetPointer(datum)),
									VARSIZE_ANY_EXHDR(DatumGetPointer(datum)));
	body->to = to;
	mip_value_append_any(body, codec, datum);
	return body->to;
}

/*
 * The value of one that is there and not null, in the current memory context: whatever its
 * length, and whatever domains say. What a built-in type does not accept is refused with
 * 22P03; what others do not, with MP021.
 */
extern Datum mip_value_decode(MipwCodec *codec, const MipwSet *set, const MipwValue *value);

/* What the type's output function would write, in this database's encoding. */
extern char *mip_value_text(const MipwSet *set, const MipwColumn *column,
							const MipwValue *value);

#endif							/* MIP_WRITESET_VALUES_H */
