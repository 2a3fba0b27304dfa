/*-------------------------------------------------------------------------
 *
 * keys.c
 *	  Keys of changes: what two writesets are compared by.
 *
 * A key is a hash of a table's name, the names of the key's columns, and the values.
 * The table is the topmost partitioned one that the unique index belongs to: so a row
 * has the same key whatever partition it is in, and whoever refers to it, to whatever
 * partition or parent, meets it. By names, not OIDs: copies are compared.
 *
 * Where there is no hashing the values, the change claims the relation as a whole
 * (of the same table), and that meets all changes, since each has R on it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/owner.h"
#include "base/partitions.h"
#include "writeset/format_encode.h"
#include "writeset/hashing.h"
#include "writeset/keys.h"
#include "writeset/values.h"

/* Stands for a null in a key; any number. */
#define NULL_HASH		UINT64CONST(0x9e3779b97f4a7c15)

/* A unique index, or a foreign key */
typedef struct MipwKeyDef
{
	uint64		seed;
	uint64		relation;		/* the key of the relation that it is a key of */
	bool		reference;		/* a foreign key */
	bool		hashed;			/* else the relation's key stands for it */
	bool		of_extension;	/* a column has values of a type that is none
								 * of PostgreSQL's own */
	uint8		unhashed_mode;	/* of references: how */
	bool		names_row;		/* the identity, or the primary key */
	bool		nulls;			/* nulls are equal */
	bool		computed;		/* has expressions or a predicate */
	bool		plain;			/* nothing of all this but hashed columns */
	int			ncolumns;
	AttrNumber *attnums;		/* here; 0: an expression */
	MipwHasher *hashers;
	IndexInfo  *info;			/* of an index that is computed; NULL: the
								 * caller may not */
	ExprState  *predicate;		/* of an index, or NULL */
} MipwKeyDef;

struct MipwKeys
{
	Relation	rel;
	MipwTable  *table;
	EState	   *estate;
	int			ndefs;
	MipwKeyDef *defs;
	bool		has_identity;
	uint64		row_seed;		/* of keys that are the whole row */
	int			nrelations;
	uint64	   *relations;		/* its own key, and those of what it is a
								 * partition of */
	uint8		written;		/* strongest mode of relations written, or 0 */
};

/* ---- the owner's code ---- */

/* The relation's key stands for what is not computed. */
static bool
may_compute(Relation rel)
{
	return mip_may_execute_code_of(rel->rd_rel->relowner);
}

static MipUser
become_owner(Relation rel)
{
	return mip_become_owner(rel->rd_rel->relowner, false);
}

/* ---- hashes of names ---- */

static uint64
add_name(uint64 hash, const char *name)
{
	return hash_combine64(hash, hash_bytes_extended((const unsigned char *) name,
													strlen(name), 0));
}

static uint64
relation_hash(Oid relid)
{
	uint64		hash = add_name(0, get_namespace_name(get_rel_namespace(relid)));

	return add_name(hash, get_rel_name(relid));
}

/* Seed, and the relation's key, of keys of this unique index. */
static void
name_key(MipwKeyDef *def, Oid indexid)
{
	Relation	index = index_open(mip_partition_topmost(indexid), AccessShareLock);
	Form_pg_index form = index->rd_index;

	def->relation = relation_hash(form->indrelid);
	def->seed = def->relation;
	for (int i = 0; i < form->indnkeyatts; i++)
	{
		AttrNumber	attnum = form->indkey.values[i];
		char	   *name = attnum ? get_attname(form->indrelid, attnum, false) : "";

		def->seed = add_name(def->seed, name);
	}
	index_close(index, AccessShareLock);
}

/* ---- what there is ---- */

static void
init_hashers(MipwKeyDef *def, Relation index)
{
	def->ncolumns = index->rd_index->indnkeyatts;
	def->attnums = palloc(def->ncolumns * sizeof(AttrNumber));
	def->hashers = palloc(def->ncolumns * sizeof(MipwHasher));
	/* an exclusion constraint's operators are others than equality */
	def->hashed = !index->rd_index->indisexclusion && index->rd_rel->relam == BTREE_AM_OID;
	for (int i = 0; i < def->ncolumns; i++)
	{
		def->attnums[i] = index->rd_index->indkey.values[i];
		def->of_extension |= mip_hashed_type(index, i) >= FirstNormalObjectId;
		def->hashed = def->hashed && mip_hasher_init(&def->hashers[i], index, i);
	}
}

/* Has it expressions, or a predicate? */
static bool
is_computed(Relation index)
{
	return !heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL) ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/* What is constant is computed here. */
static void
prepare_to_compute(MipwKeys *keys, MipwKeyDef *def, Relation index)
{
	MipUser		user = become_owner(keys->rel);

	def->info = BuildIndexInfo(index);
	if (def->info->ii_Predicate != NIL)
		def->predicate = ExecPrepareQual(def->info->ii_Predicate, keys->estate);
	mip_become_again(user);
}

static void
add_index(MipwKeys *keys, Relation index)
{
	MipwKeyDef *def = &keys->defs[keys->ndefs++];
	bool		identity = RelationGetRelid(index) == keys->table->index;

	memset(def, 0, sizeof(MipwKeyDef));
	name_key(def, RelationGetRelid(index));
	init_hashers(def, index);
	def->unhashed_mode = MIPW_K;
	def->names_row = identity || index->rd_index->indisprimary;
	def->nulls = index->rd_index->indnullsnotdistinct;
	def->computed = is_computed(index);
	if (def->computed && may_compute(keys->rel))
		prepare_to_compute(keys, def, index);
	def->plain = def->hashed && !def->computed && !def->nulls;
	keys->has_identity |= identity;
}

static void
add_indexes(MipwKeys *keys)
{
	List	   *indexes = RelationGetIndexList(keys->rel);
	ListCell   *cell;

	keys->defs = palloc((list_length(indexes) + 1) * sizeof(MipwKeyDef));
	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		/*
		 * one that is being built may be unique, too; an exclusion
		 * constraint's may be set aside, and is not elsewhere
		 */
		if (index->rd_index->indisexclusion || (index->rd_index->indisunique && index->rd_index->indisready))
			add_index(keys, index);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
}

static bool
lock_index(Oid index)
{
	Oid			topmost;

	if (!ConditionalLockRelationOid(index, AccessShareLock))
		return false;
	topmost = mip_partition_topmost(index);
	return topmost == index || ConditionalLockRelationOid(topmost, AccessShareLock);
}

Oid
mip_keys_lock(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	List	   *fks = copyObject(RelationGetFKeyList(rel));
	ListCell   *cell;

	foreach(cell, fks)
		indexes = lappend_oid(indexes, mip_referenced_index(lfirst_node(ForeignKeyCacheInfo, cell)->conoid));
	foreach(cell, indexes)
	{
		if (OidIsValid(lfirst_oid(cell)) && !lock_index(lfirst_oid(cell)))
			return lfirst_oid(cell);
	}
	list_free(indexes);
	list_free_deep(fks);
	return InvalidOid;
}

static AttrNumber
referring_column(const ForeignKeyCacheInfo *fk, AttrNumber referenced)
{
	for (int i = 0; i < fk->nkeys; i++)
		if (fk->confkey[i] == referenced)
			return fk->conkey[i];
	elog(ERROR, "column %d is not of foreign key %u", referenced, fk->conoid);
}

/* Is what a reference finds equal, by the column's collation, equal to the index? */
static bool
same_equality(const ForeignKeyCacheInfo *fk, Relation index, int i)
{
	Oid			type;
	int32		typmod;
	Oid			collation;

	get_atttypetypmodcoll(fk->confrelid, index->rd_index->indkey.values[i], &type, &typmod,
						  &collation);
	return collation == index->rd_indcollation[i] ||
		((!OidIsValid(collation) || get_collation_isdeterministic(collation)) &&
		 get_collation_isdeterministic(index->rd_indcollation[i]));
}

/* Columns here of those of the index; what is hashed there must be hashed here. */
static void
refer(MipwKeys *keys, MipwKeyDef *def, const ForeignKeyCacheInfo *fk, Relation index)
{
	bool		hashed_there = def->hashed;

	for (int i = 0; i < def->ncolumns; i++)
		def->hashed = def->hashed && same_equality(fk, index, i);
	for (int i = 0; i < def->ncolumns; i++)
	{
		def->attnums[i] = referring_column(fk, def->attnums[i]);
		if (def->hashed)
			def->hashed = mip_hasher_refer(&def->hashers[i],
										   TupleDescAttr(RelationGetDescr(keys->rel),
														 def->attnums[i] - 1)->atttypid);
	}

	/* there K is of keys that are not met from here, or of the relation */
	def->unhashed_mode = hashed_there || def->of_extension ? MIPW_K : MIPW_R;
}

static bool
same_reference(const MipwKeyDef *a, const MipwKeyDef *b)
{
	return a->reference && b->reference && a->seed == b->seed &&
		memcmp(a->attnums, b->attnums, a->ncolumns * sizeof(AttrNumber)) == 0;
}

static void
add_reference(MipwKeys *keys, const ForeignKeyCacheInfo *fk)
{
	MipwKeyDef *def = &keys->defs[keys->ndefs];
	Oid			indexid = mip_referenced_index(fk->conoid);
	Relation	index;

	memset(def, 0, sizeof(MipwKeyDef));
	index = index_open(indexid, AccessShareLock);
	name_key(def, indexid);
	init_hashers(def, index);
	def->reference = true;
	refer(keys, def, fk, index);
	def->plain = def->hashed;
	index_close(index, AccessShareLock);
	/* a key to a partitioned table is one to each partition, too */
	for (int i = 0; i < keys->ndefs; i++)
		if (same_reference(&keys->defs[i], def))
			return;
	keys->ndefs++;
}

static void
add_references(MipwKeys *keys)
{
	List	   *fks = copyObject(RelationGetFKeyList(keys->rel));
	ListCell   *cell;

	keys->defs = repalloc(keys->defs, (keys->ndefs + list_length(fks) + 1) * sizeof(MipwKeyDef));
	foreach(cell, fks)
	{
		ForeignKeyCacheInfo *fk = lfirst_node(ForeignKeyCacheInfo, cell);

		if (MIP_FK_IS_ENFORCED(fk))
			add_reference(keys, fk);
	}
	list_free_deep(fks);
}

static void
add_relations(MipwKeys *keys)
{
	Oid			relid = RelationGetRelid(keys->rel);
	List	   *above = mip_partition_ancestors(relid);
	ListCell   *cell;

	keys->relations = palloc((list_length(above) + 1) * sizeof(uint64));
	keys->relations[keys->nrelations++] = relation_hash(relid);
	foreach(cell, above)
		keys->relations[keys->nrelations++] = relation_hash(lfirst_oid(cell));
	/* whatever partitions there are elsewhere */
	keys->row_seed = add_name(keys->relations[keys->nrelations - 1], "row");
}

MipwKeys *
mip_keys_open(Relation rel, MipwTable *table)
{
	MipwKeys   *keys = palloc0(sizeof(MipwKeys));

	keys->rel = rel;
	keys->table = table;
	keys->estate = CreateExecutorState();
	add_indexes(keys);
	add_references(keys);
	add_relations(keys);
	return keys;
}

void
mip_keys_close(MipwKeys *keys)
{
	FreeExecutorState(keys->estate);
}

/* Of each index old and new, of each foreign key two, of the whole row, of relations. */
int
mip_keys_most(const MipwKeys *keys)
{
	return 2 * keys->ndefs + 1 + keys->nrelations;
}

/* ---- the key of a row ---- */

typedef struct RowKey
{
	uint64		hash;
	bool		there;			/* else the row has none */
} RowKey;

static const RowKey no_key;

/* As most keys are. */
static pg_attribute_always_inline RowKey
plain_key(MipwKeyDef *def, TupleTableSlot *slot)
{
	RowKey		key = {def->seed, true};

	for (int i = 0; i < def->ncolumns; i++)
	{
		bool		null;
		Datum		value = slot_getattr(slot, def->attnums[i], &null);

		if (null)
			return no_key;
		key.hash = hash_combine64(key.hash, mip_hasher_hash(&def->hashers[i], value));
	}
	return key;
}

/* Of these columns */
static RowKey
key_of_values(MipwKeyDef *def, const Datum *values, const bool *nulls)
{
	RowKey		key = {def->hashed ? def->seed : def->relation, true};

	for (int i = 0; i < def->ncolumns; i++)
	{
		if (nulls[i] && !def->nulls)
			return no_key;
		if (def->hashed)
			key.hash = hash_combine64(key.hash, nulls[i] ? NULL_HASH :
									  mip_hasher_hash(&def->hashers[i], values[i]));
	}
	return key;
}

/* With expressions, as its owner */
static RowKey
owners_key(MipwKeys *keys, MipwKeyDef *def, TupleTableSlot *slot)
{
	ExprContext *econtext = GetPerTupleExprContext(keys->estate);
	MipUser		user = become_owner(keys->rel);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	RowKey		key = no_key;

	econtext->ecxt_scantuple = slot;
	if (def->predicate == NULL || ExecQual(def->predicate, econtext))
	{
		FormIndexDatum(def->info, slot, keys->estate, values, nulls);
		key = key_of_values(def, values, nulls);
	}
	mip_become_again(user);
	ResetExprContext(econtext);
	return key;
}

static RowKey
computed_key(MipwKeys *keys, MipwKeyDef *def, TupleTableSlot *slot)
{
	RowKey		key = {def->relation, true};

	/*
	 * code of others, as types' output functions, may have made a schema
	 * meanwhile
	 */
	if (def->info && may_compute(keys->rel))
		return owners_key(keys, def, slot);
	def->hashed = false;
	return key;
}

static pg_noinline RowKey
other_key(MipwKeys *keys, MipwKeyDef *def, TupleTableSlot *slot)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (def->computed)
		return computed_key(keys, def, slot);
	for (int i = 0; i < def->ncolumns; i++)
		values[i] = slot_getattr(slot, def->attnums[i], &nulls[i]);
	return key_of_values(def, values, nulls);
}

static pg_attribute_always_inline RowKey
row_key(MipwKeys *keys, MipwKeyDef *def, TupleTableSlot *slot)
{
	return likely(def->plain) ? plain_key(def, slot) : other_key(keys, def, slot);
}

/* Has the update changed what this key is of? True: perhaps. */
static inline bool
may_have_changed(const MipwKeys *keys, const MipwKeyDef *def)
{
	if (def->computed)
		return true;
	for (int i = 0; i < def->ncolumns; i++)
		if (keys->table->changed[def->attnums[i] - 1])
			return true;
	return false;
}

/* ---- keys of a change ---- */

/* Another version of the extension may have a hash function for it: these are not met as N. */
static bool
may_be_hashed_elsewhere(const MipwKeyDef *def)
{
	return def->of_extension && !def->hashed;
}

/* Of an update, the row's key that it has left alone; it names the row. */
static inline void
write_unchanged(const MipwKeyDef *def, MipwWriter *writer, RowKey key)
{
	if (key.there)
		mipw_put_key(writer, key.hash, may_be_hashed_elsewhere(def) ? MIPW_K : MIPW_N);
}

/* Equal values may have other bytes. */
static pg_noinline void
write_changed(MipwKeys *keys, MipwKeyDef *def, MipwWriter *writer,
			  TupleTableSlot *old, TupleTableSlot *new)
{
	RowKey		was = row_key(keys, def, old);
	RowKey		is = row_key(keys, def, new);
	bool		changed = was.there != is.there ||
		(was.there && (was.hash != is.hash || !def->hashed));

	if (changed && was.there)
		mipw_put_key(writer, was.hash, MIPW_K);
	if (changed && is.there)
		mipw_put_key(writer, is.hash, MIPW_K);
	if (!changed && def->names_row)
		write_unchanged(def, writer, was);
}

/*
 * An update's: what it has left alone is N of the identity and of the primary key, by
 * which copies may tell rows that have another identity, and nothing of others.
 */
static inline void
write_index_update(MipwKeys *keys, MipwKeyDef *def, MipwWriter *writer,
				   TupleTableSlot *old, TupleTableSlot *new)
{
	if (may_have_changed(keys, def))
		write_changed(keys, def, writer, old, new);
	else if (def->names_row)
		write_unchanged(def, writer, row_key(keys, def, old));
}

static inline void
write_index(MipwKeys *keys, MipwKeyDef *def, MipwWriter *writer, TupleTableSlot *slot)
{
	RowKey		key = row_key(keys, def, slot);

	if (key.there)
		mipw_put_key(writer, key.hash, MIPW_K);
}

/* A reference counts that has been set: it is what the row must find. */
static pg_noinline void
write_reference(MipwKeys *keys, MipwKeyDef *def, MipwWriter *writer, char op,
				TupleTableSlot *old, TupleTableSlot *new)
{
	RowKey		key;

	if (op == 'D' || (op == 'U' && !may_have_changed(keys, def)))
		return;
	key = row_key(keys, def, new);
	if (!key.there)
		return;
	mipw_put_key(writer, key.hash, def->hashed ? MIPW_R : def->unhashed_mode);
	/* and where it is not hashed, K of the relation has to be met */
	if (def->of_extension && def->hashed)
		mipw_put_key(writer, def->relation, MIPW_R);
}

/* Of a table without identity: the old row's bytes, in whatever order the columns are. */
static pg_noinline void
write_whole_row(MipwKeys *keys, MipwWriter *writer, TupleTableSlot *old)
{
	const MipwRelation *relation = &keys->table->relation;
	uint64		hash = keys->row_seed;

	slot_getallattrs(old);
	for (int i = 0; i < relation->nidentity; i++)
	{
		int			column = relation->identity[i];
		int			att = keys->table->attnums[column] - 1;
		uint8		room[MIPW_WIDEST];
		MipwValue	value;
		uint64		seed;

		if (old->tts_isnull[att])
			continue;
		mip_value_encode(&keys->table->codecs[column], old->tts_values[att], room, &value);
		seed = add_name(keys->row_seed, relation->columns[column].name);
		hash += hash_bytes_extended(value.data, value.length, seed);
	}
	mipw_put_key(writer, hash, MIPW_K);
}

static pg_noinline void
write_relations(MipwKeys *keys, MipwWriter *writer, uint8 mode)
{
	mipw_put_key(writer, keys->relations[0], mode);
	for (int i = 1; i < keys->nrelations; i++)
		mipw_put_key(writer, keys->relations[i], MIPW_R);
	keys->written = mode;
}

void
mip_keys_write(MipwKeys *keys, MipwWriter *writer, char op, TupleTableSlot *old,
			   TupleTableSlot *new)
{
	uint8		mode = op == 'T' ? MIPW_K : MIPW_R;

	if (unlikely(keys->written < mode))
		write_relations(keys, writer, mode);
	if (op == 'T')
		return;
	for (int i = 0; i < keys->ndefs; i++)
	{
		MipwKeyDef *def = &keys->defs[i];

		if (def->reference)
			write_reference(keys, def, writer, op, old, new);
		else if (op == 'U')
			write_index_update(keys, def, writer, old, new);
		else
			write_index(keys, def, writer, op == 'I' ? new : old);
	}
	if (op != 'I' && !keys->has_identity)
		write_whole_row(keys, writer, old);
}
