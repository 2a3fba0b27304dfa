/*-------------------------------------------------------------------------
 *
 * places_store.c
 *	  Places of changes, as they are stored with a prepared instance.
 *
 * The tables, with their keys, then for each change a byte, with the operation, and in
 * what it differs from the one before; numbers have seven bits a byte. So a change takes
 * five bytes or so. A 0 comes first: earlier versions began with the number of tables, and
 * stored no keys.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "tableam/places_store.h"

/* A row has to hold them, beside texts and links. */
#define STORED_MAX			(MaxAllocSize / 2)

#define OTHER_TABLE			0x04	/* beside the operation: not that before */

/* Beside a key's OID: it was not valid. Earlier versions read the OID alone, and wrote it. */
#define NOT_VALID			(UINT64CONST(1) << 32)

#define READ_AT_A_TIME		256

static bool
has_old(const MipPlace *place)
{
	return place->op == MIP_PLACE_UPDATE || place->op == MIP_PLACE_DELETE;
}

static bool
has_new(const MipPlace *place)
{
	return place->op == MIP_PLACE_INSERT || place->op == MIP_PLACE_UPDATE;
}

/* ---- storing ---- */

static void
put_number(StringInfo out, uint64 number)
{
	for (; number >= 0x80; number >>= 7)
		appendStringInfoCharMacro(out, (char) (0x80 | (number & 0x7f)));
	appendStringInfoCharMacro(out, (char) number);
}

/* Differences are small, of either sign. */
static void
put_difference(StringInfo out, int64 from, int64 to)
{
	int64		difference = to - from;

	put_number(out, ((uint64) difference << 1) ^ (uint64) (difference >> 63));
}

static void
put_tid(StringInfo out, ItemPointerData *before, const ItemPointerData *tid)
{
	put_difference(out, ItemPointerGetBlockNumberNoCheck(before), ItemPointerGetBlockNumber(tid));
	put_difference(out, ItemPointerGetOffsetNumberNoCheck(before), ItemPointerGetOffsetNumber(tid));
	*before = *tid;
}

/* *before: of the last one that there was of each */
static void
put_place(StringInfo out, MipPlace *before, const MipPlace *place)
{
	bool		other = place->file != before->file;

	appendStringInfoCharMacro(out, (char) (place->op | (other ? OTHER_TABLE : 0)));
	if (other)
		put_number(out, place->file);
	put_number(out, place->number - before->number);
	if (has_old(place))
		put_tid(out, &before->old, &place->old);
	if (has_new(place))
		put_tid(out, &before->new, &place->new);
	before->file = place->file;
	before->number = place->number;
}

static void
start(MipPlace *before)
{
	memset(before, 0, sizeof(MipPlace));
}

static void
put_key(StringInfo out, const MipPlaceKey *key)
{
	put_number(out, key->oid | (key->valid ? 0 : NOT_VALID));
	put_number(out, key->topmost);
}

static void
put_keys(StringInfo out, const MipPlaceKeys *keys)
{
	put_number(out, keys->topmost);
	put_number(out, keys->identity);
	put_number(out, keys->n);
	put_number(out, keys->nreferences);
	for (int i = 0; i < keys->n + keys->nreferences; i++)
		put_key(out, &keys->keys[i]);
}

bytea *
mip_places_store(MipPlaces *places)
{
	StringInfoData out;
	MipPlace	before;
	MipPlace	some[READ_AT_A_TIME];
	int			n;

	start(&before);
	initStringInfo(&out);
	appendStringInfoSpaces(&out, VARHDRSZ);
	put_number(&out, 0);
	put_number(&out, mip_places_files(places));
	for (int i = 0; i < mip_places_files(places); i++)
	{
		MipPlaceFile file = mip_places_file(places, i);

		put_number(&out, file.relid);
		put_number(&out, file.filenumber);
		put_keys(&out, mip_places_keys(places, i));
	}
	for (int64 at = 0; at < mip_places_count(places); at += n)
	{
		n = mip_places_read(places, at, some, READ_AT_A_TIME);
		for (int i = 0; i < n; i++)
			put_place(&out, &before, &some[i]);
		if (out.len > STORED_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("an instance with captured changes cannot have so many of them"),
					 errdetail("Their places would take more than %zu MB.", STORED_MAX >> 20),
					 errhint("Set mip.capture_writeset to off for this request, or make it several.")));
	}
	SET_VARSIZE(out.data, out.len);
	return (bytea *) out.data;
}

/* ---- loading ---- */

typedef struct Stored
{
	const unsigned char *at;
	const unsigned char *end;
} Stored;

pg_noreturn static void
mistaken(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("pg_mip: the places of an instance's changes are not what was stored")));
}

static uint8
get_byte(Stored *in)
{
	if (in->at == in->end)
		mistaken();
	return *in->at++;
}

static uint64
get_number(Stored *in)
{
	uint64		number = 0;
	uint8		byte;

	for (int shift = 0; shift < 64; shift += 7)
	{
		byte = get_byte(in);
		number |= (uint64) (byte & 0x7f) << shift;
		if (byte < 0x80)
			return number;
	}
	mistaken();
}

static int64
get_difference(Stored *in)
{
	uint64		number = get_number(in);

	return (int64) (number >> 1) ^ -(int64) (number & 1);
}

static void
get_tid(Stored *in, ItemPointerData *tid)
{
	int64		block = ItemPointerGetBlockNumberNoCheck(tid) + get_difference(in);
	int64		offset = ItemPointerGetOffsetNumberNoCheck(tid) + get_difference(in);

	if (block < 0 || block > MaxBlockNumber || offset < 1 || offset > PG_UINT16_MAX)
		mistaken();
	ItemPointerSet(tid, block, offset);
}

/* *place: the one before */
static void
get_place(Stored *in, MipPlaces *places, MipPlace *place)
{
	uint8		what = get_byte(in);

	place->op = what & ~OTHER_TABLE;
	if (what >= 2 * OTHER_TABLE)
		mistaken();
	if (what & OTHER_TABLE)
		place->file = get_number(in);
	if (place->file >= mip_places_files(places))
		mistaken();
	place->number += get_number(in);
	if (has_old(place))
		get_tid(in, &place->old);
	if (has_new(place))
		get_tid(in, &place->new);
}

static MipPlaceKey
get_key(Stored *in)
{
	uint64		oid = get_number(in);
	Oid			topmost = get_number(in);
	MipPlaceKey key = {(Oid) oid, topmost, (oid & NOT_VALID) == 0};

	return key;
}

static MipPlaceKeys *
get_keys(Stored *in)
{
	Oid			topmost = get_number(in);
	Oid			identity = get_number(in);
	uint64		n = get_number(in);
	uint64		nreferences = get_number(in);
	MipPlaceKeys *keys;

	if (n > in->end - in->at || nreferences > in->end - in->at)
		mistaken();
	keys = palloc(mip_place_keys_size(n + nreferences));
	keys->topmost = topmost;
	keys->identity = identity;
	keys->n = n;
	keys->nreferences = nreferences;
	for (int i = 0; i < n + nreferences; i++)
		keys->keys[i] = get_key(in);
	return keys;
}

MipPlaces *
mip_places_load(const bytea *stored)
{
	MipPlaces  *places = mip_places_create();
	Stored		in = {
		.at = (const unsigned char *) VARDATA_ANY(stored),
		.end = (const unsigned char *) VARDATA_ANY(stored) + VARSIZE_ANY_EXHDR(stored),
	};
	MipPlace	place;
	uint64		n = get_number(&in);
	bool		keyed = n == 0 && in.at < in.end;

	start(&place);
	for (n = keyed ? get_number(&in) : n; n > 0; n--)
	{
		MipPlaceFile file;

		file.relid = get_number(&in);
		file.filenumber = get_number(&in);
		mip_places_add_file(places, file, keyed ? get_keys(&in) : NULL);
	}
	while (in.at < in.end)
	{
		get_place(&in, places, &place);
		mip_places_add(places, &place);
	}
	return places;
}
