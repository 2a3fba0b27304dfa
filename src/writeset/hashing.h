/*-------------------------------------------------------------------------
 *
 * hashing.h
 *	  Hashes of values: equal ones have the same, in every copy of a database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_HASHING_H
#define MIP_WRITESET_HASHING_H

#include "fmgr.h"
#include "utils/rel.h"

#include "writeset/values.h"

/* How values of a column of a unique index are hashed, or what refers to them */
typedef struct MipwHasher
{
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

static inline uint64
mip_hasher_hash(MipwHasher *hasher, Datum value)
{
	if (unlikely(hasher->by_text || OidIsValid(hasher->cast.fn_oid)))
		return mip_hasher_hash_other(hasher, value);
	return mip_hasher_call(hasher, value);
}

#endif							/* MIP_WRITESET_HASHING_H */
