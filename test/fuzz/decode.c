/*-------------------------------------------------------------------------
 *
 * decode.c
 *	  Fuzzing the reader of writesets (src/writeset/format_decode.c), built apart.
 *
 * With libFuzzer, or, with -DALONE, with a simple mutator of its own:
 *
 *	  decode SECONDS SEED FILE...
 *
 * Whatever is mutated gets the right length, checksum and fingerprints again, most of
 * the time: what is wrong there is refused before anything else is looked at. Of what
 * the reader takes for a writeset all is read, and has to lie within it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "port/pg_crc32c.h"

#include "writeset/format.h"

/* Memory of one input */
static void **blocks;
static size_t nblocks;
static size_t room;

static void *
remember(size_t size)
{
	if (nblocks == room)
		blocks = realloc(blocks, (room = room * 2 + 64) * sizeof(void *));
	return blocks[nblocks++] = malloc(size);
}

static void
forget(void)
{
	while (nblocks > 0)
		free(blocks[--nblocks]);
}

static void
require(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

/* ---- reading all of it ---- */

static volatile uint64 sum;

static void
check_value(const MipwSet *set, const MipwColumn *column, const MipwValue *value)
{
	if (!value->there || value->null)
		return;
	require(value->data >= set->changes && value->data + value->length <= set->changes_end,
			"a value is outside of the changes");
	require(column->width <= 0 || value->length == column->width, "a value has another width");
	for (uint32 i = 0; i < value->length; i++)
		sum += value->data[i];
}

static void
check_change(const MipwSet *set, const MipwChange *change)
{
	const MipwRelation *relation = change->relation;
	MipwValue  *identity = remember(relation->nidentity * sizeof(MipwValue) + 1);
	MipwValue  *row = remember(relation->ncolumns * sizeof(MipwValue) + 1);

	require(change->number >= set->first && change->number <= set->last, "number");
	if (change->op == 'U' || change->op == 'D')
	{
		mipw_identity(change, identity);
		for (int i = 0; i < relation->nidentity; i++)
			check_value(set, &relation->columns[relation->identity[i]], &identity[i]);
	}
	if (change->op == 'I' || change->op == 'U')
	{
		mipw_row(change, row);
		for (int i = 0; i < relation->ncolumns; i++)
			check_value(set, &relation->columns[i], &row[i]);
	}
}

static void
check_relation(const MipwRelation *relation)
{
	sum += strlen(relation->schema) + strlen(relation->name);
	for (int i = 0; i < relation->ncolumns; i++)
	{
		sum += strlen(relation->columns[i].name) + strlen(relation->columns[i].type);
		require(relation->columns[i].width == mipw_width(relation->columns[i].type), "width");
	}
	for (int i = 0; i < relation->nidentity; i++)
		require(relation->identity[i] < relation->ncolumns, "identity");
}

/* Was it a writeset? */
static bool
try_bytes(const uint8 *bytes, size_t length)
{
	MipwSet		set;
	MipwCursor	cursor;
	MipwChange	change;
	uint64		changes = 0;
	bool		good = mipw_decode(bytes, length, remember, &set) == NULL;

	if (good)
	{
		for (uint32 i = 0; i < set.nkeys; i++)
			{
				const MipwRelation *of = mipw_key_relation(&set, i);

				sum += mipw_hash(&set, i) + mipw_mode(&set, i) + (of ? of->fingerprint : 0);
			}
		for (uint32 i = 0; i < set.nrelations; i++)
			check_relation(&set.relations[i]);
		for (cursor = mipw_changes(&set); mipw_next(&cursor, &change); changes++)
			check_change(&set, &change);
		require(changes == (uint64) set.inserted + set.updated + set.deleted + set.truncated,
				"the number of changes");
	}
	forget();
	return good;
}

/* ---- making it look like one ---- */

static void
put(uint8 *to, uint64 value, int width)
{
	for (int i = 0; i < width; i++)
		to[i] = value >> (8 * i);
}

static uint64
get(const uint8 *from, int width)
{
	uint64		value = 0;

	for (int i = 0; i < width; i++)
		value |= (uint64) from[i] << (8 * i);
	return value;
}

static bool
skip(const uint8 **p, const uint8 *end, uint64 n)
{
	if (n > (uint64) (end - *p))
		return false;
	*p += n;
	return true;
}

static bool
varint(const uint8 **p, const uint8 *end, uint64 *value)
{
	*value = 0;
	for (int shift = 0; shift < 63 && *p < end; shift += 7)
	{
		uint8		byte = *(*p)++;

		*value |= (uint64) (byte & 0x7f) << shift;
		if (byte < 0x80)
			return true;
	}
	return false;
}

static bool
string(const uint8 **p, const uint8 *end)
{
	uint64		length;

	return varint(p, end, &length) && skip(p, end, length);
}

static void
fix_fingerprints(uint8 *bytes, size_t length)
{
	uint64		start = MIPW_HEADER + 9 * get(bytes + 56, 4);
	const uint8 *p = bytes + start;
	const uint8 *end = p + get(bytes + 64, 4);

	if (start > length || get(bytes + 64, 4) > length - start)
		return;
	for (uint64 i = get(bytes + 60, 4); i > 0; i--)
	{
		const uint8 *from = p + 4;
		uint64		ncolumns;

		if (!skip(&p, end, 5) || !string(&p, end) || !string(&p, end) ||
			!varint(&p, end, &ncolumns))
			return;
		for (; ncolumns > 0; ncolumns--)
			if (!skip(&p, end, 1) || !string(&p, end) || !string(&p, end))
				return;
		if (end - p < 8)
			return;
		put((uint8 *) p, mipw_fnv(MIPW_FNV, from, p - from), 8);
		p += 8;
	}
}

static void
fix(uint8 *bytes, size_t length)
{
	pg_crc32c	crc;

	if (length < MIPW_HEADER + MIPW_TRAILER)
		return;
	memcpy(bytes, MIPW_MAGIC, 4);
	put(bytes + 4, MIPW_VERSION, 2);
	put(bytes + 16, length, 8);
	fix_fingerprints(bytes, length);
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, bytes, length - MIPW_TRAILER);
	FIN_CRC32C(crc);
	put(bytes + length - MIPW_TRAILER, crc, 4);
}

#ifndef ALONE

extern size_t LLVMFuzzerMutate(uint8 *bytes, size_t length, size_t most);

int			LLVMFuzzerTestOneInput(const uint8 *bytes, size_t length);
size_t		LLVMFuzzerCustomMutator(uint8 *bytes, size_t length, size_t most, unsigned seed);

int
LLVMFuzzerTestOneInput(const uint8 *bytes, size_t length)
{
	(void) try_bytes(bytes, length);
	return 0;
}

/* Grown or shrunk in C, the header should say so, or nothing would be read. */
size_t
LLVMFuzzerCustomMutator(uint8 *bytes, size_t length, size_t most, unsigned seed)
{
	size_t		now = LLVMFuzzerMutate(bytes, length, most);

	if (now >= MIPW_HEADER + MIPW_TRAILER && seed % 2)
		put(bytes + 68, get(bytes + 68, 4) + (now - length), 4);
	else if (now >= MIPW_HEADER + MIPW_TRAILER && seed % 16 == 0)
		put(bytes + 64, get(bytes + 64, 4) + (now - length), 4);
	if (seed % 32)
		fix(bytes, now);
	return now;
}

#else

static uint64 state;

static uint64
number(uint64 below)
{
	state = state * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (state >> 33) % below;
}

/* One change somewhere: of a bit, of a byte, of a stretch's place or length */
static size_t
mutate(uint8 *bytes, size_t length, size_t most)
{
	size_t		at = number(length);
	size_t		n = 1 + number(Min(length - at, 16));

	switch (number(5))
	{
		case 0:
			bytes[at] ^= 1 << number(8);
			return length;
		case 1:
			bytes[at] = number(2) ? number(256) : "\x00\x01\x7f\x80\xff"[number(5)];
			return length;
		case 2:
			memmove(bytes + number(length - n + 1), bytes + at, n);
			return length;
		case 3:
			memmove(bytes + at, bytes + at + n, length - at - n);
			return length - n;
		default:
			if (length + n > most)
				return length;
			memmove(bytes + at + n, bytes + at, length - at);
			return length + n;
	}
}

static void
fuzz(const uint8 *seed, size_t length, uint64 *tried, uint64 *taken)
{
	size_t		most = length + 64;
	uint8	   *bytes = malloc(most);
	uint8	   *exact;
	size_t		now = length;

	memcpy(bytes, seed, length);
	for (uint64 i = 1 + number(6); i > 0 && now > 1; i--)
		now = mutate(bytes, now, most);
	if (now >= MIPW_HEADER + MIPW_TRAILER && now != length && number(4))
	{
		int			part = number(4) ? 68 : 64;

		put(bytes + part, get(bytes + part, 4) + (now - length), 4);
	}
	if (number(32))
		fix(bytes, now);
	/* as long as it is, so that reading beyond is noticed */
	exact = malloc(now);
	memcpy(exact, bytes, now);
	*taken += try_bytes(exact, now);
	++*tried;
	free(exact);
	free(bytes);
}

static uint8 *
read_file(const char *name, size_t *length)
{
	FILE	   *file = fopen(name, "rb");
	uint8	   *bytes = malloc(1024 * 1024);

	require(file != NULL, "a file cannot be read");
	*length = fread(bytes, 1, 1024 * 1024, file);
	fclose(file);
	return bytes;
}

int
main(int argc, char **argv)
{
	time_t		end = time(NULL) + atoi(argv[1]);
	int			nseeds = argc - 3;
	uint8	  **seeds = malloc(nseeds * sizeof(uint8 *));
	size_t	   *lengths = malloc(nseeds * sizeof(size_t));
	uint64		tried = 0;
	uint64		taken = 0;

	require(nseeds > 0, "usage: decode SECONDS SEED FILE...");
	state = strtoull(argv[2], NULL, 10);
	for (int i = 0; i < nseeds; i++)
	{
		seeds[i] = read_file(argv[i + 3], &lengths[i]);
		require(try_bytes(seeds[i], lengths[i]), "a seed is no writeset");
	}
	while (time(NULL) < end)
		for (int i = 0; i < 1000; i++)
		{
			int			seed = number(nseeds);

			fuzz(seeds[seed], lengths[seed], &tried, &taken);
		}
	printf(UINT64_FORMAT " tried, " UINT64_FORMAT " of them writesets\n", tried, taken);
	return 0;
}

#endif
