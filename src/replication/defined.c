/*-------------------------------------------------------------------------
 *
 * defined.c
 *	  What a definition has left: is it the same at all replicas?
 *
 * It is looked for in the catalogs, in whatever way it has come there. Rows that were there have been
 * looked at for constraints that are new, or have just been validated; for indexes; and
 * for generated columns. What is new has no rows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/rows.h"
#include "mipt/catalog.h"
#include "replication/defined.h"
#include "replication/everywhere.h"
#include "replication/fits.h"
#include "replication/trust.h"
#include "tableam/aside.h"
#include "writeset/types.h"

struct MipDefinedBefore
{
	List	   *constraints;	/* that have been validated */
	List	   *domains;
};

/* ---- what was there before ---- */

static void
note_constraint(Relation constraints, HeapTuple row, void *before)
{
	Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(row);

	if (form->contype == CONSTRAINT_CHECK && form->convalidated)
		((MipDefinedBefore *) before)->constraints = lappend_oid(((MipDefinedBefore *) before)->constraints, form->oid);
}

static void
note_domain(Relation types, HeapTuple row, void *before)
{
	Form_pg_type form = (Form_pg_type) GETSTRUCT(row);

	if (form->typtype == TYPTYPE_DOMAIN)
		((MipDefinedBefore *) before)->domains = lappend_oid(((MipDefinedBefore *) before)->domains, form->oid);
}

MipDefinedBefore *
mip_defined_before(void)
{
	MipDefinedBefore *before = palloc0(sizeof(MipDefinedBefore));

	mip_each_row(ConstraintRelationId, note_constraint, before);
	mip_each_row(TypeRelationId, note_domain, before);
	return before;
}

/* ---- what is new ---- */

pg_noreturn static void
refuse_defined(const char *name, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate \"%s\"", name),
			 errdetail_internal("%s", detail)));
	pg_unreachable();
}

/* Expressions are stored in columns that may be NULL. */
static bool
stored_same_everywhere(Relation catalog, HeapTuple row, AttrNumber column)
{
	bool		isnull;
	Datum		stored = heap_getattr(row, column, RelationGetDescr(catalog), &isnull);

	return isnull || mip_same_everywhere(stringToNode(TextDatumGetCString(stored)));
}

bool
mip_was_there(Oid relid)
{
	Relation	rel = table_open(relid, AccessShareLock);
	bool		result = rel->rd_createSubid == InvalidSubTransactionId;

	table_close(rel, AccessShareLock);
	return result;
}

/* ---- rows that are there ---- */

static bool
looks_at_rows(const FormData_pg_constraint *form, const MipDefinedBefore *before)
{
	return form->contype == CONSTRAINT_CHECK && form->convalidated &&
		!list_member_oid(before->constraints, form->oid) &&
		(OidIsValid(form->conrelid) ? mip_was_there(form->conrelid) : list_member_oid(before->domains, form->contypid));
}

static void
check_constraint(Relation constraints, HeapTuple row, void *before)
{
	Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(row);

	if (mip_row_is_new(row) && looks_at_rows(form, before) &&
		!stored_same_everywhere(constraints, row, Anum_pg_constraint_conbin))
		refuse_defined(NameStr(form->conname), "Whether rows that are there fit is not the same everywhere.");
}

/* Each replica computes its values: for rows that are there, or whenever they are read. */
static bool
is_computed(Oid relid, AttrNumber column)
{
	HeapTuple	tuple = SearchSysCache2(ATTNUM, ObjectIdGetDatum(relid), Int16GetDatum(column));
	Form_pg_attribute form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_attribute) GETSTRUCT(tuple);
	result = form->attgenerated && (MIP_IS_VIRTUAL(form) || mip_was_there(relid));
	ReleaseSysCache(tuple);
	return result;
}

static void
check_generated(Relation defaults, HeapTuple row, void *arg)
{
	Form_pg_attrdef form = (Form_pg_attrdef) GETSTRUCT(row);

	if (mip_row_is_new(row) && is_computed(form->adrelid, form->adnum) &&
		!stored_same_everywhere(defaults, row, Anum_pg_attrdef_adbin))
		refuse_defined(get_attname(form->adrelid, form->adnum, false), "Rows would have values that go by what each replica has chosen.");
}

/* It has been built, or will be as rows come. Which rows exclude each other goes by its expressions, too. */
static void
check_index(Relation indexes, HeapTuple row, void *arg)
{
	Form_pg_index form = (Form_pg_index) GETSTRUCT(row);
	Relation	rel;

	if (!mip_row_is_new(row))
		return;
	if (!stored_same_everywhere(indexes, row, Anum_pg_index_indexprs) ||
		!stored_same_everywhere(indexes, row, Anum_pg_index_indpred))
		refuse_defined(get_rel_name(form->indexrelid), "What it has of a row goes by what each replica has chosen.");
	if (get_rel_relkind(form->indrelid) != RELKIND_RELATION)
		return;
	rel = table_open(form->indrelid, AccessShareLock);
	mip_check_trusted(rel);
	table_close(rel, AccessShareLock);
}

/* An index called so is taken for one that each replica has for a while, whatever has named it, or stored it anew. */
static void
check_index_name(Relation classes, HeapTuple row, void *arg)
{
	Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

	if ((form->relkind == RELKIND_INDEX || form->relkind == RELKIND_PARTITIONED_INDEX) &&
		mip_row_is_new(row) && mip_name_is_of_reindex(NameStr(form->relname)))
		refuse_defined(NameStr(form->relname),
					   "REINDEX CONCURRENTLY gives such names: choose another one, or drop what it has left behind.");
}

/* Rows that are there, not stored at all replicas in the same way, get entries. */
static void
note_new_index(Relation indexes, HeapTuple row, void *found)
{
	List	  **new = found;

	if (mip_row_is_new(row))
		*new = lappend_oid(*new, ((Form_pg_index) GETSTRUCT(row))->indexrelid);
}

static void
check_rows_fit(void)
{
	List	   *new = NIL;
	ListCell   *lc;

	mip_each_row(IndexRelationId, note_new_index, &new);
	foreach(lc, new)
		mip_check_index_fits(lfirst_oid(lc));
}

/* ---- what is another session's ---- */

static Oid
schema_of(Oid class, Oid object)
{
	ObjectAddress address = {.classId = class,.objectId = object};

	return is_objectclass_supported(class) ? get_object_namespace(&address) : InvalidOid;
}

/* What is temporary has a schema by which a superuser may name it; of his own session there is none. */
static void
check_dependency(Relation dependencies, HeapTuple row, void *arg)
{
	Form_pg_depend form = (Form_pg_depend) GETSTRUCT(row);

	if (mip_row_is_new(row) && isAnyTempNamespace(schema_of(form->refclassid, form->refobjid)))
		refuse_defined(get_namespace_name(schema_of(form->refclassid, form->refobjid)),
					   "What is temporary is a session's of this replica.");
}

/* ---- partitions ---- */

/* What a search looks for: visitors of types know nothing else. */
static bool any_enum;
static List *labelled;			/* enums that have new labels */

static bool
is_enum(Oid type, HTAB *seen)
{
	return stack_is_too_deep() ||
		(get_typtype(type) == TYPTYPE_ENUM && (any_enum || list_member_oid(labelled, type)));
}

static bool
goes_by_enum(PartitionKey key)
{
	HTAB	   *seen = mip_types_seen();
	bool		result = false;

	for (int i = 0; i < key->partnatts && !result; i++)
		result = mip_any_type(key->parttypid[i], seen, is_enum);
	hash_destroy(seen);
	return result;
}

static void
note_label(Relation labels, HeapTuple row, void *arg)
{
	if (mip_row_is_new(row))
		labelled = lappend_oid(labelled, ((Form_pg_enum) GETSTRUCT(row))->enumtypid);
}

/* A label's hash is that of its OID; those that have come with a copy are the same. */
static void
check_partitioned(Relation tables, HeapTuple row, void *arg)
{
	Form_pg_partitioned_table form = (Form_pg_partitioned_table) GETSTRUCT(row);
	Relation	rel;

	if (mip_row_is_new(row) && !stored_same_everywhere(tables, row, Anum_pg_partitioned_table_partexprs))
		refuse_defined(get_rel_name(form->partrelid), "Where its rows are goes by what each replica has chosen.");
	if (form->partstrat != PARTITION_STRATEGY_HASH)
		return;
	any_enum = mip_row_is_new(row);
	rel = table_open(form->partrelid, AccessShareLock);
	if (goes_by_enum(RelationGetPartitionKey(rel)))
		refuse_defined(RelationGetRelationName(rel), "It is partitioned by the hash of an enum, which is another one at each replica.");
	table_close(rel, AccessShareLock);
}

static bool
any_differs(const List *values)
{
	ListCell   *lc;

	foreach(lc, values)
	{
		Node	   *value = lfirst(lc);

		if (IsA(value, PartitionRangeDatum))
			value = ((PartitionRangeDatum *) value)->value;
		if (value && !mip_same_everywhere(value))
			return true;
	}
	return false;
}

/* As it has become by the key's type */
static void
check_bound(Relation classes, HeapTuple row, void *arg)
{
	bool		isnull;
	Datum		stored;
	PartitionBoundSpec *bound;

	if (!mip_row_is_new(row))
		return;
	stored = heap_getattr(row, Anum_pg_class_relpartbound, RelationGetDescr(classes), &isnull);
	if (isnull)
		return;
	bound = castNode(PartitionBoundSpec, stringToNode(TextDatumGetCString(stored)));
	if (any_differs(bound->listdatums) || any_differs(bound->lowerdatums) || any_differs(bound->upperdatums))
		refuse_defined(NameStr(((Form_pg_class) GETSTRUCT(row))->relname), "Its bounds go by what each replica has chosen.");
}

static void
check_partitions(void)
{
	labelled = NIL;
	mip_each_row(EnumRelationId, note_label, NULL);
	mip_each_row(PartitionedRelationId, check_partitioned, NULL);
	mip_each_row(RelationRelationId, check_bound, NULL);
}

/* ---- pg_mip itself ---- */

static bool
is_strongly_locked(Oid relid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	for (LOCKMODE mode = ShareUpdateExclusiveLock; mode <= AccessExclusiveLock; mode++)
	{
		if (mip_lock_held_by_me(&tag, mode))
			return true;
	}
	return false;
}

static void
check_own_table(Relation classes, HeapTuple row, void *schema)
{
	Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

	if (form->relnamespace == *(Oid *) schema && is_strongly_locked(form->oid))
		refuse_defined(NameStr(form->relname), "Replicas are kept the same by what is in schema \"mip\".");
}

static void
check_own_function(Relation functions, HeapTuple row, void *schema)
{
	Form_pg_proc form = (Form_pg_proc) GETSTRUCT(row);

	if (form->pronamespace == *(Oid *) schema && mip_row_is_new(row))
		refuse_defined(NameStr(form->proname), "Replicas are kept the same by what is in schema \"mip\".");
}

static void
note_update(Relation extensions, HeapTuple row, void *updated)
{
	if (strcmp(NameStr(((Form_pg_extension) GETSTRUCT(row))->extname), "pg_mip") == 0)
		*(bool *) updated = mip_row_is_new(row);
}

/* Only an update of the extension changes it. */
static void
check_extension(void)
{
	Oid			schema = get_namespace_oid("mip", true);
	bool		updated = false;

	if (!mipt_exists() || !OidIsValid(schema))
		refuse_defined("pg_mip", "Without it nothing is replicated.");
	mip_each_row(ExtensionRelationId, note_update, &updated);
	if (updated)
		return;
	mip_each_row(RelationRelationId, check_own_table, &schema);
	mip_each_row(ProcedureRelationId, check_own_function, &schema);
}

void
mip_check_defined(MipDefinedBefore *before)
{
	CommandCounterIncrement();
	check_extension();
	mip_each_row(ConstraintRelationId, check_constraint, before);
	mip_each_row(AttrDefaultRelationId, check_generated, NULL);
	mip_each_row(IndexRelationId, check_index, NULL);
	mip_each_row(RelationRelationId, check_index_name, NULL);
	check_partitions();
	mip_each_row(DependRelationId, check_dependency, NULL);
	check_rows_fit();
}
