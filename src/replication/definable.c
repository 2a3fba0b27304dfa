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
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_event_trigger.h"
#include "catalog/pg_index.h"
#include "catalog/pg_partitioned_table.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "parser/analyze.h"
#include "parser/parse_type.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/rows.h"
#include "mipt/catalog.h"
#include "replication/definable.h"
#include "replication/fits.h"
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

/* SELECT (expression)::type FROM relation */
static RawStmt *
make_select(Node *expression, TypeName *type, RangeVar *relation)
{
	TypeCast   *cast = makeNode(TypeCast);
	ResTarget  *target = makeNode(ResTarget);
	SelectStmt *select = makeNode(SelectStmt);
	RawStmt    *raw = makeNode(RawStmt);

	cast->arg = copyObject(expression);
	cast->typeName = copyObject(type);
	cast->location = -1;
	target->val = (Node *) cast;
	target->location = -1;
	select->targetList = list_make1(target);
	if (relation)
		select->fromClause = list_make1(copyObject(relation));
	raw->stmt = (Node *) select;
	return raw;
}

static void
check_value(const RawStmt *raw, const char *command, Node *expression, TypeName *type,
			RangeVar *relation)
{
	Query	   *query = parse_analyze_fixedparams(make_select(expression, type, relation), command, NULL, 0, NULL);

	if (contain_mutable_functions((Node *) query->targetList))
		refuse(raw, "Rows that are there would get values that are computed, and not by IMMUTABLE functions only.");
}

/* A domain has one of its own. */
static void
check_default_of_type(const RawStmt *raw, TypeName *type)
{
	Node	   *value = get_typdefault(typenameTypeId(NULL, type));

	if (value && contain_mutable_functions(value))
		refuse(raw, "Rows that are there would get a domain's default, which is not the same everywhere.");
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

static void
check_altered_type(const RawStmt *raw, const char *command, RangeVar *relation, AlterTableCmd *cmd)
{
	ColumnDef  *column = castNode(ColumnDef, cmd->def);
	Node	   *value = column->raw_default;	/* USING */

	if (value == NULL)
	{
		ColumnRef  *ref = makeNode(ColumnRef);

		ref->fields = list_make1(makeString(cmd->name));
		ref->location = -1;
		value = (Node *) ref;
	}
	if (OidIsValid(RangeVarGetRelid(relation, NoLock, true)))
		check_value(raw, command, value, column->typeName, relation);
}

static void
check_alter_table(const RawStmt *raw, const char *command, AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst_node(AlterTableCmd, lc);

		switch (cmd->subtype)
		{
			case AT_AddColumn:
				if (stmt->objtype == OBJECT_TABLE)
					check_added_column(raw, command, castNode(ColumnDef, cmd->def));
				break;
			case AT_AlterColumnType:
				if (stmt->objtype == OBJECT_TABLE)
					check_altered_type(raw, command, stmt->relation, cmd);
				break;
			case AT_SetIdentity:
				refuse(raw, "Numbers are each replica's own: use ALTER SEQUENCE at each.");
			case AT_SetLogged:
			case AT_SetUnLogged:
				refuse(raw, "What an unlogged table has is not replicated.");
			default:
				break;
		}
	}
}

/* ---- statements ---- */

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

/* ---- what has been defined ---- */

static bool
is_new(HeapTuple tuple)
{
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
}

pg_noreturn static void
refuse_defined(const char *name, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate \"%s\"", name),
			 errdetail_internal("%s", detail)));
	pg_unreachable();
}

static bool
is_mutable(Relation constraints, HeapTuple tuple)
{
	bool		isnull;
	Datum		check = heap_getattr(tuple, Anum_pg_constraint_conbin, RelationGetDescr(constraints), &isnull);

	return !isnull && contain_mutable_functions(stringToNode(TextDatumGetCString(check)));
}

/* Rows that are there are looked at. */
static void
check_constraint(Relation constraints, HeapTuple row, void *arg)
{
	Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(row);

	if (is_new(row) && form->contype == CONSTRAINT_CHECK && form->convalidated && is_mutable(constraints, row))
		refuse_defined(NameStr(form->conname), "Whether rows that are there fit is not the same everywhere.");
}

static bool
is_enum(Oid type, HTAB *seen)
{
	return get_typtype(type) == TYPTYPE_ENUM || stack_is_too_deep();
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
note_label(Relation labels, HeapTuple row, void *found)
{
	*(bool *) found |= is_new(row);
}

/* A label's hash is that of its OID; those that have come with a copy are the same. */
static void
check_partitioned(Relation tables, HeapTuple row, void *new_labels)
{
	Form_pg_partitioned_table form = (Form_pg_partitioned_table) GETSTRUCT(row);
	Relation	rel;

	if (form->partstrat != PARTITION_STRATEGY_HASH || !(is_new(row) || *(bool *) new_labels))
		return;
	rel = table_open(form->partrelid, AccessShareLock);
	if (goes_by_enum(RelationGetPartitionKey(rel)))
		refuse_defined(RelationGetRelationName(rel), "It is partitioned by the hash of an enum, which is another one at each replica.");
	table_close(rel, AccessShareLock);
}

/* Rows that are there, not stored at all replicas in the same way, get entries. */
static void
note_new_index(Relation indexes, HeapTuple row, void *found)
{
	List	  **new = found;

	if (is_new(row))
		*new = lappend_oid(*new, ((Form_pg_index) GETSTRUCT(row))->indexrelid);
}

static void
check_indexes(void)
{
	List	   *new = NIL;
	ListCell   *lc;

	mip_each_row(IndexRelationId, note_new_index, &new);
	foreach(lc, new)
		mip_check_index_fits(lfirst_oid(lc));
}

static void
check_extension(void)
{
	if (!mipt_exists())
		refuse_defined("pg_mip", "Without it nothing is replicated.");
}

void
mip_check_defined(void)
{
	bool		new_labels = false;

	CommandCounterIncrement();
	check_extension();
	mip_each_row(ConstraintRelationId, check_constraint, NULL);
	mip_each_row(EnumRelationId, note_label, &new_labels);
	mip_each_row(PartitionedRelationId, check_partitioned, &new_labels);
	check_indexes();
}

/* ---- before ---- */

/* A name that PostgreSQL chooses depends on what there is, as indexes of this replica only. */
static void
check_index(const RawStmt *raw, const IndexStmt *stmt)
{
	Oid			relid = RangeVarGetRelid(stmt->relation, NoLock, true);

	if (stmt->idxname == NULL)
		refuse(raw, "Give the index a name, so that it is the same everywhere.");
	if (OidIsValid(relid) && (get_rel_relkind(relid) == RELKIND_MATVIEW ||
							  get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT))
		refuse(raw, "What it is on is each replica's own.");
}

void
mip_check_definable(const RawStmt *raw, const char *command)
{
	if (!is_of_event_triggers(raw->stmt))
		mip_each_row(EventTriggerRelationId, check_event_trigger, unconstify(RawStmt *, raw));
	if (IsA(raw->stmt, AlterSeqStmt))
		refuse(raw, "Numbers are each replica's own: alter the sequence at each.");
	if (is_each_replicas_own(raw->stmt))
		refuse(raw, "An index that is built, or dropped, concurrently is each replica's own business.");
	if (!defines(raw->stmt))
		refuse(raw, "It does not define anything, or what it leaves may not be the same at all replicas.");
	if (IsA(raw->stmt, IndexStmt))
		check_index(raw, (IndexStmt *) raw->stmt);
	if (IsA(raw->stmt, AlterTableStmt))
		check_alter_table(raw, command, (AlterTableStmt *) raw->stmt);
}
