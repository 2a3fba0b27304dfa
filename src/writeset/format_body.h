/*-------------------------------------------------------------------------
 *
 * format_body.h
 *	  The body of a change, written value by value (format.h has what it is).
 *
 * For whoever has many to write. Of rows most is made of values that have a width: so
 * that not each of them has to ask for its room, there is some at all times.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_FORMAT_BODY_H
#define MIP_WRITESET_FORMAT_BODY_H

#include "lib/stringinfo.h"
#include "utils/memutils.h"

#include "writeset/format.h"

/* The most bytes that a varint has */
#define MIPW_VARINT		10

/* Room for the bytes of a value that has a width: so many may be written, whatever it is. */
#define MIPW_WIDEST		16

typedef struct MipwBody
{
	StringInfo	buffer;			/* it is appended to this */
	char	   *to;				/* here, until it ends */
	char	   *end;			/* of the room that there is */
	size_t		spare;			/* so much there is from here on at least */
	size_t		nulls;			/* where the bitmaps are, in the buffer */
	size_t		changed;
} MipwBody;

/* ---- parts of all that is written ---- */

/* Room for so many bytes more; they count when mipw_took() has been told where they end. */
static inline char *
mipw_room(StringInfo buffer, size_t most)
{
	if (unlikely(most >= buffer->maxlen - buffer->len))
		mipw_enlarge(buffer, most);
	return buffer->data + buffer->len;
}

static inline void
mipw_took(StringInfo buffer, const char *end)
{
	buffer->len = end - buffer->data;
}

static inline char *
mipw_put_varint(char *to, uint64 value)
{
	for (; value >= 0x80; value >>= 7)
		*to++ = (value & 0x7f) | 0x80;
	*to++ = value;
	return to;
}

static inline char *
mipw_put_bytes(char *to, const void *bytes, size_t length)
{
	memcpy(to, bytes, length);
	return to + length;
}

/* ---- bodies ---- */

static inline size_t
mipw_bitmap_length(unsigned nbits)
{
	return (nbits + 7) / 8;
}

/* Of this relation: what its values have, but those of varying length. Some is left behind them. */
static inline size_t
mipw_body_spare(const MipwRelation *relation)
{
	return (size_t) MIPW_WIDEST * (relation->nidentity + relation->ncolumns + 1) +
		mipw_bitmap_length(relation->nidentity) + 2 * mipw_bitmap_length(relation->ncolumns);
}

static inline void
mipw_body_begin(MipwBody *body, StringInfo buffer, size_t spare)
{
	body->buffer = buffer;
	body->to = mipw_room(buffer, spare);
	body->end = buffer->data + buffer->maxlen;
	body->spare = spare;
}

static inline void
mipw_body_end(const MipwBody *body)
{
	mipw_took(body->buffer, body->to);
}

/* Bytes of bitmaps; returns where they are. */
static inline size_t
mipw_body_bits(MipwBody *body, size_t length)
{
	size_t		at = body->to - body->buffer->data;

	/* most have no more */
	memset(body->to, 0, MIPW_WIDEST);
	if (unlikely(length > MIPW_WIDEST))
		memset(body->to, 0, length);
	body->to += length;
	return at;
}

/* Its columns follow, in their order: of each its value, or that it is null. */
static inline void
mipw_body_identity(MipwBody *body, const MipwRelation *relation)
{
	body->nulls = mipw_body_bits(body, mipw_bitmap_length(relation->nidentity));
}

/* Likewise; of an update's each that is changed is told to be so before. */
static inline void
mipw_body_row(MipwBody *body, const MipwRelation *relation, bool partly)
{
	size_t		length = mipw_bitmap_length(relation->ncolumns);

	body->changed = mipw_body_bits(body, partly ? 2 * length : length);
	body->nulls = partly ? body->changed + length : body->changed;
}

static inline void
mipw_body_set(const MipwBody *body, size_t bitmap, unsigned i)
{
	body->buffer->data[bitmap + i / 8] |= 1 << (i % 8);
}

static inline void
mipw_body_changed(const MipwBody *body, unsigned i)
{
	mipw_body_set(body, body->changed, i);
}

static inline void
mipw_body_null(const MipwBody *body, unsigned i)
{
	mipw_body_set(body, body->nulls, i);
}

/* A value of a type that has a width: MIPW_WIDEST bytes may be written there. */
static inline char *
mipw_body_fixed(MipwBody *body, int width)
{
	char	   *to = body->to;

	body->to += width;
	return to;
}

/* A value of another type, from here on; returns the end. */
static inline char *
mipw_body_put_string(MipwBody *body, char *to, const void *bytes, size_t length)
{
	if (unlikely(length + MIPW_VARINT + body->spare >= body->end - to))
	{
		mipw_took(body->buffer, to);
		to = mipw_room(body->buffer, length + MIPW_VARINT + body->spare);
		body->end = body->buffer->data + body->buffer->maxlen;
	}
	return mipw_put_bytes(mipw_put_varint(to, length), bytes, length);
}

static inline void
mipw_body_string(MipwBody *body, const void *bytes, size_t length)
{
	body->to = mipw_body_put_string(body, body->to, bytes, length);
}

#endif							/* MIP_WRITESET_FORMAT_BODY_H */
