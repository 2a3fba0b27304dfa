/*-------------------------------------------------------------------------
 *
 * enable.c
 *	  mip.enable and mip.disable: a table changes between the access methods
 *	  heap and mip without being rewritten, since both store rows alike.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/defrem.h"
#include "commands/event_trigger.h"
#include "commands/tablecmds.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/preload.h"
#include "family/current.h"
#include "replication/refusals.h"
#include "tableam/capture.h"

PG_FUNCTION_INFO_V1(mip_enable);
PG_FUNCTION_INFO_V1(mip_disable);

static void
check_kind(Oid relid)
{
	char		kind = get_rel_relkind(relid);

	if (kind == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (IsCatalogRelationOid(relid) ||
		(kind != RELKIND_RELATION && kind != RELKIND_PARTITIONED_TABLE))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not an ordinary or partitioned table",
						get_rel_name(relid))));
}

static void
check_may_switch(Relation rel)
{
	if (!mip_object_ownercheck_class(RelationGetRelid(rel), GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, RelationGetRelationName(rel));
	if (RelationGetNamespace(rel) == get_namespace_oid("mip", true))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("table \"%s\" belongs to pg_mip itself", RelationGetRelationName(rel))));
	/* its rows are in the buffers of another session */
	if (RELATION_IS_OTHER_TEMP(rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot change the access method of temporary table \"%s\" of another session",
						RelationGetRelationName(rel))));
	CheckTableNotInUse(rel, "change the access method of");
}

/* ALTER TABLE ... SET ACCESS METHOD */
static Node *
alter_table(Oid relid, Oid am)
{
	AlterTableStmt *stmt = makeNode(AlterTableStmt);
	AlterTableCmd *cmd = makeNode(AlterTableCmd);

	cmd->subtype = AT_SetAccessMethod;
	cmd->name = get_am_name(am);
	stmt->relation = makeRangeVar(get_namespace_name(get_rel_namespace(relid)),
								  get_rel_name(relid), -1);
	stmt->cmds = list_make1(cmd);
	stmt->objtype = OBJECT_TABLE;
	return (Node *) stmt;
}

static void
set_access_method(Relation rel, Oid am)
{
	Oid			relid = RelationGetRelid(rel);
	Relation	pg_class = table_open(RelationRelationId, RowExclusiveLock);
	HeapTuple	tup = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	ObjectAddress table = {RelationRelationId, relid, 0};

	if (!HeapTupleIsValid(tup))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	form = (Form_pg_class) GETSTRUCT(tup);

	/* heap is pinned: only mip has dependencies to record */
	if (am == HEAP_TABLE_AM_OID)
		deleteDependencyRecordsForSpecific(RelationRelationId, relid, DEPENDENCY_NORMAL,
										   AccessMethodRelationId, form->relam);
	else
	{
		ObjectAddress method = {AccessMethodRelationId, am, 0};

		mip_capture_opt_in(rel);
		recordDependencyOn(&table, &method, DEPENDENCY_NORMAL);
	}
	form->relam = am;
	CatalogTupleUpdate(pg_class, &tup->t_self, tup);
	InvokeObjectPostAlterHook(RelationRelationId, relid, 0);
	EventTriggerCollectSimpleCommand(table, InvalidObjectAddress, alter_table(relid, am));
	heap_freetuple(tup);
	table_close(pg_class, RowExclusiveLock);
	CacheInvalidateRelcacheByRelid(relid);
}

/*
 * Switches one table and, if it is partitioned, all its partitions. The lock
 * waits for every transaction that uses it, prepared instances included.
 */
static void
switch_tables(Oid relid, Oid from, Oid to)
{
	ListCell   *lc;

	check_kind(relid);
	if (!mip_object_ownercheck_class(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, get_rel_name(relid));
	LockRelationOid(relid, AccessExclusiveLock);
	check_kind(relid);
	foreach(lc, find_all_inheritors(relid, AccessExclusiveLock, NULL))
	{
		Relation	rel = table_open(lfirst_oid(lc), NoLock);

		check_kind(RelationGetRelid(rel));
		check_may_switch(rel);
		/* a partitioned table may have one from 17 on, for its new partitions */
		if (rel->rd_rel->relam == from)
			set_access_method(rel, to);
		else if (rel->rd_rel->relam != to &&
				 rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
			ereport(ERROR,
					(errcode(ERRCODE_MIP_NOT_USABLE),
					 errmsg("table \"%s\" uses neither the access method heap nor mip",
							RelationGetRelationName(rel))));
		table_close(rel, NoLock);
	}
	/* the same statement may call us again, for the same tables */
	CommandCounterIncrement();
}

/*
 * Event triggers are told what ALTER TABLE ... SET ACCESS METHOD tells them, but
 * for table_rewrite.
 */
static void
switch_as_command(Oid relid, Oid from, Oid to)
{
	bool		told;
	Node	   *stmt;

	check_kind(relid);
	stmt = alter_table(relid, to);
	told = EventTriggerBeginCompleteQuery();
	PG_TRY();
	{
		EventTriggerDDLCommandStart(stmt);
		switch_tables(relid, from, to);
		EventTriggerDDLCommandEnd(stmt);
	}
	PG_FINALLY();
	{
		if (told)
			EventTriggerEndCompleteQuery();
	}
	PG_END_TRY();
}

static void
check_may_call(const char *function)
{
	mip_require_preload();
	mip_replica_refuse_function(function);
	PreventCommandIfReadOnly(function);
	if (mip_in_transaction())
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot call %s in a MIP transaction", function)));
}

Datum
mip_enable(PG_FUNCTION_ARGS)
{
	check_may_call("mip.enable");
	switch_as_command(PG_GETARG_OID(0), HEAP_TABLE_AM_OID, get_table_am_oid("mip", false));
	PG_RETURN_VOID();
}

Datum
mip_disable(PG_FUNCTION_ARGS)
{
	check_may_call("mip.disable");
	switch_as_command(PG_GETARG_OID(0), get_table_am_oid("mip", false), HEAP_TABLE_AM_OID);
	PG_RETURN_VOID();
}
