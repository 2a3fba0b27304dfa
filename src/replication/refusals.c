/*-------------------------------------------------------------------------
 *
 * refusals.c
 *	  What a replicated database refuses, since the other replicas would not have it.
 *
 * Changes of rows are replicated, of tables that can be captured. All others are refused,
 * but of what is each replica's own: temporary objects, what is computed (indexes,
 * materialized views, statistics), what the whole cluster has (roles, databases,
 * settings). So are definitions: rows that come from where these are other ones
 * would not fit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_trigger.h"
#include "commands/defrem.h"
#include "commands/trigger.h"
#include "nodes/makefuncs.h"
#include "miscadmin.h"
#include "parser/parsetree.h"
#include "storage/lock.h"
#include "tcop/utility.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/locks.h"
#include "mipt/catalog.h"
#include "replication/definable.h"
#include "replication/executed.h"
#include "replication/member.h"
#include "replication/refusals.h"
#include "replication/temporary.h"
#include "replication/trust.h"
#include "tableam/aside.h"
#include "transam/statement.h"

static object_access_hook_type prev_object_access;

/* Before there is the extension, nothing can be replicated. From then on it stays. */
static bool
applies_here(void)
{
	static bool exists = false;

	if (!mip_publishes())
		return false;
	exists = exists || mipt_exists();
	return exists;
}

/* ---- tables ---- */

pg_noreturn static void
refuse_table(const char *name, bool unlogged)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot change table \"%s\" of a replicated database", name),
			 unlogged ? errdetail("It is unlogged: a crash would empty it here, and nowhere else.") :
			 errdetail("It does not use the access method \"mip\", so its changes would not get to the other replicas."),
			 errhint("Only what is temporary, or can be captured, may be changed here.")));
	pg_unreachable();
}

static bool
is_each_replicas_own(char relkind, char persistence)
{
	return persistence == RELPERSISTENCE_TEMP ||
		(relkind != RELKIND_RELATION && relkind != RELKIND_PARTITIONED_TABLE &&
		 relkind != RELKIND_FOREIGN_TABLE);
}

pg_noreturn static void
refuse_foreign_table(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot change foreign table \"%s\" in a replicated database", name),
			 errdetail("What is done at another server stays if the transaction is refused here.")));
	pg_unreachable();
}

static void
check_code(Oid relid)
{
	Relation	rel = relation_open(relid, AccessShareLock);

	mip_check_trusted(rel);
	relation_close(rel, NoLock);
}

/* Whoever writes to it has it locked, or will, and definitions do not change here. */
static void
check_relation(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		is_mip;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_class) GETSTRUCT(tuple);
	if (form->relkind == RELKIND_FOREIGN_TABLE)
		refuse_foreign_table(get_rel_name(relid));
	is_mip = form->relam == get_table_am_oid("mip", true);
	if (!is_each_replicas_own(form->relkind, form->relpersistence) &&
		form->relkind != RELKIND_PARTITIONED_TABLE &&
		(!is_mip || form->relpersistence == RELPERSISTENCE_UNLOGGED))
		refuse_table(get_rel_name(relid), is_mip);
	if (is_mip && form->relpersistence != RELPERSISTENCE_TEMP)
		check_code(relid);
	ReleaseSysCache(tuple);
}

/* With its partitions: any of them may be written to. */
static void
check_table(Oid relid)
{
	ListCell   *lc;

	if (get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE)
	{
		check_relation(relid);
		return;
	}
	foreach(lc, find_all_inheritors(relid, AccessShareLock, NULL))
		check_relation(lfirst_oid(lc));
}

void
mip_replica_check_plan(const PlannedStmt *stmt)
{
	ListCell   *lc;

	mip_executed_check_plan(stmt);
	if (stmt->resultRelations == NIL || !applies_here())
		return;
	foreach(lc, stmt->resultRelations)
		check_table(rt_fetch(lfirst_int(lc), stmt->rtable)->relid);
}

void
mip_replica_check_routed(const EState *estate)
{
	ListCell   *lc;

	if (estate->es_tuple_routing_result_relations == NIL || !applies_here())
		return;
	foreach(lc, estate->es_tuple_routing_result_relations)
		check_relation(RelationGetRelid(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc));
}

/* ---- large objects ---- */

pg_noreturn static void
refuse_large_object(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("large objects cannot be changed in a replicated database"),
			 errhint("Use columns of type bytea.")));
	pg_unreachable();
}

/* ---- TRUNCATE ---- */

static bool
fires_at_replicas(Form_pg_trigger trigger)
{
	return TRIGGER_FOR_TRUNCATE(trigger->tgtype) &&
		(trigger->tgenabled == TRIGGER_FIRES_ALWAYS || trigger->tgenabled == TRIGGER_FIRES_ON_REPLICA);
}

/*
 * What they do would be done again where it is applied: their own changes come along, too.
 * The table may not be locked yet, so that its cache entry is none to look at.
 */
static void
refuse_triggers_of_truncate(Oid relid)
{
	Relation	triggers = table_open(TriggerRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(triggers, TriggerRelidNameIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(tuple);

		if (fires_at_replicas(trigger))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot truncate table \"%s\" of a replicated database: its trigger \"%s\" fires at replicas",
							get_rel_name(relid), NameStr(trigger->tgname))));
	}
	systable_endscan(scan);
	table_close(triggers, AccessShareLock);
}

/* Whatever leads to it: inheritance, CASCADE */
static void
check_truncated(Oid relid)
{
	check_relation(relid);
	if (get_rel_persistence(relid) != RELPERSISTENCE_TEMP)
		refuse_triggers_of_truncate(relid);
}

static void
at_object_access(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class, object, sub, arg);
	if (!IsTransactionState())
		return;
	if (access == OAT_FUNCTION_EXECUTE)
		mip_executed_check_function(object);
	if (access == OAT_POST_CREATE && mip_is_replicated())
		mip_temporary_check_created();
	if (!applies_here() && !mip_executes_definition())
		return;
	if (class == LargeObjectRelationId && (access == OAT_POST_CREATE || access == OAT_DROP))
		refuse_large_object();
	if (class == RelationRelationId && access == OAT_TRUNCATE)
		check_truncated(object);
}

/* ---- whatever has written ---- */

static bool
may_have_written(Oid relid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return mip_lock_held_by_me(&tag, RowExclusiveLock);
}

/* Catalogs are locked for much that is each replica's own. */
void
mip_replica_check_locked(void)
{
	List	   *tables;
	ListCell   *lc;

	if (may_have_written(LargeObjectRelationId))
		refuse_large_object();	/* who reads one locks no less */
	tables = mip_own_written_tables();
	foreach(lc, tables)
	{
		Oid			relid = lfirst_oid(lc);

		if (!IsCatalogRelationOid(relid) && may_have_written(relid) &&
			get_rel_namespace(relid) != get_namespace_oid("mip", true))
			check_relation(relid);
	}
	list_free(tables);
}

/* ---- utility statements ---- */

/* A name that a temporary object is given */
static bool
says_temporary(const RangeVar *name)
{
	return name->relpersistence == RELPERSISTENCE_TEMP ||
		(name->schemaname && strcmp(name->schemaname, "pg_temp") == 0);
}

static bool
is_temporary(const RangeVar *name)
{
	Oid			relid;

	if (says_temporary(name))
		return true;
	relid = RangeVarGetRelid(name, NoLock, true);
	return OidIsValid(relid) && get_rel_persistence(relid) == RELPERSISTENCE_TEMP;
}

static bool
drops_temporary(const DropStmt *stmt)
{
	ListCell   *lc;

	switch (stmt->removeType)
	{
		case OBJECT_TABLE:
		case OBJECT_INDEX:
		case OBJECT_SEQUENCE:
		case OBJECT_VIEW:
			break;
		default:
			return false;
	}
	foreach(lc, stmt->objects)
	{
		if (!is_temporary(makeRangeVarFromNameList(lfirst(lc))))
			return false;
	}
	return true;
}

/* Does it say something of the rows, or tell them apart? What REINDEX CONCURRENTLY has left behind does not. */
static bool
is_constraint(List *name)
{
	RangeVar   *var = makeRangeVarFromNameList(name);
	Oid			index = RangeVarGetRelid(var, NoLock, true);
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	result = (form->indisunique && !mip_name_is_of_reindex(var->relname)) || form->indisexclusion || form->indisreplident;
	ReleaseSysCache(tuple);
	return result;
}

static bool
all_are_temporary(const List *names)
{
	ListCell   *lc;

	foreach(lc, names)
	{
		if (!is_temporary(lfirst(lc)))
			return false;
	}
	return true;
}

static bool
is_in_temporary_schema(const List *name)
{
	return list_length(name) > 1 && strcmp(strVal(linitial(name)), "pg_temp") == 0;
}

static bool
comments_on_temporary(const CommentStmt *stmt)
{
	switch (stmt->objtype)
	{
		case OBJECT_INDEX:
		case OBJECT_SEQUENCE:
		case OBJECT_TABLE:
		case OBJECT_VIEW:
			return is_temporary(makeRangeVarFromNameList((List *) stmt->object));
		default:
			return false;
	}
}

static bool
grants_temporary(const GrantStmt *stmt)
{
	return stmt->targtype == ACL_TARGET_OBJECT &&
		(stmt->objtype == OBJECT_TABLE || stmt->objtype == OBJECT_SEQUENCE) &&
		all_are_temporary(stmt->objects);
}

/* An index that the partitioned table gets would take the partition's for its own. */
static bool
is_partition(const RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);

	return OidIsValid(relid) && get_rel_relispartition(relid);
}

/*
 * Of what is temporary; numbers of a sequence; or an index that is for reading only. A row that does not fit into
 * that would stop this replica, so it takes who answers for the server.
 */
static bool
defines_own(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreateStmt:
			return says_temporary(((CreateStmt *) stmt)->relation);
		case T_CreateTableAsStmt:
			return says_temporary(((CreateTableAsStmt *) stmt)->into->rel);
		case T_ViewStmt:
			return says_temporary(((ViewStmt *) stmt)->view);
		case T_CreateSeqStmt:
			return says_temporary(((CreateSeqStmt *) stmt)->sequence);
		case T_CreateTrigStmt:
			return is_temporary(((CreateTrigStmt *) stmt)->relation);
		case T_CreateStatsStmt:
			return all_are_temporary(((CreateStatsStmt *) stmt)->relations);
		case T_CreateFunctionStmt:
			return is_in_temporary_schema(((CreateFunctionStmt *) stmt)->funcname);
		case T_CommentStmt:
			return comments_on_temporary((CommentStmt *) stmt);
		case T_GrantStmt:
			return grants_temporary((GrantStmt *) stmt);
		case T_AlterSeqStmt:
			return mip_changes_numbers((AlterSeqStmt *) stmt) ||
				is_temporary(((AlterSeqStmt *) stmt)->sequence);
		case T_AlterTableStmt:
			return is_temporary(((AlterTableStmt *) stmt)->relation);
		case T_RenameStmt:
			return ((RenameStmt *) stmt)->relation && is_temporary(((RenameStmt *) stmt)->relation);
		case T_IndexStmt:
			return is_temporary(((IndexStmt *) stmt)->relation) ||
				(((IndexStmt *) stmt)->concurrent && !((IndexStmt *) stmt)->unique && superuser() &&
				 !is_partition(((IndexStmt *) stmt)->relation));
		case T_DropStmt:
			return drops_temporary((DropStmt *) stmt) ||
				(((DropStmt *) stmt)->removeType == OBJECT_INDEX && ((DropStmt *) stmt)->concurrent &&
				 superuser() && !is_constraint(linitial(((DropStmt *) stmt)->objects)));
		default:
			return false;
	}
}

static bool
is_own(Node *stmt)
{
	switch (nodeTag(stmt))
	{
			/* the session's */
		case T_DiscardStmt:
		case T_ListenStmt:
		case T_UnlistenStmt:
		case T_NotifyStmt:
			/* looked at by themselves */
		case T_TruncateStmt:
		case T_LockStmt:
			/* computed from the rows */
		case T_VacuumStmt:
		case T_ClusterStmt:
		case T_ReindexStmt:
		case T_RefreshMatViewStmt:
			/* the cluster's */
		case T_AlterSystemStmt:
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_AlterRoleSetStmt:
		case T_DropRoleStmt:
		case T_GrantRoleStmt:
		case T_CreatedbStmt:
		case T_AlterDatabaseStmt:
		case T_AlterDatabaseSetStmt:
		case T_DropdbStmt:
		case T_CreateTableSpaceStmt:
		case T_DropTableSpaceStmt:
			return true;
		default:
			return mip_is_harmless(stmt) || defines_own(stmt);
	}
}

static void
refuse_statement(Node *stmt)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot execute %s in a replicated database",
					GetCommandTagName(CreateCommandTag(stmt))),
			 errdetail("It would change this replica only, and what comes from others would not fit."),
			 errhint("Use mip.replicate_ddl(), by which all replicas do it.")));
}

/*
 * PostgreSQL chooses such names for constraints and sequences that have been given none, and another
 * one where there is something of that name.
 */
static bool
may_be_chosen(const char *name)
{
	static const char *const ends[] = {"_pkey", "_key", "_excl", "_seq"};
	int			length = strlen(name);

	while (length > 0 && isdigit((unsigned char) name[length - 1]))
		length--;
	for (int i = 0; i < lengthof(ends); i++)
	{
		int			end = strlen(ends[i]);

		if (length >= end && strncmp(name + length - end, ends[i], end) == 0)
			return true;
	}
	return false;
}

/* That of an index of this replica only */
static void
check_name(const IndexStmt *stmt)
{
	if (stmt->idxname && may_be_chosen(stmt->idxname) && !is_temporary(stmt->relation))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot create index \"%s\" at this replica only", stmt->idxname),
				 errdetail("A constraint that is given no name may be called so, and would have another name here."),
				 errhint("Choose a name that does not end with _pkey, _key, _excl or _seq, and a number.")));
}

/* It would keep others from nothing but this replica. */
static void
check_lock(const LockStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->relations)
	{
		if (stmt->mode > RowExclusiveLock && !is_temporary(lfirst(lc)))
			refuse_statement((Node *) stmt);
	}
}

void
mip_replica_check_utility(Node *stmt)
{
	if (IsA(stmt, TransactionStmt) || !IsTransactionState())
		return;
	mip_executed_check_utility(stmt);
	if (!applies_here())
		return;
	stmt = mip_explained(stmt);
	if (!is_own(stmt))
		refuse_statement(stmt);
	if (IsA(stmt, IndexStmt))
		check_name((IndexStmt *) stmt);
	if (IsA(stmt, LockStmt))
		check_lock((LockStmt *) stmt);
	if (IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->is_from && ((CopyStmt *) stmt)->relation)
		check_table(RangeVarGetRelid(((CopyStmt *) stmt)->relation, NoLock, false));
}

void
mip_replica_refuse_function(const char *function)
{
	if (applies_here())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot call %s in a replicated database", function),
				 errdetail("The other replicas would not have what it does.")));
}

void
mip_refusals_init(void)
{
	prev_object_access = object_access_hook;
	object_access_hook = at_object_access;
}
