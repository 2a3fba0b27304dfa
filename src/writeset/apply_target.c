/*-------------------------------------------------------------------------
 *
 * apply_target.c
 *	  The tables that the application of a writeset changes.
 *
 * A table fits if its columns are those of the writeset, by name and type; generated
 * ones, and those that have been dropped, do not count. What is found out about it is
 * kept until the end: a writeset is many small changes of few tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodes.h"
#include "parser/parse_relation.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/owner.h"
#include "tableam/am.h"
#include "tableam/aside.h"
#include "writeset/apply_others.h"
#include "writeset/apply_target.h"
#include "writeset/apply_trigger.h"
#include "writeset/types.h"
#include "writeset/values.h"

/* ---- rights ---- */

static void
check_rights(Oid relid, AclMode right)
{
	AclResult	result = pg_class_aclcheck(relid, GetUserId(), right);

	/* columns are looked at with each change: mip_target_check_columns */
	if (result != ACLCHECK_OK && (right & (ACL_INSERT | ACL_UPDATE)) != 0)
		result = pg_attribute_aclcheck_all(relid, GetUserId(), right, ACLMASK_ANY);
	if (result != ACLCHECK_OK)
		aclcheck_error(result, get_relkind_objtype(get_rel_relkind(relid)), get_rel_name(relid));
}

/* Before the table is locked */
static void
check_before_lock(const RangeVar *relation, Oid relid, Oid before, void *right)
{
	if (OidIsValid(relid))
		check_rights(relid, *(AclMode *) right);
}

static void
check_row_security(Relation rel)
{
	if (check_enable_rls(RelationGetRelid(rel), InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot apply a writeset to table \"%s\", whose row security applies to user \"%s\"",
						RelationGetRelationName(rel), GetUserNameFromId(GetUserId(), true)),
				 errhint("Let the table's owner, or a role with BYPASSRLS, apply it.")));
}

pg_noreturn static void
refuse_identity(const MipTarget *target)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be owner of table \"%s\" to apply a writeset to it",
					RelationGetRelationName(target->rel)),
			 errdetail("It updates a column that is GENERATED ALWAYS AS IDENTITY."),
			 errhint("Let the table's owner apply it.")));
}

/* Such values are inserted by whoever says so (OVERRIDING), but updated by nobody. */
static void
note_identity_columns(MipTarget *target)
{
	TupleDesc	desc = RelationGetDescr(target->rel);

	if (mip_object_ownercheck_class(RelationGetRelid(target->rel), GetUserId()))
		return;
	for (int i = 0; i < desc->natts; i++)
		if (TupleDescAttr(desc, i)->attidentity == ATTRIBUTE_IDENTITY_ALWAYS)
			target->owners = bms_add_member(target->owners,
											i + 1 - FirstLowInvalidHeapAttributeNumber);
}

void
mip_target_check_columns(const MipTarget *target, AclMode right, const Bitmapset *columns)
{
	Oid			relid = RelationGetRelid(target->rel);
	int			column = -1;

	if (right == ACL_UPDATE && bms_overlap(target->owners, columns))
		refuse_identity(target);
	if ((target->rights & right) != 0)
		return;
	while ((column = bms_next_member(columns, column)) >= 0)
	{
		AttrNumber	attno = column + FirstLowInvalidHeapAttributeNumber;
		AclResult	result = pg_attribute_aclcheck(relid, attno, GetUserId(), right);

		if (result != ACLCHECK_OK)
			aclcheck_error(result, OBJECT_TABLE, RelationGetRelationName(target->rel));
	}
}

/* Settings of fixed values are not the owner's, and levels of settings end in their order. */
MipUser
mip_target_become_owner(MipApply *apply, const MipTarget *target)
{
	MipUser		user = {0};

	if (!apply->as_is)
		return user;
	mip_apply_own_settings(apply);
	return mip_become_owner(target->rel->rd_rel->relowner, true);
}

void
mip_target_become_again(MipApply *apply, MipUser user)
{
	if (!apply->as_is)
		return;
	mip_apply_own_settings(apply);
	mip_become_again(user);
}

/* ---- does it fit? ---- */

pg_noreturn static void
mip_refuse_table(const MipTarget *target, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_OTHER_TABLE),
			 errmsg("table \"%s\" is not as the writeset has it", target->name),
			 errdetail_internal("%s", detail)));
}

static Relation
open_table(MipApply *apply, MipTarget *target, AclMode right)
{
	RangeVar   *name = makeRangeVar(target->source->schema,
									target->source->name, -1);
	LOCKMODE	mode = right == ACL_TRUNCATE ? AccessExclusiveLock : RowExclusiveLock;
	Oid			relid = RangeVarGetRelidExtended(name, mode, RVR_MISSING_OK,
												 check_before_lock, &right);
	Relation	rel;

	if (!OidIsValid(relid))
		mip_refuse_table(target, "There is no such table.");
	rel = relation_open(relid, NoLock);
	if (rel->rd_rel->relkind != RELKIND_RELATION ||
		rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP || IsCatalogRelation(rel) ||
		(rel->rd_rel->relam != HEAP_TABLE_AM_OID && !mip_relation_is_mip(rel)))
		mip_refuse_table(target, "It is not an ordinary table with the access method \"heap\" or \"mip\".");
	return rel;
}

/* Are values of it taken from writesets? */
static bool
takes_values(const MipApply *apply, Form_pg_attribute attr)
{
	return !attr->attisdropped &&
		(!attr->attgenerated || (apply->as_is && !MIP_IS_VIRTUAL(attr)));
}

/* The column of that name; NULL if there is none that takes values */
static Form_pg_attribute
find_column(const MipApply *apply, Relation rel, const char *name)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);

		if (takes_values(apply, attr) && strcmp(NameStr(attr->attname), name) == 0)
			return attr;
	}
	return NULL;
}

static int
count_columns(const MipApply *apply, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int			count = 0;

	for (int i = 0; i < desc->natts; i++)
		count += takes_values(apply, TupleDescAttr(desc, i));
	return count;
}

/* Writesets of earlier versions have quotes around keywords. */
static bool
is_of_type(const MipwColumn *column, const char *type)
{
	return strcmp(column->type, type) == 0 ||
		(column->width == mipw_width(type) && strcmp(mip_plain_name(column->type), type) == 0);
}

static void
map_columns(MipApply *apply, MipTarget *target)
{
	const MipwRelation *source = target->source;
	int			count = 0;

	target->columns = palloc(source->ncolumns * sizeof(MipColumn));
	target->values = palloc(source->ncolumns * sizeof(MipwValue));
	for (int i = 0; i < source->ncolumns; i++)
	{
		const MipwColumn *column = &source->columns[i];
		Form_pg_attribute attr = NULL;

		if ((column->flags & MIPW_GENERATED) == 0 || apply->as_is)
		{
			attr = find_column(apply, target->rel, column->name);
			if (attr == NULL)
				mip_refuse_table(target, psprintf(_("It has no column \"%s\" that takes values."),
												  column->name));
			if (!is_of_type(column, mip_type_name(attr->atttypid)))
				mip_refuse_table(target, psprintf(_("Column \"%s\" is of type %s, not %s."),
												  NameStr(attr->attname),
												  mip_type_name(attr->atttypid),
												  column->type));
			count++;
		}
		mip_column_init(&target->columns[i], attr);
		target->fixed |= target->columns[i].fixed;
		target->domains |= OidIsValid(target->columns[i].domain);
	}
	if (count != count_columns(apply, target->rel))
		mip_refuse_table(target, psprintf(_("It has %d columns that take values, not %d."),
										  count_columns(apply, target->rel), count));
}

Bitmapset *
mip_target_given(const MipTarget *target, const MipwValue *values)
{
	Bitmapset  *given = NULL;

	for (int i = 0; i < target->source->ncolumns; i++)
	{
		AttrNumber	attno = target->columns[i].attno;

		if (values[i].there && attno != 0)
			given = bms_add_member(given, attno - FirstLowInvalidHeapAttributeNumber);
	}
	return given;
}

/* ---- settings ---- */

void
mip_target_fix_settings(MipApply *apply, const MipTarget *target)
{
	if (target->fixed && apply->settings == 0)
		apply->settings = mip_values_begin();
}

void
mip_apply_own_settings(MipApply *apply)
{
	if (apply->settings == 0)
		return;
	mip_values_end(apply->settings);
	apply->settings = 0;
}

void
mip_target_own_settings(MipApply *apply, const MipTarget *target)
{
	if (target->runs_code)
		mip_apply_own_settings(apply);
}

/* Partition bounds may call functions of operator classes. */
static bool
runs_code(const MipTarget *target)
{
	TupleConstr *constr = RelationGetDescr(target->rel)->constr;
	ResultRelInfo *info = target->info;

	if (info->ri_TrigDesc || target->domains || target->rel->rd_rel->relispartition ||
		(constr && (constr->num_check > 0 || constr->has_generated_stored)))
		return true;
	for (int i = 0; i < info->ri_NumIndices; i++)
		if (info->ri_IndexRelationInfo[i]->ii_Expressions ||
			info->ri_IndexRelationInfo[i]->ii_Predicate)
			return true;
	return false;
}

/* A domain that a column is of is not asked when its values are read, but those within them are. */
static bool
identity_goes_by_others(const MipTarget *target)
{
	const MipwRelation *source = target->source;
	HTAB	   *seen = mip_types_seen();
	bool		result = false;

	for (int i = 0; i < source->nidentity && !result; i++)
	{
		Oid			type = target->columns[source->identity[i]].codec.type;

		result = mip_type_goes_by_others(getBaseType(type), seen);
	}
	hash_destroy(seen);
	return result;
}

#define WRITES	(ACL_INSERT | ACL_UPDATE)
#define FINDS	(ACL_UPDATE | ACL_DELETE)

/* Before the first change of its kind, and not before there is one. */
static void
note_others(MipApply *apply, MipTarget *target, AclMode right)
{
	MipUser		user;

	if (right == ACL_TRUNCATE)
		return;
	mip_apply_own_settings(apply);
	user = mip_target_become_owner(apply, target);
	if ((right & WRITES) != 0 && (target->checked & WRITES) == 0)
		target->in_order = mip_rows_go_by_others(target->rel, !apply->as_is);
	if ((right & FINDS) != 0 && (target->checked & FINDS) == 0)
		target->in_turn = identity_goes_by_others(target);
	mip_target_become_again(apply, user);
}

/* ---- by what rows are found ---- */

/* Are all columns of the identity among the index's? It may have one twice. */
static bool
has_identity(const MipTarget *target, const Form_pg_index form)
{
	const MipwRelation *source = target->source;

	for (int i = 0; i < source->nidentity; i++)
	{
		AttrNumber	attno = target->columns[source->identity[i]].attno;
		bool		found = false;

		for (int j = 0; j < form->indnkeyatts && !found; j++)
			found = form->indkey.values[j] == attno;
		if (!found)
			return false;
	}
	return true;
}

/* Is the column part of the identity? */
static bool
is_identity(const MipTarget *target, AttrNumber attno)
{
	const MipwRelation *source = target->source;

	/* 0: an expression */
	for (int i = 0; i < source->nidentity && attno != 0; i++)
		if (target->columns[source->identity[i]].attno == attno)
			return true;
	return false;
}

/*
 * Does the index lead to the rows that the snapshot of REPEATABLE READ shows? Not to some
 * that were changed behind it if the index was made then, over HOT chains (as in plancat.c).
 * Who may take a new snapshot finds them with that.
 */
static bool
goes_with_snapshot(Relation index)
{
	return !IsolationUsesXactSnapshot() || !index->rd_index->indcheckxmin ||
		TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
							  TransactionXmin);
}

/* Does it compare whatever there is? Values of several may have some that have no order. */
static bool
never_fails(Relation index)
{
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		Oid			type = index->rd_opcintype[i];

		if ((get_typtype(type) == TYPTYPE_PSEUDO && type != ANYENUMOID) ||
			index_getprocid(index, i + 1, BTORDER_PROC) >= FirstNormalObjectId)
			return false;
	}
	return true;
}

/* Can it lead to all rows, by columns of the identity? */
static bool
is_fitting_index(const MipApply *apply, const MipTarget *target, Relation index)
{
	Form_pg_index form = index->rd_index;

	if (apply->as_is && !mip_index_is_needed(index) && !never_fails(index))
		return false;
	if (index->rd_rel->relam != BTREE_AM_OID || !form->indisvalid ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return false;
	for (int i = 0; i < form->indnkeyatts; i++)
		if (!is_identity(target, form->indkey.values[i]))
			return false;
	if (target->source->whole)
		return goes_with_snapshot(index);
	return form->indisunique && has_identity(target, form);
}

/*
 * Of those for a whole row, of which more than one may have the same key, a unique one
 * is the best, else the one with most columns.
 */
static int
index_rank(Relation index)
{
	if (!goes_with_snapshot(index))
		return 0;
	return index->rd_index->indisunique ? INDEX_MAX_KEYS + 1 : index->rd_index->indnkeyatts;
}

static void
choose_index(const MipApply *apply, MipTarget *target)
{
	ResultRelInfo *info = target->info;

	target->index = NULL;
	for (int i = 0; i < info->ri_NumIndices; i++)
	{
		Relation	index = info->ri_IndexRelationDescs[i];

		if (is_fitting_index(apply, target, index) &&
			(target->index == NULL || index_rank(index) > index_rank(target->index)))
			target->index = index;
	}
	if (target->index == NULL && !target->source->whole)
		mip_refuse_table(target, _("It has no unique index of the columns by which the writeset identifies rows."));
	target->unscanned = target->index && !goes_with_snapshot(target->index);
}

/* Equality of the index, not that of the type */
static void
init_keys(MipTarget *target)
{
	Relation	index = target->index;

	target->nkeys = index->rd_index->indnkeyatts;
	for (int i = 0; i < target->nkeys; i++)
	{
		Oid			family = index->rd_opfamily[i];
		Oid			type = index->rd_opcintype[i];
		Oid			equal = get_opfamily_member(family, type, type, BTEqualStrategyNumber);

		if (!OidIsValid(equal))
			elog(ERROR, "pg_mip: operator family %u has no equality of type %u", family, type);
		ScanKeyInit(&target->keys[i], i + 1, BTEqualStrategyNumber, get_opcode(equal), (Datum) 0);
		target->keys[i].sk_collation = index->rd_indcollation[i];
	}
}

/* From place `from` up to `to`, which is before it; all between move on by one. */
static void
move_index(ResultRelInfo *info, int from, int to)
{
	Relation	index = info->ri_IndexRelationDescs[from];
	IndexInfo  *of_index = info->ri_IndexRelationInfo[from];

	memmove(&info->ri_IndexRelationDescs[to + 1], &info->ri_IndexRelationDescs[to], (from - to) * sizeof(Relation));
	memmove(&info->ri_IndexRelationInfo[to + 1], &info->ri_IndexRelationInfo[to], (from - to) * sizeof(IndexInfo *));
	info->ri_IndexRelationDescs[to] = index;
	info->ri_IndexRelationInfo[to] = of_index;
}

/* What is cleaned up behind each row, or batch of them, has a context of its own for that (apply_aside.c). */
static void
set_context(Relation index, IndexInfo *info)
{
	if (MIP_HAS_INSERT_CLEANUP(index))
		info->ii_Context = AllocSetContextCreate(CurrentMemoryContext, "dispensable index", ALLOCSET_SMALL_SIZES);
}

/* In an order that stays, whichever come and go: the needed ones first, all by their OIDs */
static void
open_indexes(const MipApply *apply, MipTarget *target)
{
	ExecOpenIndices(target->info, false);
	target->nneeded = 0;
	for (int i = 0; i < target->info->ri_NumIndices; i++)
	{
		if (!apply->as_is || mip_index_is_needed(target->info->ri_IndexRelationDescs[i]))
			move_index(target->info, i, target->nneeded++);
		else
			set_context(target->info->ri_IndexRelationDescs[i], target->info->ri_IndexRelationInfo[i]);
	}
}

void
mip_target_open_indexes(MipApply *apply, MipTarget *target)
{
	MemoryContext before;

	if (target->indexed)
		return;
	before = MemoryContextSwitchTo(apply->estate->es_query_cxt);
	open_indexes(apply, target);
	target->indexed = true;
	target->runs_code = runs_code(target);
	choose_index(apply, target);
	if (target->index)
		init_keys(target);
	MemoryContextSwitchTo(before);
}

/* So that they can be opened again */
static void
close_indexes(MipTarget *target)
{
	ResultRelInfo *info = target->info;

	ExecCloseIndices(info);
	info->ri_NumIndices = 0;
	info->ri_IndexRelationDescs = NULL;
	info->ri_IndexRelationInfo = NULL;
	target->indexed = false;
}

int
mip_target_find_index(const MipTarget *target, Oid index)
{
	for (int i = 0; i < target->info->ri_NumIndices; i++)
	{
		if (RelationGetRelid(target->info->ri_IndexRelationDescs[i]) == index)
			return i;
	}
	return -1;
}

void
mip_target_close_indexes(MipTarget *target)
{
	ExecClearTuple(target->found);
	ExecClearTuple(target->other);
	if (target->scan)
		index_endscan(target->scan);
	target->scan = NULL;
	target->map = NULL;
	MemoryContextReset(target->map_memory);
	if (target->indexed)
		close_indexes(target);
}

/* ---- beginning, ending ---- */

/* So often no table need be described; each takes memory, and time with each change. */
#define MOST_TWINS	100

/* For messages of constraints, and triggers that fire for some columns only */
static void
enter_range_table(MipApply *apply, MipTarget *target)
{
	EState	   *estate = apply->estate;
	RangeTblEntry *rte = makeNode(RangeTblEntry);

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(target->rel);
	rte->relkind = target->rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
	mip_add_permissions(estate, rte);
	estate->es_range_table = lappend(estate->es_range_table, rte);
	InitResultRelInfo(target->info, target->rel, list_length(estate->es_range_table), NULL, 0);
	estate->es_opened_result_relations = lappend(estate->es_opened_result_relations,
												 target->info);
}

/*
 * A table that is described in two ways, as compaction leaves them, is one: it is opened
 * once, since a table that is open twice cannot be truncated.
 */
static void
join_twin(MipApply *apply, MipTarget *target)
{
	int			twins = 0;

	target->twin = target;
	for (uint32 i = 0; i < apply->set->nrelations; i++)
	{
		MipTarget  *other = apply->targets[i];

		if (other == NULL || RelationGetRelid(other->rel) != RelationGetRelid(target->rel))
			continue;
		table_close(target->rel, NoLock);
		target->shares = true;
		target->twin = other->twin;
		other->twin = target;
		break;
	}
	for (MipTarget *twin = target->twin; twin != target; twin = twin->twin)
		if (++twins >= MOST_TWINS)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("the writeset describes table \"%s\" too often", target->name)));
}

static MipTarget *
open_target(MipApply *apply, const MipwChange *change, AclMode right)
{
	MipTarget  *target = palloc0(sizeof(MipTarget));

	target->source = change->relation;
	target->name = psprintf("%s.%s", change->relation->schema,
							change->relation->name);
	target->rel = open_table(apply, target, right);
	check_row_security(target->rel);
	mip_check_may_pass_over_triggers(target->rel);
	apply->check_table(target->rel);
	join_twin(apply, target);
	map_columns(apply, target);
	note_identity_columns(target);
	target->info = makeNode(ResultRelInfo);
	enter_range_table(apply, target);
	if (apply->as_is)
		target->info->ri_TrigDesc = NULL;
	else
		mip_choose_triggers(target->info);
	target->wanted = MakeSingleTupleTableSlot(RelationGetDescr(target->rel), &TTSOpsVirtual);
	target->found = table_slot_create(target->rel, NULL);
	target->other = table_slot_create(target->rel, NULL);
	target->row = table_slot_create(target->rel, NULL);
	target->batch_memory = AllocSetContextCreate(CurrentMemoryContext, "rows of a writeset",
												 ALLOCSET_DEFAULT_SIZES);
	target->map_memory = AllocSetContextCreate(CurrentMemoryContext, "where rows are",
											   ALLOCSET_DEFAULT_SIZES);
	return target;
}

static void
note_right(MipTarget *target, AclMode right)
{
	target->checked |= right;
	if (pg_class_aclcheck(RelationGetRelid(target->rel), GetUserId(), right) == ACLCHECK_OK)
		target->rights |= right;
}

/*
 * As with an UPDATE or DELETE with a condition: that a row is there, or not, tells what is
 * in it.
 */
static void
check_may_find(MipTarget *target)
{
	const MipwRelation *source = target->source;
	Bitmapset  *columns = NULL;

	if ((target->checked & ACL_SELECT) != 0)
		return;
	note_right(target, ACL_SELECT);
	for (int i = 0; i < source->nidentity; i++)
	{
		AttrNumber	attno = target->columns[source->identity[i]].attno;

		if (attno != 0)
			columns = bms_add_member(columns, attno - FirstLowInvalidHeapAttributeNumber);
	}
	mip_target_check_columns(target, ACL_SELECT, columns);
	bms_free(columns);
}

MipTarget *
mip_target_of(MipApply *apply, const MipwChange *change, AclMode right)
{
	MipTarget  *target = apply->targets[change->nrelation];

	if (target == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(apply->estate->es_query_cxt);

		target = apply->targets[change->nrelation] = open_target(apply, change, right);
		MemoryContextSwitchTo(before);
	}
	else if ((target->checked & right) == 0)
		check_rights(RelationGetRelid(target->rel), right);
	if ((target->checked & right) == 0)
	{
		note_others(apply, target, right);
		note_right(target, right);
		if (right != ACL_TRUNCATE)
			mip_refuse_transition_tables(target->info, right);
		if (right == ACL_UPDATE || right == ACL_DELETE)
		{
			/*
			 * Or subscribers of this database would miss it, or stop at it.
			 * as_is it has been looked at elsewhere; here the index may be
			 * set aside.
			 */
			if (!apply->as_is)
				CheckCmdReplicaIdentity(target->rel, right == ACL_UPDATE ? CMD_UPDATE : CMD_DELETE);
			check_may_find(target);
		}
	}
	return target;
}

static void
close_target(MipTarget *target)
{
	mip_target_close_indexes(target);
	ExecDropSingleTupleTableSlot(target->wanted);
	ExecDropSingleTupleTableSlot(target->found);
	ExecDropSingleTupleTableSlot(target->other);
	ExecDropSingleTupleTableSlot(target->row);
	for (int i = 0; i < target->nslots; i++)
		ExecDropSingleTupleTableSlot(target->batch[i]);
	if (target->bulk)
		FreeBulkInsertState(target->bulk);
}

/* Tables last: twins share them. */
void
mip_targets_close(MipTarget **targets, uint32 n)
{
	for (uint32 i = 0; i < n; i++)
		if (targets[i])
			close_target(targets[i]);
	for (uint32 i = 0; i < n; i++)
		if (targets[i] && !targets[i]->shares)
			table_close(targets[i]->rel, NoLock);
}
