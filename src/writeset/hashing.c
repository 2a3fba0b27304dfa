/*-------------------------------------------------------------------------
 *
 * hashing.c
 *	  Hashes of values: equal ones have the same, in every copy of a database.
 *
 * Equal is what the unique index takes for equal: 1.0 and 1.00, -0 and 0, texts by a
 * nondeterministic collation. So the type's own extended hash function is called, of
 * the operator family that has the index's equality. Where that would hash an OID,
 * whose meaning is another one elsewhere, the text is hashed: of enums and reg*, and
 * arrays of them, equal values have equal texts. Of composites and ranges around them
 * that is not so; these, and types without such a function, are not hashed at all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/hash.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/transam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/date.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "writeset/hashing.h"
#include "writeset/types.h"

/* ---- types ---- */

/* Is a value of it one OID, by which it is hashed? */
static bool
is_oid(Oid type)
{
	return mip_names_objects(type) || get_typtype(type) == TYPTYPE_ENUM;
}

static bool
visit_oid(Oid type, HTAB *seen)
{
	check_stack_depth();
	return is_oid(type);
}

static bool
holds_oids(Oid type)
{
	HTAB	   *seen;
	bool		result;

	type = mip_innermost_type(type);
	if (get_typtype(type) != TYPTYPE_COMPOSITE)
		return is_oid(type);
	seen = mip_types_seen();
	result = mip_any_type(type, seen, visit_oid);
	hash_destroy(seen);
	return result;
}

/* Its OIDs are hashed by text: is it nothing but one, or an array of such? */
static bool
is_oids(Oid type)
{
	Oid			element = get_element_type(type);

	return is_oid(OidIsValid(element) ? getBaseType(element) : type);
}

/* ---- functions ---- */

/* The extended hash function of a hash operator family that has this equality */
static Oid
function_of_operator(Oid eqop)
{
	CatCList   *list = SearchSysCacheList1(AMOPOPID, ObjectIdGetDatum(eqop));
	Oid			result = InvalidOid;

	for (int i = 0; i < list->n_members && !OidIsValid(result); i++)
	{
		Form_pg_amop amop = (Form_pg_amop) GETSTRUCT(&list->members[i]->tuple);

		if (amop->amopmethod == HASH_AM_OID && amop->amopstrategy == HTEqualStrategyNumber &&
			amop->amoplefttype == amop->amoprighttype)
			result = get_opfamily_proc(amop->amopfamily, amop->amoplefttype,
									   amop->amoplefttype, HASHEXTENDED_PROC);
	}
	ReleaseSysCacheList(list);
	return result;
}

/* Of values that `eqop` compares; the default one knows about elements and columns. */
static Oid
hash_function(Oid type, Oid eqop)
{
	TypeCacheEntry *cache = lookup_type_cache(type, TYPECACHE_EQ_OPR |
											  TYPECACHE_HASH_EXTENDED_PROC);

	if (cache->eq_opr == eqop)
		return cache->hash_extended_proc;
	/* without looking into them whether these can be hashed is not known */
	if (type_is_rowtype(type) || type_is_array(type) || type_is_range(type) ||
		type_is_multirange(type))
		return InvalidOid;
	return function_of_operator(eqop);
}

static Oid
index_column_type(Relation index, int i)
{
	AttrNumber	attnum = index->rd_index->indkey.values[i];

	/*
	 * of a plain column: index columns may have a name's or an array's
	 * storage type
	 */
	if (attnum != 0)
		return getBaseType(get_atttype(index->rd_index->indrelid, attnum));
	return getBaseType(TupleDescAttr(RelationGetDescr(index), i)->atttypid);
}

Oid
mip_hashed_type(Relation index, int i)
{
	return mip_innermost_type(index_column_type(index, i));
}

static void
set_function(MipwHasher *hasher, Oid function)
{
	fmgr_info(function, &hasher->hash);
	hasher->how = function == F_HASHINT4EXTENDED ? MIPW_HASH_INT4 :
		function == F_HASHINT8EXTENDED ? MIPW_HASH_INT8 : MIPW_HASH_CALL;
}

bool
mip_hasher_init(MipwHasher *hasher, Relation index, int i)
{
	Oid			opcintype = index->rd_opcintype[i];
	Oid			eqop = get_opfamily_member(index->rd_opfamily[i], opcintype, opcintype,
										   BTEqualStrategyNumber);
	Oid			function;

	memset(hasher, 0, sizeof(MipwHasher));
	hasher->type = index_column_type(index, i);
	hasher->collation = index->rd_indcollation[i];
	if (holds_oids(hasher->type))
	{
		hasher->by_text = true;
		if (is_oids(hasher->type))
			mip_codec_init(&hasher->codec, hasher->type);
		return is_oids(hasher->type);
	}
	function = hash_function(hasher->type, eqop);
	if (!OidIsValid(function))
		return false;
	set_function(hasher, function);
	hasher->call = palloc0(SizeForFunctionCallInfo(2));
	InitFunctionCallInfoData(*hasher->call, &hasher->hash, 2, hasher->collation, NULL, NULL);
	hasher->call->args[1].value = UInt64GetDatum(MIPW_SEED);
	return true;
}

/* The hash function, of another type, that gives equal values the same hashes */
static Oid
sibling_function(const MipwHasher *hasher, Oid type)
{
	Oid			family = lookup_type_cache(hasher->type, TYPECACHE_HASH_OPFAMILY)->hash_opf;

	if (!OidIsValid(family) ||
		get_opfamily_proc(family, hasher->type, hasher->type,
						  HASHEXTENDED_PROC) != hasher->hash.fn_oid)
		return InvalidOid;
	return get_opfamily_proc(family, type, type, HASHEXTENDED_PROC);
}

bool
mip_hasher_refer(MipwHasher *hasher, Oid type)
{
	Oid			function;

	type = getBaseType(type);
	if (type == hasher->type)
		return true;
	if (hasher->by_text)
		return false;
	if (IsBinaryCoercible(type, hasher->type))
		return true;
	if (OidIsValid(function = sibling_function(hasher, type)))
	{
		set_function(hasher, function);
		return true;
	}
	switch (find_coercion_pathway(hasher->type, type, COERCION_ASSIGNMENT, &function))
	{
		case COERCION_PATH_RELABELTYPE:
			return true;
		case COERCION_PATH_FUNC:

			/*
			 * by a time zone, for one: elsewhere another one; or somebody's
			 * own code, which would run as the caller
			 */
			if (func_volatile(function) != PROVOLATILE_IMMUTABLE ||
				function >= FirstNormalObjectId)
				return false;
			fmgr_info(function, &hasher->cast);
			hasher->how = MIPW_HASH_OTHERWISE;
			hasher->cast_nargs = get_func_nargs(function);
			return true;
		default:
			return false;
	}
}

/* ---- values ---- */

static Datum
cast(MipwHasher *hasher, Datum value)
{
	int			overflow;

	/*
	 * what is out of range refers to nothing, and may be corrected before it
	 * is checked
	 */
	if (hasher->cast.fn_oid == F_TIMESTAMP_DATE)
		return TimestampGetDatum(date2timestamp_opt_overflow(DatumGetDateADT(value), &overflow));
	if (hasher->cast_nargs == 1)
		return FunctionCall1Coll(&hasher->cast, hasher->collation, value);
	if (hasher->cast_nargs == 2)
		return FunctionCall2Coll(&hasher->cast, hasher->collation, value, Int32GetDatum(-1));
	return FunctionCall3Coll(&hasher->cast, hasher->collation, value, Int32GetDatum(-1),
							 BoolGetDatum(false));
}

static uint64
text_hash(MipwHasher *hasher, Datum value)
{
	uint8		room[MIPW_WIDEST];
	MipwValue	bytes;

	mip_value_encode(&hasher->codec, value, room, &bytes);
	return hash_bytes_extended(bytes.data, bytes.length, MIPW_SEED);
}

uint64
mip_hasher_hash_other(MipwHasher *hasher, Datum value)
{
	if (hasher->by_text)
		return text_hash(hasher, value);
	return mip_hasher_call(hasher, cast(hasher, value));
}
