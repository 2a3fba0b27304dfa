/*-------------------------------------------------------------------------
 *
 * siphash.c
 *	  SipHash-2-4, a keyed hash.
 *
 * As in: J.-P. Aumasson, D. J. Bernstein, SipHash: a fast short-input PRF, 2012. Its
 * names are used here.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "port/pg_bswap.h"

#include "base/compat.h"
#include "base/siphash.h"

PG_FUNCTION_INFO_V1(mip_siphash_sql);

#define C_ROUNDS 2
#define D_ROUNDS 4

static inline uint64
rotated(uint64 x, int bits)
{
	return (x << bits) | (x >> (64 - bits));
}

static inline void
sip_rounds(uint64 *v, int n)
{
	for (int i = 0; i < n; i++)
	{
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotated(v[1], 13) ^ v[0];
		v[3] = rotated(v[3], 16) ^ v[2];
		v[0] = rotated(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotated(v[1], 17) ^ v[2];
		v[3] = rotated(v[3], 21) ^ v[0];
		v[2] = rotated(v[2], 32);
	}
}

/* Little-endian, wherever it is */
static inline uint64
word_at(const uint8 *bytes)
{
	uint64		word;

	memcpy(&word, bytes, sizeof(word));
#ifdef WORDS_BIGENDIAN
	word = pg_bswap64(word);
#endif
	return word;
}

static inline void
compress(uint64 *v, uint64 m)
{
	v[3] ^= m;
	sip_rounds(v, C_ROUNDS);
	v[0] ^= m;
}

uint64
mip_siphash(const uint8 *key, const uint8 *input, size_t length)
{
	uint64		k0 = word_at(key);
	uint64		k1 = word_at(key + 8);
	uint64		v[] = {
		k0 ^ UINT64CONST(0x736f6d6570736575),
		k1 ^ UINT64CONST(0x646f72616e646f6d),
		k0 ^ UINT64CONST(0x6c7967656e657261),
		k1 ^ UINT64CONST(0x7465646279746573)
	};
	uint8		last[8] = {0};
	size_t		whole = length - length % 8;

	for (size_t i = 0; i < whole; i += 8)
		compress(v, word_at(input + i));
	memcpy(last, input + whole, length - whole);
	last[7] = (uint8) length;
	compress(v, word_at(last));
	v[2] ^= 0xff;
	sip_rounds(v, D_ROUNDS);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* (key bytea, input bytea) RETURNS bigint, for the tests, which create it */
Datum
mip_siphash_sql(PG_FUNCTION_ARGS)
{
	bytea	   *key = PG_GETARG_BYTEA_PP(0);
	bytea	   *input = PG_GETARG_BYTEA_PP(1);

	if (VARSIZE_ANY_EXHDR(key) != MIP_SIPHASH_KEY)
		elog(ERROR, "pg_mip: a key has %d bytes", MIP_SIPHASH_KEY);
	PG_RETURN_INT64(mip_siphash((uint8 *) VARDATA_ANY(key), (uint8 *) VARDATA_ANY(input),
								VARSIZE_ANY_EXHDR(input)));
}
