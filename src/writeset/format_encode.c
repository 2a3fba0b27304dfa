/*-------------------------------------------------------------------------
 *
 * format_encode.c
 *	  Writing a writeset.
 *
 * Relations and changes are collected as they are going to be; keys apart, to be
 * sorted at the end. Memory that has not been used before costs more than what is written
 * there, so there is little of it: the changes are moved to where they belong in the
 * writeset, and keys are sorted where they are.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"
#include "port/pg_crc32c.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "writeset/format.h"
#include "writeset/format_body.h"
#include "writeset/format_encode.h"

/* Sorting them by buckets is faster from here on; how many of them one is to have. */
#define MANY_KEYS		64
#define KEYS_PER_BUCKET	4

/* More do not stay in a processor's cache: they are put into fewer buckets, which do. */
#define MOST_KEYS		16384
#define BITS_OF_MOST	8

/* Relations that a key may be told to be of */
#define KEYS_RELATIONS	63

/* So many are sorted as they are. */
#define FEW_KEYS		16

/* Bytes that a change often has, with its share of all else */
#define USUAL_CHANGE	32

/* Keys are looked through for repeated ones when there are so many, and when so many times as many. */
#define WORTH_SETTLING	65536
#define WORTH_AGAIN		16

#define ST_SORT sort_keys
#define ST_ELEMENT_TYPE MipwKey
#define ST_COMPARE(a, b) ((a)->hash < (b)->hash ? -1 : (a)->hash > (b)->hash)
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

pg_noreturn static void
refuse_length(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("the writeset is longer than 1 GB"),
			 errhint("Ask for parts of it.")));
}

/* ---- parts ---- */

/* More than MaxAllocSize is refused in the end: a change in the making may be left out yet. */
void
mipw_enlarge(StringInfo buffer, size_t more)
{
	size_t		needed = (size_t) buffer->len + more + 1;

	if (needed > PG_INT32_MAX)
		refuse_length();
	buffer->maxlen = Min(Max(needed, 2 * (size_t) buffer->maxlen), PG_INT32_MAX);
	buffer->data = repalloc_huge(buffer->data, buffer->maxlen);
}

static void
append_number(StringInfo buffer, uint64 value, int width)
{
	char	   *to = mipw_room(buffer, width);

	mipw_put_number(to, value, width);
	mipw_took(buffer, to + width);
}

static void
append_varint(StringInfo buffer, uint64 value)
{
	mipw_took(buffer, mipw_put_varint(mipw_room(buffer, MIPW_VARINT), value));
}

static void
append_string(StringInfo buffer, const char *string)
{
	append_varint(buffer, strlen(string));
	appendBinaryStringInfo(buffer, string, strlen(string));
}

/* ---- bodies ---- */

static void
put_value(MipwBody *body, const MipwColumn *column, const MipwValue *value)
{
	Assert(column->width <= 0 || value->length == column->width);
	if (column->width > 0)
		memcpy(mipw_body_fixed(body, column->width), value->data, value->length);
	else
		mipw_body_string(body, value->data, value->length);
}

static void
put_identity(MipwBody *body, const MipwRelation *relation, const MipwValue *values)
{
	mipw_body_identity(body, relation);
	for (int i = 0; i < relation->nidentity; i++)
	{
		Assert(values[i].there);
		if (values[i].null)
			mipw_body_null(body, i);
		else
			put_value(body, &relation->columns[relation->identity[i]], &values[i]);
	}
}

static void
put_row(MipwBody *body, const MipwRelation *relation, bool partly, const MipwValue *values)
{
	mipw_body_row(body, relation, partly);
	for (int i = 0; i < relation->ncolumns; i++)
	{
		Assert(partly || values[i].there);
		if (!values[i].there)
			continue;
		if (partly)
			mipw_body_changed(body, i);
		if (values[i].null)
			mipw_body_null(body, i);
		else
			put_value(body, &relation->columns[i], &values[i]);
	}
}

void
mipw_body(StringInfo buffer, char op, const MipwRelation *relation,
		  const MipwValue *identity, const MipwValue *row)
{
	MipwBody	body;

	mipw_body_begin(&body, buffer, mipw_body_spare(relation));
	if (op == 'U' || op == 'D')
		put_identity(&body, relation, identity);
	if (op == 'U' || op == 'I')
		put_row(&body, relation, op == 'U', row);
	mipw_body_end(&body);
	if (buffer->len >= MaxAllocSize)
		refuse_length();
}

/* ---- the whole ---- */

MipwWriter *
mipw_begin(uint64 first, uint64 nchanges)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "writeset",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	MipwWriter *writer = palloc0(sizeof(MipwWriter));

	writer->context = context;
	writer->first = first;
	writer->number = first - 1;
	initStringInfo(&writer->relations);
	writer->room = 64 + Min(nchanges, WORTH_SETTLING);
	writer->worth_settling = writer->room;
	writer->keys = palloc(writer->room * sizeof(MipwKey));
	MemoryContextSwitchTo(old);
	initStringInfo(&writer->changes);
	enlargeStringInfo(&writer->changes, Min(nchanges, WORTH_SETTLING) * USUAL_CHANGE);
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
	append_string(buffer, relation->schema);
	append_string(buffer, relation->name);
	append_varint(buffer, relation->ncolumns);
	for (int i = 0; i < relation->ncolumns; i++)
	{
		const MipwColumn *column = &relation->columns[i];

		append_number(buffer, column->flags, 1);
		append_string(buffer, column->name);
		append_string(buffer, column->type);
	}
	relation->fingerprint = mipw_fnv(MIPW_FNV, buffer->data + start, buffer->len - start);
	append_number(buffer, relation->fingerprint, 8);
	return writer->nrelations++;
}

void
mipw_write_change(MipwWriter *writer, char op, uint64 number, uint32 relation,
				  const StringInfoData *body)
{
	StringInfo	changes = &writer->changes;
	char	   *to = mipw_room(changes, MIPW_HEAD + (size_t) body->len);

	Assert(relation < writer->nrelations);
	to = mipw_put_head(writer, to, op, number, relation);
	to = mipw_put_varint(to, body->len);
	mipw_took(changes, mipw_put_bytes(to, body->data, body->len));
	mipw_count_change(writer, op, number);
}

/* There is room for it. Returns the end. */
char *
mipw_make_way(char *from, size_t length)
{
	char		head[MIPW_VARINT];
	size_t		width = mipw_put_varint(head, length) - head;

	memmove(from + width, from + 1, length);
	memcpy(from, head, width);
	return from + width + length;
}

/* ---- keys ---- */

/* By its highest bits, those left out that all have in common; of each bucket there are few. */
static inline uint32
bucket_of(const MipwKey *key, int common, int bits)
{
	return key->hash << common >> (64 - bits);
}

/*
 * Puts keys into their buckets, of which `places` has the first place each and then the
 * number of all: the first one that is not in its bucket goes there, whoever is in that
 * place goes to his, and so on, until one comes that belongs where the first one was.
 */
static void
put_into_buckets(MipwKey *keys, int common, int bits, const uint64 *places)
{
	uint32		nbuckets = 1 << bits;
	uint64	   *next = palloc(nbuckets * sizeof(uint64));

	memcpy(next, places, nbuckets * sizeof(uint64));
	for (uint32 i = 0; i < nbuckets; i++)
	{
		while (next[i] < places[i + 1])
		{
			MipwKey		key = keys[next[i]];
			uint32		bucket;

			while ((bucket = bucket_of(&key, common, bits)) != i)
			{
				MipwKey    *place = &keys[next[bucket]++];
				MipwKey		other = *place;

				*place = key;
				key = other;
			}
			keys[next[i]++] = key;
		}
	}
	pfree(next);
}

static inline void
sort_few(MipwKey *keys, uint64 nkeys)
{
	for (uint64 i = 1; i < nkeys; i++)
	{
		MipwKey		key = keys[i];
		uint64		place = i;

		for (; place > 0 && keys[place - 1].hash > key.hash; place--)
			keys[place] = keys[place - 1];
		keys[place] = key;
	}
}

static void sort_by_buckets(MipwKey *keys, uint64 nkeys, int common);

/* Those of which so many of the highest bits are the same */
static inline void
sort_these(MipwKey *keys, uint64 nkeys, int common)
{
	if (nkeys <= FEW_KEYS)
		sort_few(keys, nkeys);
	else if (nkeys < MANY_KEYS || common > 32)
		sort_keys(keys, nkeys);
	else
		sort_by_buckets(keys, nkeys, common);
}

/*
 * Puts them in order by the highest bits first, one after the other: hashes are spread
 * evenly, so what is left to be sorted is short; if they are not, it is still sorted.
 */
static void
sort_by_buckets(MipwKey *keys, uint64 nkeys, int common)
{
	int			bits = nkeys > MOST_KEYS ? BITS_OF_MOST :
		pg_leftmost_one_pos64(nkeys / KEYS_PER_BUCKET);
	uint32		nbuckets = 1 << bits;
	uint64	   *places = palloc0((nbuckets + 1) * sizeof(uint64));

	for (uint64 i = 0; i < nkeys; i++)
		places[bucket_of(&keys[i], common, bits) + 1]++;
	for (uint32 i = 0; i < nbuckets; i++)
		places[i + 1] += places[i];
	put_into_buckets(keys, common, bits, places);
	for (uint32 i = 0; i < nbuckets; i++)
		sort_these(keys + places[i], places[i + 1] - places[i], common + bits);
	pfree(places);
}

/* Whatever their order; and rather one that is told */
static const MipwKey *
stronger(const MipwKey *a, const MipwKey *b)
{
	if (a->mode != b->mode)
		return a->mode > b->mode ? a : b;
	return (uint8) (a->relation - 1) <= (uint8) (b->relation - 1) ? a : b;
}

/* Of those from this one on, which has the same hash as the one before; all are sorted. */
static uint64
drop_repeated(MipwKey *keys, uint64 from, uint64 nkeys)
{
	uint64		n = from;

	for (uint64 i = from; i < nkeys; i++)
	{
		MipwKey    *last = &keys[n - 1];

		if (last->hash == keys[i].hash)
			*last = *stronger(last, &keys[i]);
		else
			keys[n++] = keys[i];
	}
	return n;
}

void
mipw_settle_keys(MipwWriter *writer)
{
	MipwKey    *keys = writer->keys;
	uint64		nkeys = writer->nkeys;

	sort_these(keys, nkeys, 0);
	for (uint64 i = 1; i < nkeys; i++)
	{
		if (unlikely(keys[i].hash == keys[i - 1].hash))
		{
			writer->nkeys = drop_repeated(keys, i, nkeys);
			break;
		}
	}
}

/* The same ones may have come again and again; where they have not, they are less likely to. */
void
mipw_make_room_for_keys(MipwWriter *writer)
{
	uint64		before = writer->nkeys;

	if (before >= writer->worth_settling)
	{
		mipw_settle_keys(writer);
		if (writer->nkeys > before / 2)
			writer->worth_settling = before * WORTH_AGAIN;
	}
	if (writer->nkeys > writer->room / 2)
	{
		writer->room *= 2;
		writer->keys = repalloc_huge(writer->keys, mul_size(writer->room, sizeof(MipwKey)));
	}
}

void
mipw_write_key(MipwWriter *writer, uint64 hash, uint8 mode)
{
	mipw_put_key(writer, hash, mode);
}

/* Those that six bits do not number are not told. */
void
mipw_keys_of(MipwWriter *writer, uint32 relation)
{
	writer->key_relation = relation < KEYS_RELATIONS ? relation + 1 : 0;
}

/* ---- the end ---- */

static void
put_header(const MipwWriter *writer, char *to, uint64 length, uint64 last,
		   uint64 database, uint8 encoding)
{
	memcpy(to, MIPW_MAGIC, 4);
	mipw_put_number(to + 4, MIPW_VERSION, 2);
	mipw_put_number(to + 6, 0, 1);
	mipw_put_number(to + 7, encoding, 1);
	mipw_put_number(to + 8, database, 8);
	mipw_put_number(to + 16, length, 8);
	mipw_put_number(to + 24, writer->first, 8);
	mipw_put_number(to + 32, last, 8);
	for (int i = 0; i < 4; i++)
		mipw_put_number(to + 40 + 4 * i, writer->counts[i], 4);
	mipw_put_number(to + 56, writer->nkeys, 4);
	mipw_put_number(to + 60, writer->nrelations, 4);
	mipw_put_number(to + 64, writer->relations.len, 4);
	mipw_put_number(to + 68, writer->changes.len, 4);
}

/* The changes, with room before and behind them for all else: a varlena of that length. */
static char *
move_changes(MipwWriter *writer, uint64 length)
{
	StringInfo	changes = &writer->changes;
	char	   *result = changes->data;
	uint64		end = VARHDRSZ + length - MIPW_TRAILER;

	if (changes->maxlen < VARHDRSZ + length)
		result = repalloc(result, VARHDRSZ + length);
	memmove(result + end - changes->len, result, changes->len);
	SET_VARSIZE(result, VARHDRSZ + length);
	return result;
}

struct varlena *
mipw_end(MipwWriter *writer, uint64 last, uint64 database, uint8 encoding)
{
	struct varlena *result;
	uint64		length;
	char	   *to;
	pg_crc32c	crc;

	Assert(last + 1 >= writer->first && last >= writer->number);
	mipw_settle_keys(writer);
	length = MIPW_HEADER + 9 * writer->nkeys + writer->relations.len + writer->changes.len +
		MIPW_TRAILER;
	if (length > MaxAllocSize - VARHDRSZ)
		refuse_length();
	result = (struct varlena *) move_changes(writer, length);
	to = VARDATA(result);
	put_header(writer, to, length, last, database, encoding);
	to += MIPW_HEADER;
	for (uint64 i = 0; i < writer->nkeys; i++)
	{
		mipw_put_number(to + 8 * i, writer->keys[i].hash, 8);
		mipw_put_number(to + 8 * writer->nkeys + i, writer->keys[i].mode | writer->keys[i].relation << 2, 1);
	}
	to += 9 * writer->nkeys;
	memcpy(to, writer->relations.data, writer->relations.len);
	to += writer->relations.len + writer->changes.len;
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, VARDATA(result), length - MIPW_TRAILER);
	FIN_CRC32C(crc);
	mipw_put_number(to, crc, 4);
	MemoryContextDelete(writer->context);
	return result;
}
