/*-------------------------------------------------------------------------
 *
 * describe.c
 *	  A table as writesets describe it, and its rows as they have them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/nbtree.h"
#include "access/tableam.h"
#include "access/tupmacs.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type_d.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/relcache.h"

#include "base/compat.h"
#include "base/mip.h"
#include "writeset/describe.h"
#include "writeset/values.h"

/* ---- identity ---- */

/*
 * Generated columns are computed anew where rows are to be found: there is no value to
 * look for. Nor is null one.
 */
static bool
has_values(Relation rel, Form_pg_index form)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < form->indnkeyatts; i++)
	{
		int			att = form->indkey.values[i] - 1;

		if (TupleDescAttr(desc, att)->attgenerated || !MIP_IS_NOT_NULL(desc, att))
			return false;
	}
	return true;
}

/*
 * A deferrable key may be there twice for a while; one WITHOUT OVERLAPS is no index of
 * equal values.
 */
static bool
can_identify(Relation rel, Form_pg_index form)
{
	return form->indisvalid && form->indisunique && form->indimmediate &&
		!form->indisexclusion && has_values(rel, form);
}

/* Of REPLICA IDENTITY, else the primary key; without either it is the whole row. */
static Oid
identity_index(Relation rel)
{
	bool		chosen = rel->rd_rel->relreplident == REPLICA_IDENTITY_INDEX;
	List	   *indexes = RelationGetIndexList(rel);
	Oid			replident = InvalidOid;
	Oid			primary = InvalidOid;
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		Form_pg_index form = index->rd_index;

		if (chosen && form->indisreplident && can_identify(rel, form))
			replident = form->indexrelid;
		else if (form->indisprimary && can_identify(rel, form))
			primary = form->indexrelid;
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return OidIsValid(replident) ? replident : primary;
}

/*
 * Have equal values of this key column equal bytes? As of deduplication in B-trees, but
 * that says so of texts with spaces behind, which are the same ones to the index.
 */
static bool
is_exact(Relation index, int i)
{
	Oid			type = index->rd_opcintype[i];
	Oid			proc = get_opfamily_proc(index->rd_opfamily[i], type, type,
										 BTEQUALIMAGE_PROC);

	return OidIsValid(proc) && type != BPCHAROID &&
		DatumGetBool(OidFunctionCall1Coll(proc, index->rd_indcollation[i],
										  ObjectIdGetDatum(type)));
}

/* ---- description ---- */

static void
describe_columns(Relation rel, MipwTable *table)
{
	TupleDesc	desc = RelationGetDescr(rel);
	MipwRelation *relation = &table->relation;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		MipwColumn *column = &relation->columns[relation->ncolumns];
		MipwCodec  *codec = &table->codecs[relation->ncolumns];

		if (att->attisdropped || MIP_IS_VIRTUAL(att))
			continue;
		mip_codec_init(codec, att->atttypid);
		column->name = pstrdup(NameStr(att->attname));
		column->type = mip_type_name(att->atttypid);
		column->width = codec->width;
		column->flags = att->attgenerated ? MIPW_GENERATED : 0;
		table->attnums[relation->ncolumns++] = att->attnum;
	}
}

static uint8
alignment(char align)
{
	switch (align)
	{
		case TYPALIGN_CHAR:
			return 1;
		case TYPALIGN_SHORT:
			return ALIGNOF_SHORT;
		case TYPALIGN_INT:
			return ALIGNOF_INT;
		default:
			return ALIGNOF_DOUBLE;
	}
}

static int
stored_kind(Form_pg_attribute att)
{
	if (att->attlen == -1)
		return MIPW_STORED_VARLENA;
	if (!att->attbyval)
		return att->attlen > 0 ? MIPW_STORED_FIXED : MIPW_STORED_OTHERWISE;
	return att->attlen == 4 ? MIPW_STORED_4 : att->attlen == 8 ? MIPW_STORED_8 : MIPW_STORED_SHORT;
}

static MipwStored
describe_stored(Form_pg_attribute att)
{
	MipwStored	stored = {
		.kind = stored_kind(att),
		.align = alignment(att->attalign),
		.len = att->attlen,
	};

	return stored;
}

/* For whoever reads and writes many rows */
static void
describe_bytes(TupleDesc desc, MipwTable *table)
{
	for (int i = 0; i < desc->natts; i++)
		table->stored[i] = describe_stored(TupleDescAttr(desc, i));
	for (int i = 0; i < table->relation.ncolumns; i++)
	{
		const MipwCodec *codec = &table->codecs[i];

		table->fields[i].att = table->attnums[i] - 1;
		table->fields[i].width = codec->typbyval ? Max(codec->width, 0) : 0;
	}
}

static void
mark_key(MipwTable *table)
{
	Relation	index = index_open(table->index, AccessShareLock);

	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		for (int j = 0; j < table->relation.ncolumns; j++)
			if (table->attnums[j] == index->rd_index->indkey.values[i])
				table->relation.columns[j].flags |= MIPW_IDENTITY |
					(is_exact(index, i) ? MIPW_EXACT : 0);
	index_close(index, AccessShareLock);
}

static void
mark_identity(MipwTable *table)
{
	MipwRelation *relation = &table->relation;

	relation->whole = !OidIsValid(table->index);
	if (!relation->whole)
		mark_key(table);
	for (int i = 0; i < relation->ncolumns; i++)
	{
		MipwColumn *column = &relation->columns[i];

		if (relation->whole && !(column->flags & MIPW_GENERATED))
			column->flags |= MIPW_IDENTITY;
		if (!(column->flags & MIPW_IDENTITY))
			continue;
		relation->identity[relation->nidentity++] = i;
		table->identity_end = table->attnums[i];
	}
}

MipwTable *
mip_describe(Relation rel)
{
	int			natts = RelationGetDescr(rel)->natts;
	MipwTable  *table = palloc0(sizeof(MipwTable));
	MipwRelation *relation = &table->relation;

	relation->id = RelationGetRelid(rel);
	relation->schema = get_namespace_name(RelationGetNamespace(rel));
	relation->name = pstrdup(RelationGetRelationName(rel));
	relation->columns = palloc0(natts * sizeof(MipwColumn) + 1);
	relation->identity = palloc(natts * sizeof(int) + 1);
	table->attnums = palloc(natts * sizeof(AttrNumber) + 1);
	table->codecs = palloc(natts * sizeof(MipwCodec) + 1);
	table->fields = palloc(natts * sizeof(MipwField) + 1);
	table->stored = palloc(natts * sizeof(MipwStored) + 1);
	table->changed = memset(palloc(natts + 1), true, natts);
	describe_columns(rel, table);
	describe_bytes(RelationGetDescr(rel), table);
	table->index = identity_index(rel);
	mark_identity(table);
	table->spare = mipw_body_spare(relation);
	return table;
}

/* ---- attributes ---- */

/* Has it a table's row, without nulls and with so many attributes, and none of them yet? */
static inline bool
is_simple(TupleTableSlot *slot, int natts)
{
	HeapTuple	tuple;

	if (!TTS_IS_BUFFERTUPLE(slot) || slot->tts_nvalid > 0)
		return false;
	tuple = ((BufferHeapTupleTableSlot *) slot)->base.tuple;
	return !HeapTupleHasNulls(tuple) && HeapTupleHeaderGetNatts(tuple->t_data) >= natts;
}

/*
 * The attribute that is next, from here on: where rows begin is aligned, so it is in memory
 * what it is in its row. Returns where it ends, or NULL: it is not so simple.
 */
static pg_attribute_always_inline const char *
get_attribute(const MipwStored *stored, const char *at, Datum *value)
{
	if (stored->kind == MIPW_STORED_4)
	{
		at = (const char *) INTALIGN(at);
		*value = Int32GetDatum(*(const int32 *) at);
		return at + 4;
	}
	if (stored->kind == MIPW_STORED_VARLENA)
	{
		if (!VARATT_NOT_PAD_BYTE(at))
			at = (const char *) TYPEALIGN(stored->align, at);
		*value = PointerGetDatum(at);
		return at + VARSIZE_ANY(at);
	}
	if (stored->kind == MIPW_STORED_OTHERWISE)
		return NULL;
	at = (const char *) TYPEALIGN(stored->align, at);
	if (stored->kind == MIPW_STORED_8)
		*value = *(const Datum *) at;
	else if (stored->kind == MIPW_STORED_FIXED)
		*value = PointerGetDatum(at);
	else
		*value = stored->len == 1 ? CharGetDatum(*at) : Int16GetDatum(*(const int16 *) at);
	return at + stored->len;
}

/*
 * slot_getsomeattrs(), for which the descriptor has been looked at before: of rows without
 * nulls all attributes are one behind the other. What is not so simple is PostgreSQL's business.
 */
static void
get_attributes(const MipwStored *stored, TupleTableSlot *slot, int natts)
{
	HeapTupleTableSlot *row = (HeapTupleTableSlot *) slot;
	int			i = 0;

	if (likely(is_simple(slot, natts)))
	{
		const char *data = (const char *) row->tuple->t_data + row->tuple->t_data->t_hoff;
		const char *at = data;
		const char *end;
		Datum	   *values = slot->tts_values;
		bool	   *isnull = slot->tts_isnull;

		for (; i < natts && (end = get_attribute(&stored[i], at, &values[i])); i++)
		{
			at = end;
			isnull[i] = false;
		}
		slot->tts_nvalid = i;
		slot->tts_flags |= TTS_FLAG_SLOW;
		row->off = at - data;
	}
	if (unlikely(i < natts))
		slot_getsomeattrs(slot, natts);
}

/* ---- rows ---- */

/* What is the same as it is stored, be it the pointer to where it is, need not be read. */
static bool
same_stored(Datum a, Datum b)
{
	const void *p = DatumGetPointer(a);
	const void *q = DatumGetPointer(b);
	Size		size = VARSIZE_ANY(p);

	return size == VARSIZE_ANY(q) && memcmp(p, q, size) == 0;
}

static pg_noinline bool
same_bytes(int16 typlen, Datum a, Datum b)
{
	if (typlen == -1 && same_stored(a, b))
		return true;
	return datum_image_eq(a, b, false, typlen);
}

/* Not null: the same, bit for bit? */
static inline bool
same_value(const MipwCodec *codec, Datum a, Datum b)
{
	const char *p = DatumGetPointer(a);
	const char *q = DatumGetPointer(b);

	if (codec->typbyval)
		return a == b;
	/* short ones, which most are, have their length in the first byte */
	if (codec->typlen == -1 && *p == *q && VARATT_IS_SHORT(p) && !VARATT_IS_EXTERNAL(p))
		return memcmp(p, q, VARSIZE_SHORT(p)) == 0;
	return same_bytes(codec->typlen, a, b);
}

/* NULL identifies nothing, and was there before the key's columns became NOT NULL. */
pg_noreturn static void
refuse_unidentified(const MipwRelation *relation)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_REWRITTEN),
			 errmsg("a row of table \"%s\" had no key when it was changed", relation->name),
			 errdetail("A column of the key was null, which it cannot be any more."),
			 errhint("Extract the writeset before the column becomes NOT NULL, or that is validated.")));
}

/* Column i, which is not null; from here on. Returns the end. */
static pg_attribute_always_inline char *
append_value(MipwBody *body, const MipwTable *table, int i, Datum value, char *to)
{
	int			width = table->fields[i].width;

	if (width > 0)
	{
		mipw_put_number(to, value, 8);
		return to + width;
	}
	return mip_value_put(body, &table->codecs[i], value, to);
}

static pg_attribute_always_inline void
append_identity(MipwBody *body, const MipwTable *table, TupleTableSlot *old)
{
	const MipwRelation *relation = &table->relation;
	char	   *to;

	mipw_body_identity(body, relation);
	to = body->to;
	for (int i = 0; i < relation->nidentity; i++)
	{
		int			column = relation->identity[i];
		int			att = table->fields[column].att;

		if (likely(!old->tts_isnull[att]))
			to = append_value(body, table, column, old->tts_values[att], to);
		else if (relation->whole)
			mipw_body_null(body, i);
		else
			refuse_unidentified(relation);
	}
	body->to = to;
}

/* A column that is not to be left out: column i, of these values */
static pg_attribute_always_inline char *
append_column(MipwBody *body, const MipwTable *table, int i, Datum value, bool null, char *to)
{
	if (likely(!null))
		return append_value(body, table, i, value, to);
	mipw_body_null(body, i);
	return to;
}

static inline void
append_row(MipwBody *body, const MipwTable *table, const Datum *values, const bool *nulls)
{
	int			ncolumns = table->relation.ncolumns;
	char	   *to;

	mipw_body_row(body, &table->relation, false);
	to = body->to;
	for (int i = 0; i < ncolumns; i++)
	{
		int			att = table->fields[i].att;

		to = append_column(body, table, i, values[att], nulls[att], to);
	}
	body->to = to;
}

/* Not the same, bit for bit */
static pg_attribute_always_inline bool
is_changed(const MipwTable *table, int i, TupleTableSlot *old, TupleTableSlot *new)
{
	int			att = table->fields[i].att;
	Datum		a = old->tts_values[att];
	Datum		b = new->tts_values[att];

	if (unlikely(old->tts_isnull[att] || new->tts_isnull[att]))
		return !old->tts_isnull[att] || !new->tts_isnull[att];
	return table->fields[i].width > 0 ? a != b : !same_value(&table->codecs[i], a, b);
}

/* What has changed since it was `old`. */
static inline void
append_changes(MipwBody *body, const MipwTable *table, TupleTableSlot *old, TupleTableSlot *new)
{
	int			ncolumns = table->relation.ncolumns;
	char	   *to;

	mipw_body_row(body, &table->relation, true);
	to = body->to;
	for (int i = 0; i < ncolumns; i++)
	{
		int			att = table->fields[i].att;
		bool		changed = is_changed(table, i, old, new);

		table->changed[att] = changed;
		if (!changed)
			continue;
		mipw_body_changed(body, i);
		to = append_column(body, table, i, new->tts_values[att], new->tts_isnull[att], to);
	}
	body->to = to;
}

void
mip_insert_body(MipwBody *body, MipwTable *table, TupleTableSlot *new)
{
	get_attributes(table->stored, new, new->tts_tupleDescriptor->natts);
	append_row(body, table, new->tts_values, new->tts_isnull);
}

void
mip_update_body(MipwBody *body, MipwTable *table, TupleTableSlot *old, TupleTableSlot *new)
{
	int			natts = new->tts_tupleDescriptor->natts;

	get_attributes(table->stored, old, natts);
	get_attributes(table->stored, new, natts);
	append_identity(body, table, old);
	append_changes(body, table, old, new);
}

void
mip_delete_body(MipwBody *body, MipwTable *table, TupleTableSlot *old)
{
	get_attributes(table->stored, old, table->identity_end);
	append_identity(body, table, old);
}
