/*-------------------------------------------------------------------------
 *
 * format_encode.c
 *	  Writing a writeset.
 *
 * Relations and changes are collected as they are going to be; keys apart, to be
 * sorted at the end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_crc32c.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "writeset/format.h"

typedef struct MipwKey
{
	uint64		hash;
	uint8		mode;
} MipwKey;

struct MipwWriter
{
	MemoryContext context;
	uint64		first;
	uint64		number;			/* of the last change */
	uint32		counts[4];		/* I, U, D, T */
	uint32		nrelations;
	StringInfoData relations;
	StringInfoData changes;
	MipwKey    *keys;
	uint64		nkeys;
	uint64		room;
};

#define ST_SORT sort_keys
#define ST_ELEMENT_TYPE MipwKey
#define ST_COMPARE(a, b) ((a)->hash < (b)->hash ? -1 : (a)->hash > (b)->hash)
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/* ---- parts ---- */

static void
put_number(void *to, uint64 value, int width)
{
	for (int i = 0; i < width; i++)
		((uint8 *) to)[i] = value >> (8 * i);
}

static void
append_number(StringInfo buffer, uint64 value, int width)
{
	uint8		bytes[8];

	put_number(bytes, value, width);
	appendBinaryStringInfo(buffer, (char *) bytes, width);
}

void
mipw_append_varint(StringInfo buffer, uint64 value)
{
	char		bytes[10];
	int			n = 0;

	for (; value >= 0x80; value >>= 7)
		bytes[n++] = (value & 0x7f) | 0x80;
	bytes[n++] = value;
	appendBinaryStringInfo(buffer, bytes, n);
}

static void
append_string(StringInfo buffer, const void *data, size_t length)
{
	mipw_append_varint(buffer, length);
	appendBinaryStringInfo(buffer, data, length);
}

void
mipw_append_value(StringInfo body, int width, const void *data, size_t length)
{
	if (width > 0)
	{
		Assert(length == width);
		appendBinaryStringInfo(body, data, width);
	}
	else
		append_string(body, data, length);
}

/* ---- bodies ---- */

/* n bits of 0; returns where they are, from the beginning of the body. */
static int
append_bitmap(StringInfo body, int n)
{
	int			at = body->len;

	enlargeStringInfo(body, (n + 7) / 8);
	memset(body->data + at, 0, (n + 7) / 8);
	body->len += (n + 7) / 8;
	body->data[body->len] = '\0';
	return at;
}

static void
set_bit(StringInfo body, int bitmap, int i)
{
	body->data[bitmap + i / 8] |= 1 << (i % 8);
}

static void
append_identity(StringInfo body, const MipwRelation *relation, const MipwValue *values)
{
	int			nulls = append_bitmap(body, relation->nidentity);

	for (int i = 0; i < relation->nidentity; i++)
	{
		const MipwColumn *column = &relation->columns[relation->identity[i]];

		Assert(values[i].there);
		if (values[i].null)
			set_bit(body, nulls, i);
		else
			mipw_append_value(body, column->width, values[i].data, values[i].length);
	}
}

static void
append_row(StringInfo body, const MipwRelation *relation, bool partly,
		   const MipwValue *values)
{
	int			changed = partly ? append_bitmap(body, relation->ncolumns) : 0;
	int			nulls = append_bitmap(body, relation->ncolumns);

	for (int i = 0; i < relation->ncolumns; i++)
	{
		Assert(partly || values[i].there);
		if (!values[i].there)
			continue;
		if (partly)
			set_bit(body, changed, i);
		if (values[i].null)
			set_bit(body, nulls, i);
		else
			mipw_append_value(body, relation->columns[i].width, values[i].data,
							  values[i].length);
	}
}

void
mipw_body(StringInfo body, char op, const MipwRelation *relation,
		  const MipwValue *identity, const MipwValue *row)
{
	if (op == 'U' || op == 'D')
		append_identity(body, relation, identity);
	if (op == 'U' || op == 'I')
		append_row(body, relation, op == 'U', row);
}

/* ---- the whole ---- */

MipwWriter *
mipw_begin(uint64 first)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "writeset",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	MipwWriter *writer = palloc0(sizeof(MipwWriter));

	writer->context = context;
	writer->first = first;
	writer->number = first - 1;
	initStringInfo(&writer->relations);
	initStringInfo(&writer->changes);
	writer->room = 64;
	writer->keys = palloc(writer->room * sizeof(MipwKey));
	MemoryContextSwitchTo(old);
	return writer;
}

uint32
mipw_write_relation(MipwWriter *writer, MipwRelation *relation)
{
	StringInfo	buffer = &writer->relations;
	int			start;

	append_number(buffer, relation->id, 4);
	start = buffer->len;
	append_number(buffer, relation->whole ? 'w' : 'k', 1);
	append_string(buffer, relation->schema, strlen(relation->schema));
	append_string(buffer, relation->name, strlen(relation->name));
	mipw_append_varint(buffer, relation->ncolumns);
	for (int i = 0; i < relation->ncolumns; i++)
	{
		const MipwColumn *column = &relation->columns[i];

		append_number(buffer, column->flags, 1);
		append_string(buffer, column->name, strlen(column->name));
		append_string(buffer, column->type, strlen(column->type));
	}
	relation->fingerprint = mipw_fnv(MIPW_FNV, buffer->data + start, buffer->len - start);
	append_number(buffer, relation->fingerprint, 8);
	return writer->nrelations++;
}

void
mipw_write_change(MipwWriter *writer, char op, uint64 number, uint32 relation,
				  const StringInfoData *body)
{
	static const char ops[] = "IUDT";
	StringInfo	buffer = &writer->changes;
	uint64		skip = number - writer->number - 1;

	Assert(number > writer->number && relation < writer->nrelations);
	append_number(buffer, skip ? op | MIPW_SKIP : op, 1);
	if (skip)
		mipw_append_varint(buffer, skip - 1);
	mipw_append_varint(buffer, relation);
	append_string(buffer, body->data, body->len);
	writer->number = number;
	writer->counts[strchr(ops, op) - ops]++;
}

/* Keys in order, each once. */
static void
settle_keys(MipwWriter *writer)
{
	uint64		n = 0;

	sort_keys(writer->keys, writer->nkeys);
	for (uint64 i = 0; i < writer->nkeys; i++)
	{
		MipwKey    *key = &writer->keys[i];

		if (n > 0 && writer->keys[n - 1].hash == key->hash)
			writer->keys[n - 1].mode = Max(writer->keys[n - 1].mode, key->mode);
		else
			writer->keys[n++] = *key;
	}
	writer->nkeys = n;
}

void
mipw_write_key(MipwWriter *writer, uint64 hash, uint8 mode)
{
	if (writer->nkeys == writer->room)
	{
		/* the same ones may have come again and again */
		settle_keys(writer);
		if (writer->nkeys > writer->room / 2)
		{
			writer->room *= 2;
			writer->keys = repalloc_huge(writer->keys, mul_size(writer->room, sizeof(MipwKey)));
		}
	}
	writer->keys[writer->nkeys].hash = hash;
	writer->keys[writer->nkeys++].mode = mode;
}

uint64
mipw_size(const MipwWriter *writer)
{
	return MIPW_HEADER + 9 * writer->nkeys + writer->relations.len +
		writer->changes.len + MIPW_TRAILER;
}

static void
put_header(const MipwWriter *writer, char *to, uint64 length, uint64 last,
		   uint64 database, uint8 encoding)
{
	memcpy(to, MIPW_MAGIC, 4);
	put_number(to + 4, MIPW_VERSION, 2);
	put_number(to + 6, 0, 1);
	put_number(to + 7, encoding, 1);
	put_number(to + 8, database, 8);
	put_number(to + 16, length, 8);
	put_number(to + 24, writer->first, 8);
	put_number(to + 32, last, 8);
	for (int i = 0; i < 4; i++)
		put_number(to + 40 + 4 * i, writer->counts[i], 4);
	put_number(to + 56, writer->nkeys, 4);
	put_number(to + 60, writer->nrelations, 4);
	put_number(to + 64, writer->relations.len, 4);
	put_number(to + 68, writer->changes.len, 4);
}

struct varlena *
mipw_end(MipwWriter *writer, uint64 last, uint64 database, uint8 encoding)
{
	struct varlena *result;
	uint64		length;
	char	   *to;
	pg_crc32c	crc;

	Assert(last + 1 >= writer->first && last >= writer->number);
	settle_keys(writer);
	length = mipw_size(writer);
	if (length > MaxAllocSize - VARHDRSZ)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the writeset is longer than 1 GB"),
				 errhint("Ask for parts of it.")));
	result = palloc(length + VARHDRSZ);
	SET_VARSIZE(result, length + VARHDRSZ);
	to = VARDATA(result);
	put_header(writer, to, length, last, database, encoding);
	to += MIPW_HEADER;
	for (uint64 i = 0; i < writer->nkeys; i++)
	{
		put_number(to + 8 * i, writer->keys[i].hash, 8);
		put_number(to + 8 * writer->nkeys + i, writer->keys[i].mode, 1);
	}
	to += 9 * writer->nkeys;
	memcpy(to, writer->relations.data, writer->relations.len);
	to += writer->relations.len;
	memcpy(to, writer->changes.data, writer->changes.len);
	to += writer->changes.len;
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, VARDATA(result), length - MIPW_TRAILER);
	FIN_CRC32C(crc);
	put_number(to, crc, 4);
	MemoryContextDelete(writer->context);
	return result;
}
