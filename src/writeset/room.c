/*-------------------------------------------------------------------------
 *
 * room.c
 *	  Has an index room for the entries of a row, wherever it is applied?
 *
 * An entry that is a row's own is as long everywhere: of a btree, of GIN, a leaf of GiST and
 * SP-GiST. Others belong to several rows, and which these are goes by where rows
 * lie, which is not the same at any two replicas: those of BRIN, and the inner ones of GiST and
 * SP-GiST. They take so many bytes, whatever the rows, and so many values, each perhaps the
 * longest there is. So a value of a row may be as long as lets that many like it fit. It
 * counts uncompressed: what is combined need not be as compressible as what it is combined of.
 *
 * Where it is not known what entries are combined of the index cannot be replicated.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/brin.h"
#include "access/brin_internal.h"
#include "access/brin_page.h"
#include "access/detoast.h"
#include "access/gin_private.h"
#include "access/gist.h"
#include "access/gist_private.h"
#include "access/htup_details.h"
#include "access/itup.h"
#include "access/nbtree.h"
#include "access/reloptions.h"
#include "access/spgist.h"
#include "access/spgist_private.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rangetypes.h"

#include "base/compat.h"
#include "writeset/room.h"
#include "writeset/values.h"

/* An entry of a btree has no more room: a third of a page. */
#define BTREE_ENTRY_MAX \
	(MAXALIGN_DOWN((BLCKSZ - MAXALIGN(SizeOfPageHeaderData + 3 * sizeof(ItemIdData)) - \
					MAXALIGN(sizeof(BTPageOpaqueData))) / 3) - MAXALIGN(sizeof(ItemPointerData)))

/* One of BRIN has a page. */
#define BRIN_ENTRY_MAX \
	(BLCKSZ - MAXALIGN_DOWN(SizeOfPageHeaderData + sizeof(ItemIdData)) - \
	 MAXALIGN(sizeof(BrinSpecialSpace)))

/* What an entry has besides values, and a value besides itself: headers, nulls, alignment */
#define ENTRY_OVERHEAD	64
#define VALUE_OVERHEAD	(2 * MAXIMUM_ALIGNOF)

/* What operator classes have by default, at most */
#define SIGNATURE_LENGTH	256

struct MipRoom
{
	Relation	index;
	bool		is_shared[INDEX_MAX_KEYS];	/* a column's values are in
											 * entries of several rows */
	Size		value_max;		/* of those */
	Size		entry_max;		/* of a row's own */
	GISTSTATE  *gist;
};

/* What an entry of several rows may have to hold */
typedef struct Shared
{
	Size		length;			/* whatever the rows */
	int			nvalues;		/* and these, of any length */
} Shared;

pg_noreturn static void
refuse_index(Relation index, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("index \"%s\" cannot be replicated", RelationGetRelationName(index)),
			 errdetail_internal("%s", detail),
			 errhint("Use another operator class, other options, or several indexes.")));
	pg_unreachable();
}

pg_noreturn static void
refuse_entry(Relation index)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("a value is too long for index \"%s\" at other replicas", RelationGetRelationName(index)),
			 errdetail("There it is not stored as it is here, or beside other rows.")));
	pg_unreachable();
}

/* ---- types, and options ---- */

/* The most that one takes, or 0: there is no such length. */
static Size
longest_of_type(Oid type)
{
	Oid			subtype = get_range_subtype(type);
	int16		length = get_typlen(type);

	if (length > 0)
		return length;
	if (type == INETOID || type == CIDROID)
		return 24;
	if (OidIsValid(subtype) && get_typlen(subtype) > 0)
		return sizeof(RangeType) + 2 * MAXALIGN(get_typlen(subtype)) + 1;
	return 0;
}

/* What the index is on, which may not be what it has */
static Oid
input_type(Relation index, int i)
{
	AttrNumber	attno = index->rd_index->indkey.values[i];
	int			n = 0;

	if (attno != 0)
		return getBaseType(get_atttype(index->rd_index->indrelid, attno));
	for (int before = 0; before < i; before++)
		n += index->rd_index->indkey.values[before] == 0;
	return getBaseType(exprType(list_nth(RelationGetIndexExpressions(index), n)));
}

static Oid
type_of(Relation index, int i)
{
	Oid			type = getBaseType(TupleDescAttr(RelationGetDescr(index), i)->atttypid);
	Oid			input;

	if (type != ANYRANGEOID)
		return type;
	input = input_type(index, i);
	return get_typtype(input) == TYPTYPE_MULTIRANGE ? get_multirange_range(input) : input;
}

static double
option(Relation index, int i, const char *name, double otherwise)
{
	ListCell   *lc;

	foreach(lc, untransformRelOptions(get_attoptions(RelationGetRelid(index), i + 1)))
	{
		DefElem    *def = lfirst(lc);

		if (strcmp(def->defname, name) == 0)
			return strtod(strVal(def->arg), NULL);
	}
	return otherwise;
}

/* Is any of its columns of no fixed length? */
static bool
has_variable_entries(Relation index)
{
	for (int i = 0; i < RelationGetDescr(index)->natts; i++)
		if (TupleDescAttr(RelationGetDescr(index), i)->attlen < 0)
			return true;
	return false;
}

/* ---- entries of several rows ---- */

static void
share_values(MipRoom *room, Shared *shared, int i, Oid type, int n)
{
	Size		longest = longest_of_type(type);

	if (longest > 0)
		shared->length += n * MAXALIGN(longest);
	else
	{
		shared->nvalues += n;
		room->is_shared[i] = true;
	}
}

static void
divide(MipRoom *room, const Shared *shared, Size size)
{
	Size		taken = shared->length + ENTRY_OVERHEAD + shared->nvalues * VALUE_OVERHEAD;

	if (taken >= size)
		refuse_index(room->index, "Its entries may become too long, depending on which rows are beside each other.");
	if (shared->nvalues > 0)
		room->value_max = (size - taken) / shared->nvalues;
}

/* As brin_bloom.c has it */
static Size
bloom_length(Relation index, int i)
{
	double		most = (double) MaxHeapTuplesPerPage * BrinGetPagesPerRange(index);
	double		ndistinct = option(index, i, "n_distinct_per_range", -0.1);
	double		rate = option(index, i, "false_positive_rate", 0.01);

	if (ndistinct == 0)
		ndistinct = -0.1;
	if (ndistinct < 0)
		ndistinct *= -most;
	ndistinct = Min(Max(ndistinct, 16), most);
	return ceil(-ndistinct * log(rate) / (log(2) * log(2)) / BITS_PER_BYTE) + VALUE_OVERHEAD;
}

static void
share_brin(MipRoom *room, Shared *shared, int i)
{
	Relation	index = room->index;

	switch (index_getprocid(index, i + 1, BRIN_PROCNUM_OPCINFO))
	{
		case F_BRIN_MINMAX_OPCINFO:
			share_values(room, shared, i, type_of(index, i), 2);
			break;
		case F_BRIN_MINMAX_MULTI_OPCINFO:
			shared->length += VALUE_OVERHEAD * 2;
			share_values(room, shared, i, type_of(index, i), option(index, i, "values_per_range", 32));
			break;
		case F_BRIN_INCLUSION_OPCINFO:
			shared->length += MAXIMUM_ALIGNOF;
			share_values(room, shared, i, type_of(index, i), 2);
			if (room->is_shared[i] && get_typtype(type_of(index, i)) != TYPTYPE_RANGE)
				refuse_index(index, "How long its entries become is not known.");
			break;
		case F_BRIN_BLOOM_OPCINFO:
			shared->length += bloom_length(index, i);
			break;
		default:
			refuse_index(index, "How long its entries become is not known.");
	}
}

/* Bits, of which an inner entry has as many as any other */
static bool
is_signature(Oid type)
{
	static const char *const names[] = {
		"gtrgm", "ghstore", "intbig_gkey"
	};
	char	   *name = format_type_extended(type, -1, FORMAT_TYPE_INVALID_AS_NULL);

	for (int i = 0; i < lengthof(names) && name; i++)
	{
		const char *dot = strrchr(name, '.');

		if (strcmp(dot ? dot + 1 : name, names[i]) == 0)
			return true;
	}
	return type == GTSVECTOROID;
}

/*
 * Bounds of two rows, and perhaps a signature; a union of arrays has elements of all, and fails
 * if they are too far from each other.
 */
static void
share_gist(MipRoom *room, Shared *shared, int i)
{
	Relation	index = room->index;
	Oid			type = type_of(index, i);

	if (OidIsValid(get_element_type(type)))
		refuse_index(index, "How long its entries become depends on which rows are beside each other.");
	if (OidIsValid(index_getprocid(index, i + 1, GIST_OPTIONS_PROC)))
		shared->length += MAXALIGN((int) option(index, i, "siglen", SIGNATURE_LENGTH)) + VALUE_OVERHEAD;
	if (!is_signature(type))
		share_values(room, shared, i, type, 2);
}

/* ---- which has how much ---- */

static void
open_brin(MipRoom *room)
{
	Shared		shared = {0};

	for (int i = 0; i < RelationGetDescr(room->index)->natts; i++)
		share_brin(room, &shared, i);
	divide(room, &shared, BRIN_ENTRY_MAX);
}

/* A page that is split is so into few that way, and the one above has room for all of them. */
static void
open_gist(MipRoom *room)
{
	Shared		shared = {0};
	Size		page = GiSTPageSize - RelationGetTargetPageFreeSpace(room->index, GIST_DEFAULT_FILLFACTOR);

	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(room->index); i++)
		share_gist(room, &shared, i);
	divide(room, &shared, Min(page, GISTMaxIndexTupleSize));
	room->entry_max = page / 2;
	room->gist = initGISTstate(room->index);
}

/* Texts may be of any length: they are kept in parts. */
static void
open_spgist(MipRoom *room)
{
	Shared		shared = {0};
	SpGistCache *cache = spgGetCache(room->index);

	if (!cache->config.longValuesOK)
		share_values(room, &shared, spgKeyColumn, cache->attLeafType.type, 2);
	if (room->is_shared[spgKeyColumn] && cache->attLeafType.type != cache->attType.type)
		refuse_index(room->index, "How long its entries become is not known.");
	divide(room, &shared, SPGIST_PAGE_CAPACITY / 4);
	room->entry_max = SPGIST_PAGE_CAPACITY / 2;
}

MipRoom *
mip_room_open(Relation index)
{
	MipRoom    *room = palloc0(sizeof(MipRoom));

	room->index = index;
	switch (index->rd_rel->relam)
	{
		case BTREE_AM_OID:
			room->entry_max = BTREE_ENTRY_MAX;
			break;
		case BRIN_AM_OID:
			open_brin(room);
			break;
		case GIST_AM_OID:
			open_gist(room);
			break;
		case SPGIST_AM_OID:
			open_spgist(room);
			break;
		default:
			break;
	}
	return room;
}

bool
mip_room_goes_by_values(const MipRoom *room)
{
	return has_variable_entries(room->index);
}

bool
mip_room_is_shared(const MipRoom *room)
{
	return room->value_max > 0;
}

/* ---- a row ---- */

static Size
raw_length(Form_pg_attribute attr, Datum value)
{
	return attr->attlen == -1 ? toast_raw_datum_size(value) : att_addlength_datum(0, attr->attlen, value);
}

static void
check_shared(const MipRoom *room, Datum *values, bool *nulls)
{
	TupleDesc	desc = RelationGetDescr(room->index);

	for (int i = 0; i < desc->natts; i++)
		if (room->is_shared[i] && !nulls[i] && raw_length(TupleDescAttr(desc, i), values[i]) > room->value_max)
			refuse_entry(room->index);
}

static void
check_own(const MipRoom *room, TupleDesc desc, Datum *values, bool *nulls)
{
	if (MAXALIGN(IndexTupleSize(index_form_tuple(desc, values, nulls))) > room->entry_max)
		refuse_entry(room->index);
}

/* Beside other rows each is compared: what has no order, as json within a composite, is found so. */
static void
check_order(Relation index, Datum *values, bool *nulls)
{
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
		if (!nulls[i])
			(void) FunctionCall2Coll(index_getprocinfo(index, i + 1, BTORDER_PROC), index->rd_indcollation[i],
									 values[i], values[i]);
}

/* Several values of a range are told apart by how far they are from each other, as float8. */
static void
check_distances(Relation index, Datum *values, bool *nulls)
{
	for (int i = 0; i < RelationGetDescr(index)->natts; i++)
		if (index_getprocid(index, i + 1, BRIN_PROCNUM_OPCINFO) == F_BRIN_MINMAX_MULTI_OPCINFO &&
			index->rd_opcintype[i] == NUMERICOID && !nulls[i])
			(void) DirectFunctionCall1(numeric_float8, DirectFunctionCall2(numeric_add, values[i], values[i]));
}

/* Each has a key; GinFormTuple errors out if it is too long. */
static void
check_gin(Relation index, Datum *values, bool *nulls)
{
	GinState	state;

	initGinState(&state, index);
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		GinNullCategory *categories;
		int32		n;
		Datum	   *entries = ginExtractEntries(&state, i + 1, values[i], nulls[i], &n, &categories);

		for (int32 j = 0; j < n; j++)
			pfree(GinFormTuple(&state, i + 1, entries[j], categories[j], NULL, 0, 0, true));
	}
}

static void
check_gist(MipRoom *room, Datum *values, bool *nulls)
{
	Datum		keys[INDEX_MAX_KEYS];

	gistCompressValues(room->gist, room->index, values, nulls, true, keys);
	check_shared(room, keys, nulls);
	check_own(room, room->gist->leafTupdesc, keys, nulls);
}

/* Nothing is compressed there. */
static void
check_spgist(const MipRoom *room, Datum *values, bool *nulls)
{
	TupleDesc	desc = RelationGetDescr(room->index);
	Size		length = ENTRY_OVERHEAD;

	check_shared(room, values, nulls);
	for (int i = spgFirstIncludeColumn; i < desc->natts; i++)
		if (!nulls[i])
			length += MAXALIGN(raw_length(TupleDescAttr(desc, i), values[i]));
	if (length > room->entry_max)
		refuse_entry(room->index);
}

static void
check(MipRoom *room, Datum *values, bool *nulls)
{
	switch (room->index->rd_rel->relam)
	{
		case BTREE_AM_OID:
			check_own(room, RelationGetDescr(room->index), values, nulls);
			check_order(room->index, values, nulls);
			break;
		case GIN_AM_OID:
			check_gin(room->index, values, nulls);
			break;
		case BRIN_AM_OID:
			check_distances(room->index, values, nulls);
			check_shared(room, values, nulls);
			break;
		case GIST_AM_OID:
			check_gist(room, values, nulls);
			break;
		case SPGIST_AM_OID:
			check_spgist(room, values, nulls);
			break;
		default:
			break;
	}
}

bool
mip_row_expand(TupleTableSlot *row)
{
	TupleDesc	desc = row->tts_tupleDescriptor;
	bool		expanded = false;

	for (int i = 0; i < desc->natts; i++)
	{
		Datum		value = row->tts_values[i];

		if (row->tts_isnull[i] || TupleDescAttr(desc, i)->attlen != -1 || mip_value_is_at_hand(value))
			continue;
		row->tts_values[i] = PointerGetDatum(detoast_attr((struct varlena *) DatumGetPointer(value)));
		expanded = true;
	}
	return expanded;
}

void
mip_room_check_row(MipRoom *room, IndexInfo *info, TupleTableSlot *row, EState *estate)
{
	ExprContext *context = GetPerTupleExprContext(estate);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	context->ecxt_scantuple = row;
	if (info->ii_Predicate && info->ii_PredicateState == NULL)
		info->ii_PredicateState = ExecPrepareQual(info->ii_Predicate, estate);
	if (!ExecQual(info->ii_PredicateState, context))
		return;
	FormIndexDatum(info, row, estate, values, nulls);
	if (mip_room_goes_by_values(room))
		check(room, values, nulls);
}
