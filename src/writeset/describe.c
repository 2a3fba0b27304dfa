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
	table->changed = memset(palloc(natts + 1), true, natts);
	describe_columns(rel, table);
	table->index = identity_index(rel);
	mark_identity(table);
	table->spare = mipw_body_spare(relation);
	return table;
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

static bool
same_bytes(int16 typlen, Datum a, Datum b)
{
	if (typlen == -1 && same_stored(a, b))
		return true;
	return datum_image_eq(a, b, false, typlen);
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

static void
append_identity(MipwBody *body, MipwTable *table, TupleTableSlot *old)
{
	const MipwRelation *relation = &table->relation;

	mipw_body_identity(body, relation);
	for (int i = 0; i < relation->nidentity; i++)
	{
		int			column = relation->identity[i];
		int			att = table->attnums[column] - 1;

		if (!old->tts_isnull[att])
			mip_value_append(body, &table->codecs[column], old->tts_values[att]);
		else if (relation->whole)
			mipw_body_null(body, i);
		else
			refuse_unidentified(relation);
	}
}

/* Not the same, bit for bit */
static inline bool
is_changed(const MipwCodec *codec, int att, TupleTableSlot *old, TupleTableSlot *new)
{
	Datum		a = old->tts_values[att];
	Datum		b = new->tts_values[att];

	if (old->tts_isnull[att] || new->tts_isnull[att])
		return !old->tts_isnull[att] || !new->tts_isnull[att];
	return codec->typbyval ? a != b : !same_bytes(codec->typlen, a, b);
}

/* All of it, or what has changed since it was `old`. */
static void
append_row(MipwBody *body, MipwTable *table, TupleTableSlot *old, TupleTableSlot *new)
{
	const MipwRelation *relation = &table->relation;

	mipw_body_row(body, relation, old != NULL);
	for (int i = 0; i < relation->ncolumns; i++)
	{
		int			att = table->attnums[i] - 1;
		MipwCodec  *codec = &table->codecs[i];

		if (old)
		{
			table->changed[att] = is_changed(codec, att, old, new);
			if (!table->changed[att])
				continue;
			mipw_body_changed(body, i);
		}
		if (new->tts_isnull[att])
			mipw_body_null(body, i);
		else
			mip_value_append(body, codec, new->tts_values[att]);
	}
}

void
mip_change_body(StringInfo buffer, MipwTable *table, TupleTableSlot *old, TupleTableSlot *new)
{
	MipwBody	body = mipw_body_begin(buffer, table->spare);

	if (old)
	{
		slot_getsomeattrs(old, new ? old->tts_tupleDescriptor->natts : table->identity_end);
		append_identity(&body, table, old);
	}
	if (new)
	{
		slot_getallattrs(new);
		append_row(&body, table, old, new);
	}
	mipw_body_end(&body);
}
