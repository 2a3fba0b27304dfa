/*-------------------------------------------------------------------------
 *
 * definable.c
 *	  Which definitions are the same at all replicas.
 *
 * Those that follow from what is there already, which is the same. So they are not if rows
 * that are there get values that are computed anew at each replica: of the clock, by
 * chance, of a sequence.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_event_trigger.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type_d.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/analyze.h"
#include "parser/parse_type.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/rows.h"
#include "replication/clock.h"
#include "replication/definable.h"
#include "replication/defined.h"
#include "replication/everywhere.h"
#include "replication/meaningful.h"
#include "tableam/aside.h"
#include "writeset/types.h"

pg_noreturn static void
refuse(const RawStmt *raw, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate %s", GetCommandTagName(CreateCommandTag(raw->stmt))),
			 errdetail_internal("%s", detail)));
	pg_unreachable();
}

/* ---- values that rows get ---- */

/* SELECT (expression)::type FROM relation; as it is without a type */
static RawStmt *
make_select(Node *expression, TypeName *type, RangeVar *relation)
{
	TypeCast   *cast;
	ResTarget  *target = makeNode(ResTarget);
	SelectStmt *select = makeNode(SelectStmt);
	RawStmt    *raw = makeNode(RawStmt);

	target->val = copyObject(expression);
	target->location = -1;
	if (type)
	{
		cast = makeNode(TypeCast);
		cast->arg = target->val;
		cast->typeName = copyObject(type);
		cast->location = -1;
		target->val = (Node *) cast;
	}
	select->targetList = list_make1(target);
	if (relation)
		select->fromClause = list_make1(copyObject(relation));
	raw->stmt = (Node *) select;
	return raw;
}

static bool
is_same_everywhere(const char *command, Node *expression, TypeName *type, RangeVar *relation)
{
	Query	   *query = parse_analyze_fixedparams(make_select(expression, type, relation), command, NULL, 0, NULL);

	return mip_same_everywhere((Node *) query->targetList);
}

static void
check_value(const RawStmt *raw, const char *command, Node *expression, TypeName *type,
			RangeVar *relation)
{
	if (!is_same_everywhere(command, expression, type, relation))
		refuse(raw, "Rows that are there would get values that are computed, and not by IMMUTABLE functions only, or go by what each replica has chosen.");
}

/* A domain has one of its own, and checks it. */
static void
check_default_of_type(const RawStmt *raw, TypeName *name)
{
	Oid			type = typenameTypeId(NULL, name);
	Node	   *value = get_typdefault(type);

	if (value && !mip_same_everywhere(value))
		refuse(raw, "Rows that are there would get a domain's default, which is not the same everywhere.");
	if (!(value ? mip_type_same_everywhere(type) : mip_null_same_everywhere(type)))
		refuse(raw, "Whether rows that are there fit a domain's CHECK is not the same everywhere.");
}

static bool
is_serial(TypeName *type)
{
	static const char *const names[] = {
		"smallserial", "serial2", "serial", "serial4", "bigserial", "serial8"
	};

	for (int i = 0; i < lengthof(names) && list_length(type->names) == 1; i++)
	{
		if (strcmp(strVal(linitial(type->names)), names[i]) == 0)
			return true;
	}
	return false;
}

static void
check_added_column(const RawStmt *raw, const char *command, ColumnDef *column)
{
	bool		has_default = false;
	ListCell   *lc;

	if (is_serial(column->typeName))
		refuse(raw, "Rows that are there would be numbered in another order at each replica.");
	foreach(lc, column->constraints)
	{
		Constraint *constraint = lfirst_node(Constraint, lc);

		if (constraint->contype == CONSTR_IDENTITY)
			refuse(raw, "Rows that are there would be numbered in another order at each replica.");
		if (constraint->contype != CONSTR_DEFAULT)
			continue;
		has_default = true;
		check_value(raw, command, constraint->raw_expr, column->typeName, NULL);
	}
	if (!has_default)
		check_default_of_type(raw, column->typeName);
}

/* Those of an identity column are its sequence's, which is altered, too, and may be another one at each replica. */
static bool
limits_numbers(Oid relid, const char *column, Oid type)
{
	HeapTuple	tuple = SearchSysCacheAttName(relid, column);
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_attribute) GETSTRUCT(tuple))->attidentity && type != INT8OID;
	ReleaseSysCache(tuple);
	return result;
}

static void
check_altered_type(const RawStmt *raw, const char *command, RangeVar *relation, AlterTableCmd *cmd)
{
	ColumnDef  *column = castNode(ColumnDef, cmd->def);
	Node	   *value = column->raw_default;	/* USING */
	Oid			relid = RangeVarGetRelid(relation, NoLock, true);

	if (value == NULL)
	{
		ColumnRef  *ref = makeNode(ColumnRef);

		ref->fields = list_make1(makeString(cmd->name));
		ref->location = -1;
		value = (Node *) ref;
	}
	if (!OidIsValid(relid))
		return;
	check_value(raw, command, value, column->typeName, relation);
	if (limits_numbers(relid, cmd->name, typenameTypeId(NULL, column->typeName)))
		refuse(raw, "Numbers are each replica's own, as is how large they may become: of an identity column the type may only become bigint.");
}

/* ---- rows that are each replica's own ---- */

/* Or has a partition, or child, that is */
static bool
table_has_own_rows(Oid relid)
{
	ListCell   *lc;

	if (!OidIsValid(relid))
		return false;
	if (get_rel_relkind(relid) == RELKIND_MATVIEW)
		return true;
	foreach(lc, find_all_inheritors(relid, AccessShareLock, NULL))
	{
		if (get_rel_persistence(lfirst_oid(lc)) != RELPERSISTENCE_PERMANENT && mip_was_there(lfirst_oid(lc)))
			return true;
	}
	return false;
}

static bool
has_own_rows(const RangeVar *relation)
{
	return table_has_own_rows(RangeVarGetRelid(relation, NoLock, true));
}

static bool
looks_at_rows(AlterTableType subtype)
{
	switch (subtype)
	{
		case AT_AddColumn:
		case AT_AddConstraint:
		case AT_AddIndexConstraint:
		case AT_AlterConstraint:
		case AT_AlterColumnType:
		case AT_AttachPartition:
		case AT_SetNotNull:
		case AT_ValidateConstraint:
			return true;
		default:
			return mip_sets_expression(subtype);
	}
}

static void
check_own_rows(const RawStmt *raw, const RangeVar *relation, const AlterTableCmd *cmd)
{
	if (!looks_at_rows(cmd->subtype))
		return;
	if (has_own_rows(relation) ||
		(cmd->subtype == AT_AttachPartition && has_own_rows(((PartitionCmd *) cmd->def)->name)))
		refuse(raw, "It looks at rows of an unlogged table, which are each replica's own.");
}

pg_noreturn static void
refuse_own_rows(const RawStmt *raw, const char *name)
{
	refuse(raw, psprintf("It looks at rows of \"%s\", which are each replica's own.", name));
}

/* What a statement is about, for whoever looks at each row of a catalog for its sake */
typedef struct About
{
	const RawStmt *raw;
	Oid			object;
} About;

/* Those that refer to it, where it goes */
static void
check_reference(Relation constraints, HeapTuple row, void *arg)
{
	Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(row);
	const About *table = arg;

	if (form->contype == CONSTRAINT_FOREIGN && form->confrelid == table->object && table_has_own_rows(form->conrelid))
		refuse_own_rows(table->raw, get_rel_name(form->conrelid));
}

static void
check_references(const RawStmt *raw, const RangeVar *relation)
{
	About		table = {raw, RangeVarGetRelid(relation, NoLock, true)};

	if (OidIsValid(table.object))
		mip_each_row(ConstraintRelationId, check_reference, &table);
}

/* What a search looks for: visitors of types know nothing else. */
static Oid	domain;

static bool
is_domain(Oid type, HTAB *seen)
{
	return type == domain || stack_is_too_deep();
}

static void
check_no_domain(Relation classes, HeapTuple row, void *raw)
{
	Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
	HTAB	   *seen;
	Relation	rel;

	if (form->relkind != RELKIND_MATVIEW &&
		!(form->relkind == RELKIND_RELATION && form->relpersistence == RELPERSISTENCE_UNLOGGED))
		return;
	rel = relation_open(form->oid, AccessShareLock);
	seen = mip_types_seen();
	if (mip_any_column_type(RelationGetDescr(rel), seen, is_domain))
		refuse_own_rows(raw, RelationGetRelationName(rel));
	hash_destroy(seen);
	relation_close(rel, AccessShareLock);
}

/* ADD a check, SET NOT NULL, VALIDATE */
static void
check_alter_domain(RawStmt *raw, const AlterDomainStmt *stmt)
{
	if (strchr("COV", stmt->subtype) == NULL)
		return;
	domain = typenameTypeId(NULL, makeTypeNameFromNameList(stmt->typeName));
	mip_each_row(RelationRelationId, check_no_domain, raw);
}

/* ---- indexes that are each replica's own ---- */

static void
check_like(const RawStmt *raw, const CreateStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->tableElts)
	{
		if (IsA(lfirst(lc), TableLikeClause) && (((TableLikeClause *) lfirst(lc))->options & CREATE_TABLE_LIKE_INDEXES))
			refuse(raw, "Indexes that are each replica's own would be copied, too: say what else is to be copied, and create them.");
	}
}

static bool
is_unique(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_index) GETSTRUCT(tuple))->indisunique;
	ReleaseSysCache(tuple);
	return result;
}

/* ---- partitions ---- */

/* MINVALUE and MAXVALUE are said as columns are. */
static void
check_bound(const RawStmt *raw, const char *command, const PartitionBoundSpec *bound)
{
	const List *const lists[] = {bound->listdatums, bound->lowerdatums, bound->upperdatums};

	for (int i = 0; i < lengthof(lists); i++)
	{
		ListCell   *lc;

		foreach(lc, lists[i])
		{
			if (!IsA(lfirst(lc), ColumnRef) && !is_same_everywhere(command, lfirst(lc), NULL, NULL))
				refuse(raw, "A partition's bounds are computed, and not by IMMUTABLE functions only, or go by what each replica has chosen: write the values.");
		}
	}
}

/* Rows of the partition that has all others are looked at. */
static void
check_partition(const RawStmt *raw, const char *command, const CreateStmt *stmt)
{
	Oid			parent = RangeVarGetRelid(linitial_node(RangeVar, stmt->inhRelations), NoLock, true);
	Oid			others = OidIsValid(parent) ? get_default_partition_oid(parent) : InvalidOid;

	check_bound(raw, command, stmt->partbound);
	if (table_has_own_rows(others))
		refuse_own_rows(raw, get_rel_name(others));
}

/* One of the partition's that is like it would become a part of it. */
static void
check_attached(const RawStmt *raw, const RangeVar *relation)
{
	Oid			relid = RangeVarGetRelid(relation, AccessShareLock, true);
	Relation	rel;
	ListCell   *lc;

	if (!OidIsValid(relid))
		return;
	rel = relation_open(relid, NoLock);
	foreach(lc, RelationGetIndexList(rel))
	{
		if (!is_unique(lfirst_oid(lc)))
			refuse(raw, psprintf("An index that is each replica's own might become a part of \"%s\": create the partition by PARTITION OF.",
								 get_rel_name(lfirst_oid(lc))));
	}
	relation_close(rel, NoLock);
}

/* A foreign table's children may be tables of ours. */
static bool
is_of_tables(const AlterTableStmt *stmt)
{
	return stmt->objtype == OBJECT_TABLE || stmt->objtype == OBJECT_FOREIGN_TABLE;
}

static bool
is_of_typed_tables(const AlterTableStmt *stmt, const AlterTableCmd *cmd)
{
	return stmt->objtype == OBJECT_TYPE && cmd->behavior == DROP_CASCADE;
}

static void
check_typed(Relation classes, HeapTuple row, void *arg)
{
	Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
	const About *type = arg;

	if (form->reloftype == type->object && table_has_own_rows(form->oid))
		refuse_own_rows(type->raw, NameStr(form->relname));
}

static void
check_typed_tables(const RawStmt *raw, const RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);
	About		type = {raw, OidIsValid(relid) ? get_rel_type_id(relid) : InvalidOid};

	if (OidIsValid(type.object))
		mip_each_row(RelationRelationId, check_typed, &type);
}

/* Some replicas may have it there, and need not copy it, so that rows cannot be compared: not those that something else changes. */
static void
check_alone(const RawStmt *raw, const char *command, const AlterTableStmt *stmt)
{
	if (list_length(stmt->cmds) > 1 || list_length(pg_parse_query(command)) > 1)
		refuse(raw, "SET TABLESPACE goes alone.");
}

/* It may have been made valid, which others need not have. */
static void
check_index_used(const RawStmt *raw, const char *index)
{
	if (index && mip_name_is_of_reindex(index))
		refuse(raw, "REINDEX CONCURRENTLY has left that index behind, at this replica only: drop it.");
}

static void
check_alter_table(const RawStmt *raw, const char *command, AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst_node(AlterTableCmd, lc);

		if (is_of_tables(stmt))
			check_own_rows(raw, stmt->relation, cmd);
		if (is_of_typed_tables(stmt, cmd))
			check_typed_tables(raw, stmt->relation);
		switch (cmd->subtype)
		{
			case AT_AddColumn:
				if (is_of_tables(stmt) || is_of_typed_tables(stmt, cmd))
					check_added_column(raw, command, castNode(ColumnDef, cmd->def));
				break;
			case AT_AlterColumnType:
				if (is_of_tables(stmt))
					check_altered_type(raw, command, stmt->relation, cmd);
				else if (is_of_typed_tables(stmt, cmd))
					refuse(raw, "Rows of tables of that type would be changed, too.");
				break;
			case AT_AttachPartition:
				if (stmt->objtype == OBJECT_TABLE)
				{
					check_attached(raw, stmt->relation);
					check_bound(raw, command, ((PartitionCmd *) cmd->def)->bound);
				}
				break;
			case AT_DetachPartition:
				check_references(raw, stmt->relation);
				break;
			case AT_ClusterOn:
				refuse(raw, "How rows lie is each replica's own business: use CLUSTER at each.");
			case AT_SetIdentity:
				refuse(raw, "Numbers are each replica's own: use ALTER SEQUENCE at each.");
			case AT_SetTableSpace:
				check_alone(raw, command, stmt);
				break;
			case AT_AddConstraint:
				check_index_used(raw, castNode(Constraint, cmd->def)->indexname);
				break;
			case AT_ReplicaIdentity:
				check_index_used(raw, castNode(ReplicaIdentityStmt, cmd->def)->name);
				break;
			case AT_SetLogged:
			case AT_SetUnLogged:
				refuse(raw, "What an unlogged table has is not replicated.");
			default:
				break;
		}
	}
}

/* ---- statements ---- */

static int
count_owners(const AlterSeqStmt *stmt)
{
	int			n = 0;
	ListCell   *lc;

	foreach(lc, stmt->options)
		n += strcmp(lfirst_node(DefElem, lc)->defname, "owned_by") == 0;
	return n;
}

bool
mip_changes_numbers(const AlterSeqStmt *stmt)
{
	return count_owners(stmt) == 0;
}

static bool
is_each_replicas_own(Node *stmt)
{
	return (IsA(stmt, IndexStmt) && ((IndexStmt *) stmt)->concurrent) ||
		(IsA(stmt, DropStmt) && ((DropStmt *) stmt)->concurrent);
}

static bool
defines(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_AlterCollationStmt:
		case T_AlterDefaultPrivilegesStmt:
		case T_AlterDomainStmt:
		case T_AlterEnumStmt:
		case T_AlterEventTrigStmt:
		case T_AlterExtensionContentsStmt:
		case T_AlterExtensionStmt:
		case T_AlterFunctionStmt:
		case T_AlterObjectDependsStmt:
		case T_AlterObjectSchemaStmt:
		case T_AlterOpFamilyStmt:
		case T_AlterOperatorStmt:
		case T_AlterOwnerStmt:
		case T_AlterPolicyStmt:
		case T_AlterSeqStmt:
		case T_AlterStatsStmt:
		case T_AlterTableStmt:
		case T_AlterTSConfigurationStmt:
		case T_AlterTSDictionaryStmt:
		case T_AlterTypeStmt:
		case T_CommentStmt:
		case T_CompositeTypeStmt:
		case T_CreateAmStmt:
		case T_CreateCastStmt:
		case T_CreateConversionStmt:
		case T_CreateDomainStmt:
		case T_CreateEnumStmt:
		case T_CreateEventTrigStmt:
		case T_CreateExtensionStmt:
		case T_CreateFunctionStmt:
		case T_CreateOpClassStmt:
		case T_CreateOpFamilyStmt:
		case T_CreatePLangStmt:
		case T_CreatePolicyStmt:
		case T_CreateRangeStmt:
		case T_CreateSchemaStmt:
		case T_CreateSeqStmt:
		case T_CreateStatsStmt:
		case T_CreateStmt:
		case T_CreateTransformStmt:
		case T_CreateTrigStmt:
		case T_DefineStmt:
		case T_DropOwnedStmt:
		case T_DropStmt:
		case T_GrantStmt:
		case T_IndexStmt:
		case T_ReassignOwnedStmt:
		case T_RenameStmt:
		case T_RuleStmt:
		case T_SecLabelStmt:
		case T_ViewStmt:
			return true;
		default:
			return false;
	}
}

/* ---- event triggers ---- */

/* By those, none fires. */
static bool
is_of_event_triggers(Node *stmt)
{
	return IsA(stmt, CreateEventTrigStmt) || IsA(stmt, AlterEventTrigStmt) ||
		(IsA(stmt, DropStmt) && ((DropStmt *) stmt)->removeType == OBJECT_EVENT_TRIGGER);
}

/* What they do nobody knows. */
static void
check_event_trigger(Relation triggers, HeapTuple row, void *raw)
{
	Form_pg_event_trigger trigger = (Form_pg_event_trigger) GETSTRUCT(row);

	if (trigger->evtenabled == TRIGGER_FIRES_ALWAYS || trigger->evtenabled == TRIGGER_FIRES_ON_REPLICA)
		refuse(raw, psprintf("Event trigger \"%s\" would fire at each replica.", NameStr(trigger->evtname)));
}

/* ---- a statement ---- */

/* A name that PostgreSQL chooses depends on what there is, as indexes of this replica only. */
static void
check_index(const RawStmt *raw, const IndexStmt *stmt)
{
	if (stmt->idxname == NULL)
		refuse(raw, "Give the index a name, so that it is the same everywhere.");
	if (has_own_rows(stmt->relation))
		refuse(raw, "What it is on is each replica's own.");
}

static bool
is_left_out_if_there(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreateSeqStmt:
			return ((CreateSeqStmt *) stmt)->if_not_exists;
		case T_CreateStmt:
			return ((CreateStmt *) stmt)->if_not_exists;
		case T_IndexStmt:
			return ((IndexStmt *) stmt)->if_not_exists;
		default:
			return false;
	}
}

/* By CREATE SCHEMA, too */
static void
check_created(const RawStmt *raw, const char *command, Node *stmt)
{
	ListCell   *lc;

	if (is_left_out_if_there(stmt))
		refuse(raw, "An index that is a replica's own may have that name there: leave IF NOT EXISTS out.");
	if (IsA(stmt, CreateStmt))
		check_like(raw, (CreateStmt *) stmt);
	if (IsA(stmt, CreateStmt) && ((CreateStmt *) stmt)->partbound)
		check_partition(raw, command, (CreateStmt *) stmt);
	if (IsA(stmt, IndexStmt))
		check_index(raw, (IndexStmt *) stmt);
	if (!IsA(stmt, CreateSchemaStmt))
		return;
	foreach(lc, ((CreateSchemaStmt *) stmt)->schemaElts)
		check_created(raw, command, lfirst(lc));
}

/* The settings of whoever executes it at a replica are others. */
static void
check_set(const RawStmt *raw, const List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);
		VariableSetStmt *set;

		if (strcmp(option->defname, "set") != 0)
			continue;
		set = castNode(VariableSetStmt, option->arg);
		if (set->kind == VAR_SET_CURRENT && !mip_is_meaningful(set->name))
			refuse(raw, psprintf("Setting \"%s\" may have another value at each replica: write it in place of FROM CURRENT.",
								 set->name));
	}
}

static void
check_literals(const RawStmt *raw, const char *command)
{
	const char *literal = mip_literal_by_clock(raw, command);

	if (literal)
		refuse(raw, psprintf("Literal '%s' may be a time, and that at which each replica reads it: use a function, as now(), or say it otherwise.",
							 literal));
}

void
mip_check_definable(const RawStmt *raw, const char *command)
{
	check_literals(raw, command);
	if (!is_of_event_triggers(raw->stmt))
		mip_each_row(EventTriggerRelationId, check_event_trigger, unconstify(RawStmt *, raw));
	if (IsA(raw->stmt, AlterSeqStmt) &&
		count_owners((AlterSeqStmt *) raw->stmt) < list_length(((AlterSeqStmt *) raw->stmt)->options))
		refuse(raw, "Numbers are each replica's own: alter the sequence at each.");
	if (is_each_replicas_own(raw->stmt))
		refuse(raw, "An index that is built, or dropped, concurrently is each replica's own business.");
	if (!defines(raw->stmt))
		refuse(raw, "It does not define anything, or what it leaves may not be the same at all replicas.");
	if (IsA(raw->stmt, AlterExtensionContentsStmt) &&
		strcmp(((AlterExtensionContentsStmt *) raw->stmt)->extname, "pg_mip") == 0)
		refuse(raw, "What is in pg_mip, its updates say.");
	if (IsA(raw->stmt, AlterDomainStmt))
		check_alter_domain(unconstify(RawStmt *, raw), (AlterDomainStmt *) raw->stmt);
	if (IsA(raw->stmt, AlterTableStmt))
		check_alter_table(raw, command, (AlterTableStmt *) raw->stmt);
	if (IsA(raw->stmt, CreateFunctionStmt))
		check_set(raw, ((CreateFunctionStmt *) raw->stmt)->options);
	if (IsA(raw->stmt, AlterFunctionStmt))
		check_set(raw, ((AlterFunctionStmt *) raw->stmt)->actions);
	check_created(raw, command, raw->stmt);
}
