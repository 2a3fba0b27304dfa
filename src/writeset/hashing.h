/*-------------------------------------------------------------------------
 *
 * hashing.h
 *	  Hashes of values: equal ones have the same, in every copy of a database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_HASHING_H
#define MIP_WRITESET_HASHING_H

#include "common/hashfn.h"
#include "fmgr.h"
#include "port/pg_bitutils.h"
#include "utils/rel.h"

#include "writeset/values.h"

/* Any number; it has to be the same for ever. */
#define MIPW_SEED	UINT64CONST(0x4d49505753455431)

/* How values of a column of a unique index are hashed, or what refers to them */
typedef struct MipwHasher
{
	enum
	{
		MIPW_HASH_OTHERWISE,	/* by text, or with a cast */
		MIPW_HASH_INT4,			/* the function is that of integers, which is
								 * not called */
		MIPW_HASH_INT8,
		MIPW_HASH_CALL
	}			how;
	FmgrInfo	hash;			/* extended; unless by_text */
	FunctionCallInfo call;		/* of that; only the value is missing */
	bool		by_text;		/* of what the output function writes */
	MipwCodec	codec;			/* by_text */
	Oid			collation;
	Oid			type;			/* of the index's column, not of a domain */
	FmgrInfo	cast;			/* to that; fn_oid is 0 if none is needed */
	int			cast_nargs;
} MipwHasher;

/* What the values of the index's key column i are made of, whose version may matter */
extern Oid	mip_hashed_type(Relation index, int i);

/* Of the index's key column i, by its equality; false if there is no hashing it. */
extern bool mip_hasher_init(MipwHasher *hasher, Relation index, int i);

/* Changes it to one of values of that type; false if there is no way. */
extern bool mip_hasher_refer(MipwHasher *hasher, Oid type);

/* Of a value whose text is hashed, or what it is cast to. */
extern uint64 mip_hasher_hash_other(MipwHasher *hasher, Datum value);

/* What its hash function says of this value */
static inline uint64
mip_hasher_call(MipwHasher *hasher, Datum value)
{
	FunctionCallInfo call = hasher->call;
	Datum		result;

	call->args[0].value = value;
	call->isnull = false;
	result = FunctionCallInvoke(call);
	if (unlikely(call->isnull))
		elog(ERROR, "function %u returned NULL", hasher->hash.fn_oid);
	return DatumGetUInt64(result);
}

/*
 * hash_bytes_uint32_extended(value, MIPW_SEED), which begins with mixing the seed: what comes
 * of that is always the same.
 */
static inline uint64
mip_hash_uint32(uint32 value)
{
	uint32		a = 0x49d62183 + value;
	uint32		b = 0x0fcf53ff;
	uint32		c = 0x8c3b1dd0;

	c = (c ^ b) - pg_rotate_left32(b, 14);
	a = (a ^ c) - pg_rotate_left32(c, 11);
	b = (b ^ a) - pg_rotate_left32(a, 25);
	c = (c ^ b) - pg_rotate_left32(b, 16);
	a = (a ^ c) - pg_rotate_left32(c, 4);
	b = (b ^ a) - pg_rotate_left32(a, 14);
	c = (c ^ b) - pg_rotate_left32(b, 24);
	Assert(((uint64) b << 32 | c) == hash_bytes_uint32_extended(value, MIPW_SEED));
	return (uint64) b << 32 | c;
}

/* As hashint8extended(): what is an int4, too, has the hash of that. */
static inline uint64
mip_hash_int64(int64 value)
{
	uint32		high = (uint32) ((uint64) value >> 32);

	return mip_hash_uint32((uint32) value ^ (value >= 0 ? high : ~high));
}

static pg_attribute_always_inline uint64
mip_hasher_hash(MipwHasher *hasher, Datum value)
{
	switch (hasher->how)
	{
		case MIPW_HASH_INT4:
			return mip_hash_uint32(DatumGetUInt32(value));
		case MIPW_HASH_INT8:
			return mip_hash_int64(DatumGetInt64(value));
		case MIPW_HASH_CALL:
			return mip_hasher_call(hasher, value);
		default:
			return mip_hasher_hash_other(hasher, value);
	}
}

#endif							/* MIP_WRITESET_HASHING_H */
