/*-------------------------------------------------------------------------
 *
 * format_decode.c
 *	  Reading a writeset: bytes from outside.
 *
 * mipw_decode() looks at all of it before anybody sees a part: length and checksum
 * first, then every count, offset, bitmap and width. What reads changes afterwards
 * goes along the same bytes by the same functions and need not doubt them.
 *
 * Memory for relations is taken in proportion to the bytes that they have. Nothing
 * here raises an error: it can be built without a server (test/fuzz).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_crc32c.h"

#include "writeset/format.h"

/* What has not been read yet. Once something is wrong nothing is left. */
typedef struct MipwInput
{
	const uint8 *next;
	const uint8 *end;
	const char *wrong;			/* NULL while nothing is */

	/* of relations */
	MipwAlloc	alloc;
	char	   *names;			/* room for what is left: a name needs no more */
	char	  **sorted;			/* room for those of one relation */
} MipwInput;

static const struct
{
	const char *type;
	int			width;
}			widths[] =

{
	{"bigint", 8},
	{"boolean", 1},
	{"pg_catalog.bytea", MIPW_BYTES},
	{"pg_catalog.\"char\"", 1},
	{"pg_catalog.cid", 4},
	{"pg_catalog.date", 4},
	{"double precision", 8},
	{"integer", 4},
	{"pg_catalog.macaddr", 6},
	{"pg_catalog.macaddr8", 8},
	{"pg_catalog.oid", 4},
	{"pg_catalog.pg_lsn", 8},
	{"real", 4},
	{"smallint", 2},
	{"time with time zone", 12},
	{"time without time zone", 8},
	{"timestamp with time zone", 8},
	{"timestamp without time zone", 8},
	{"pg_catalog.uuid", 16},
	{"pg_catalog.xid", 4},
	{"pg_catalog.xid8", 8},
};

int
mipw_width(const char *type)
{
	for (size_t i = 0; i < lengthof(widths); i++)
		if (strcmp(widths[i].type, type) == 0)
			return widths[i].width;
	return MIPW_TEXT;
}

uint64
mipw_fnv(uint64 hash, const void *bytes, size_t length)
{
	const uint8 *p = bytes;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ p[i]) * UINT64CONST(1099511628211);
	return hash;
}

/* ---- parts ---- */

static MipwInput
input_of(const uint8 *start, const uint8 *end)
{
	MipwInput	in = {0};

	in.next = start;
	in.end = end;
	return in;
}

static void
fail(MipwInput *in, const char *wrong)
{
	if (in->wrong == NULL)
		in->wrong = wrong;
	in->next = in->end;
}

/* So many bytes; NULL, and nothing is left, if there are not. */
static const uint8 *
take(MipwInput *in, uint64 length)
{
	const uint8 *bytes = in->next;

	if (in->wrong != NULL || length > (uint64) (in->end - in->next))
	{
		fail(in, "something reaches beyond its end");
		return NULL;
	}
	in->next += length;
	return bytes;
}

static uint64
take_number(MipwInput *in, int width)
{
	const uint8 *bytes = take(in, width);

	return bytes ? mipw_get_number(bytes, width) : 0;
}

static uint64
take_varint(MipwInput *in)
{
	uint64		value = 0;

	for (int shift = 0; shift < 64; shift += 7)
	{
		uint8		byte = take_number(in, 1);

		/* the tenth byte has room for one bit; a last byte of 0 is not needed */
		if ((shift == 63 && byte > 1) || (shift > 0 && byte == 0))
			break;
		value |= (uint64) (byte & 0x7f) << shift;
		if (byte < 0x80)
			return in->wrong ? 0 : value;
	}
	fail(in, "a number is not written as it should be");
	return 0;
}

/* A name, as a string of C: its zero takes the place of its length. */
static char *
take_name(MipwInput *in)
{
	uint64		length = take_varint(in);
	const uint8 *bytes;
	char	   *name;

	if (in->wrong == NULL && (length == 0 || length > MIPW_MAX_NAME))
		fail(in, "a name is empty or too long");
	bytes = take(in, length);
	if (bytes && memchr(bytes, 0, length))
		fail(in, "there is a zero in a name");
	if (in->wrong)
		return NULL;
	name = in->names;
	in->names += length + 1;
	memcpy(name, bytes, length);
	name[length] = '\0';
	return name;
}

static bool
has_bit(const uint8 *bitmap, int i)
{
	return bitmap[i / 8] & (1 << (i % 8));
}

static const uint8 *
take_bitmap(MipwInput *in, int bits)
{
	const uint8 *bitmap = take(in, (bits + 7) / 8);

	if (bitmap && bits % 8 && bitmap[bits / 8] >> (bits % 8))
		fail(in, "a bitmap is longer than its columns");
	return in->wrong ? NULL : bitmap;
}

static void
take_value(MipwInput *in, const MipwColumn *column, MipwValue *value)
{
	uint64		length = column->width > 0 ? column->width : take_varint(in);

	value->data = take(in, length);
	value->length = value->data ? length : 0;
	if (value->data == NULL)
		return;
	if (column->width == MIPW_TEXT && memchr(value->data, 0, length))
		fail(in, "there is a zero in a text");
	if (column->width == 1 && column->type[0] == 'b' && value->data[0] > 1)
		fail(in, "a boolean is neither false nor true");
}

/* ---- relations ---- */

bool
mipw_names_are_unique(const MipwRelation *relation, char **room)
{
	for (int i = 0; i < relation->ncolumns; i++)
		room[i] = relation->columns[i].name;
	qsort(room, relation->ncolumns, sizeof(char *), pg_qsort_strcmp);
	for (int i = 1; i < relation->ncolumns; i++)
		if (strcmp(room[i - 1], room[i]) == 0)
			return false;
	return true;
}

static void
take_column(MipwInput *in, MipwColumn *column)
{
	column->flags = take_number(in, 1);
	if (column->flags & ~(MIPW_IDENTITY | MIPW_GENERATED | MIPW_EXACT))
		fail(in, "a column has unknown flags");
	column->name = take_name(in);
	column->type = take_name(in);
	if (in->wrong == NULL)
		column->width = mipw_width(column->type);
}

static void
check_identity(MipwInput *in, MipwRelation *relation)
{
	for (int i = 0; i < relation->ncolumns; i++)
	{
		uint8		flags = relation->columns[i].flags;

		if (flags & MIPW_IDENTITY)
			relation->identity[relation->nidentity++] = i;
		if (relation->whole && !(flags & MIPW_IDENTITY) != !!(flags & MIPW_GENERATED))
			fail(in, "the whole row is not the identity");
		if (flags & MIPW_IDENTITY && flags & MIPW_GENERATED)
			fail(in, "a generated column is of the identity");
	}
	if (!relation->whole && relation->nidentity == 0)
		fail(in, "an identity has no columns");
}

static void
take_relation(MipwInput *in, MipwRelation *relation)
{
	const uint8 *start;
	uint8		kind;
	uint64		ncolumns;

	memset(relation, 0, sizeof(MipwRelation));
	relation->id = take_number(in, 4);
	start = in->next;
	kind = take_number(in, 1);
	if (kind != 'k' && kind != 'w')
		fail(in, "a relation has an unknown kind of identity");
	relation->whole = kind == 'w';
	relation->schema = take_name(in);
	relation->name = take_name(in);
	ncolumns = take_varint(in);
	/* each has five bytes at least */
	if (ncolumns > MIPW_MAX_COLUMNS || ncolumns > (in->end - in->next) / 5)
		fail(in, "a relation has too many columns");
	if (in->wrong)
		return;
	relation->ncolumns = ncolumns;
	relation->columns = in->alloc(ncolumns * sizeof(MipwColumn) + 1);
	relation->identity = in->alloc(ncolumns * sizeof(int) + 1);
	for (int i = 0; i < relation->ncolumns && !in->wrong; i++)
		take_column(in, &relation->columns[i]);
	if (in->wrong)
		return;
	check_identity(in, relation);
	if (!mipw_names_are_unique(relation, in->sorted))
		fail(in, "a relation has two columns of one name");
	relation->fingerprint = mipw_fnv(MIPW_FNV, start, in->next - start);
	if (take_number(in, 8) != relation->fingerprint)
		fail(in, "a relation's fingerprint is wrong");
}

static void
take_relations(MipwInput *in, MipwSet *set)
{
	/* each has 18 bytes at least */
	if (set->nrelations > (in->end - in->next) / 18)
		fail(in, "there are fewer relations than it says");
	if (in->wrong)
		return;
	set->relations = in->alloc(set->nrelations * sizeof(MipwRelation) + 1);
	in->names = in->alloc(in->end - in->next + 1);
	in->sorted = in->alloc(MIPW_MAX_COLUMNS * sizeof(char *));
	for (uint32 i = 0; i < set->nrelations && !in->wrong; i++)
		take_relation(in, &set->relations[i]);
	if (in->wrong == NULL && in->next != in->end)
		fail(in, "there are more relations than it says");
}

/* ---- changes ---- */

static void
take_identity(MipwInput *in, const MipwRelation *relation, MipwValue *values)
{
	const uint8 *nulls = take_bitmap(in, relation->nidentity);

	for (int i = 0; i < relation->nidentity && !in->wrong; i++)
	{
		MipwValue	value = {0};

		value.there = true;
		value.null = has_bit(nulls, i);
		if (!value.null)
			take_value(in, &relation->columns[relation->identity[i]], &value);
		if (values)
			values[i] = value;
	}
}

/* The columns of the row that are in `bitmap`, or, if it is NULL, all. */
static void
take_row(MipwInput *in, const MipwRelation *relation, const uint8 *bitmap,
		 MipwValue *values)
{
	const uint8 *nulls = take_bitmap(in, relation->ncolumns);

	for (int i = 0; i < relation->ncolumns && !in->wrong; i++)
	{
		MipwValue	value = {0};

		value.there = bitmap == NULL || has_bit(bitmap, i);
		value.null = has_bit(nulls, i);
		if (value.null && !value.there)
			fail(in, "a column that has not changed is null");
		else if (value.there && !value.null)
			take_value(in, &relation->columns[i], &value);
		if (values)
			values[i] = value;
	}
}

/* A body, of which `identity` and `row` get the values, where they are not NULL. */
static void
take_body(MipwInput *in, const MipwChange *change, MipwValue *identity, MipwValue *row)
{
	const MipwRelation *relation = change->relation;
	const uint8 *bitmap = NULL;

	if (change->op == 'U' || change->op == 'D')
		take_identity(in, relation, identity);
	if (change->op == 'U')
		bitmap = take_bitmap(in, relation->ncolumns);
	if ((change->op == 'U' || change->op == 'I') && !in->wrong)
		take_row(in, relation, bitmap, row);
	if (in->wrong == NULL && in->next != in->end)
		fail(in, "a change is longer than its values");
}

static void
take_change(MipwInput *in, MipwCursor *cursor, MipwChange *change)
{
	uint8		op = take_number(in, 1);
	uint64		skip = op & MIPW_SKIP ? take_varint(in) : 0;
	uint64		relation = take_varint(in);
	uint64		length = take_varint(in);

	change->op = op & ~MIPW_SKIP;
	if (change->op != 'I' && change->op != 'U' && change->op != 'D' && change->op != 'T')
		fail(in, "a change is none of I, U, D and T");
	if (relation >= cursor->set->nrelations)
		fail(in, "a change is of no relation");
	change->body = take(in, length);
	/* without overflow: a number is at most `last` */
	if (cursor->number >= cursor->set->last ||
		(op & MIPW_SKIP && skip >= cursor->set->last - cursor->number - 1))
		fail(in, "a change has a number that is too great");
	if (in->wrong)
		return;
	change->body_end = in->next;
	change->nrelation = relation;
	change->relation = &cursor->set->relations[relation];
	change->number = cursor->number + 1 + (op & MIPW_SKIP ? skip + 1 : 0);
	cursor->number = change->number;
}

static void
take_changes(MipwInput *in, MipwSet *set)
{
	MipwCursor	cursor = mipw_changes(set);
	static const char ops[] = "IUDT";
	uint64		counts[4] = {0};

	while (in->next < in->end && !in->wrong)
	{
		MipwChange	change;
		MipwInput	body;

		take_change(in, &cursor, &change);
		if (in->wrong)
			return;
		body = input_of(change.body, change.body_end);
		take_body(&body, &change, NULL, NULL);
		if (body.wrong)
			fail(in, body.wrong);
		counts[strchr(ops, change.op) - ops]++;
	}
	if (counts[0] != set->inserted || counts[1] != set->updated ||
		counts[2] != set->deleted || counts[3] != set->truncated)
		fail(in, "there are not as many changes as it says");
}

/* ---- the whole ---- */

static const char *
check_keys(const MipwSet *set)
{
	for (uint32 i = 0; i < set->nkeys; i++)
	{
		if (i > 0 && mipw_hash(set, i - 1) >= mipw_hash(set, i))
			return "its keys are not in order";
		if (mipw_mode(set, i) < MIPW_R)
			return "a key has an unknown mode";
		if (set->modes[i] >> 2 > set->nrelations)
			return "a key is of a relation that is not there";
	}
	return NULL;
}

/* Length and checksum, before anything is believed. */
static const char *
check_envelope(const uint8 *bytes, size_t length)
{
	pg_crc32c	crc;

	if (length < MIPW_HEADER + MIPW_TRAILER || memcmp(bytes, MIPW_MAGIC, 4) != 0)
		return "it does not begin as a writeset does";
	if (mipw_get_number(bytes + 4, 2) != MIPW_VERSION)
		return "its version is unknown";
	if (mipw_get_number(bytes + 16, 8) != length)
		return "its length is wrong";
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, bytes, length - MIPW_TRAILER);
	FIN_CRC32C(crc);
	if (mipw_get_number(bytes + length - MIPW_TRAILER, 4) != crc)
		return "its checksum is wrong";
	return NULL;
}

/* Fills what the header says; false if the parts are not as long as the whole. */
static bool
read_header(const uint8 *bytes, size_t length, MipwSet *set)
{
	uint64		relations = mipw_get_number(bytes + 64, 4);
	uint64		changes = mipw_get_number(bytes + 68, 4);

	memset(set, 0, sizeof(MipwSet));
	set->bytes = bytes;
	set->length = length;
	set->encoding = bytes[7];
	set->database = mipw_get_number(bytes + 8, 8);
	set->first = mipw_get_number(bytes + 24, 8);
	set->last = mipw_get_number(bytes + 32, 8);
	set->inserted = mipw_get_number(bytes + 40, 4);
	set->updated = mipw_get_number(bytes + 44, 4);
	set->deleted = mipw_get_number(bytes + 48, 4);
	set->truncated = mipw_get_number(bytes + 52, 4);
	set->nkeys = mipw_get_number(bytes + 56, 4);
	set->nrelations = mipw_get_number(bytes + 60, 4);
	if (MIPW_HEADER + 9 * (uint64) set->nkeys + relations + changes + MIPW_TRAILER != length)
		return false;
	set->hashes = bytes + MIPW_HEADER;
	set->modes = set->hashes + 8 * (size_t) set->nkeys;
	set->changes = set->modes + set->nkeys + relations;
	set->changes_end = set->changes + changes;
	return true;
}

const char *
mipw_decode(const void *bytes, size_t length, MipwAlloc alloc, MipwSet *set)
{
	const char *wrong = check_envelope(bytes, length);
	MipwInput	in;

	if (wrong)
		return wrong;
	if (!read_header(bytes, length, set))
		return "its parts are not as long as the whole";
	if (((const uint8 *) bytes)[6] != 0)
		return "it has unknown flags";
	/* numbers are bigint in SQL */
	if (set->first < 1 || set->last < set->first - 1 || set->last > PG_INT64_MAX)
		return "its first or last number is wrong";
	if ((wrong = check_keys(set)) != NULL)
		return wrong;
	in = input_of(set->modes + set->nkeys, set->changes);
	in.alloc = alloc;
	take_relations(&in, set);
	if (in.wrong)
		return in.wrong;
	in = input_of(set->changes, set->changes_end);
	take_changes(&in, set);
	return in.wrong;
}

uint64
mipw_hash(const MipwSet *set, uint32 i)
{
	return mipw_get_number(set->hashes + 8 * (size_t) i, 8);
}

bool
mipw_conflict(const MipwSet *a, const MipwSet *b)
{
	uint32		i = 0;
	uint32		j = 0;

	while (i < a->nkeys && j < b->nkeys)
	{
		uint64		x = mipw_hash(a, i);
		uint64		y = mipw_hash(b, j);

		if (x == y && MIPW_CONFLICT(mipw_mode(a, i), mipw_mode(b, j)))
			return true;
		i += x <= y;
		j += y <= x;
	}
	return false;
}

MipwCursor
mipw_changes(const MipwSet *set)
{
	MipwCursor	cursor = {0};

	cursor.set = set;
	cursor.next = set->changes;
	cursor.number = set->first - 1;
	return cursor;
}

bool
mipw_next(MipwCursor *cursor, MipwChange *change)
{
	MipwInput	in = input_of(cursor->next, cursor->set->changes_end);

	if (in.next == in.end)
		return false;
	take_change(&in, cursor, change);
	cursor->next = in.next;
	return true;
}

void
mipw_identity(const MipwChange *change, MipwValue *values)
{
	MipwInput	in = input_of(change->body, change->body_end);

	take_identity(&in, change->relation, values);
}

void
mipw_row(const MipwChange *change, MipwValue *values)
{
	MipwInput	in = input_of(change->body, change->body_end);

	take_body(&in, change, NULL, values);
}
