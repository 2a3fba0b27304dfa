/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  Applying a writeset to the tables of this database.
 *
 * As a subscriber of logical replication does: rows are changed as they were where the
 * writeset comes from, so nothing is fired or checked that has been there, but for what
 * belongs to each table itself. One executor state serves for all changes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/heap.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/settings.h"
#include "family/current.h"
#include "tableam/capture.h"
#include "writeset/apply.h"
#include "writeset/apply_aside.h"
#include "writeset/apply_check.h"
#include "writeset/apply_find.h"
#include "writeset/apply_trigger.h"
#include "writeset/apply_write.h"

/* ---- rows ---- */

static bool
has_triggers(const MipTarget *target)
{
	return target->info->ri_TrigDesc != NULL;
}

static void
require_row(const MipTarget *target, const MipwChange *change, bool found)
{
	if (found)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_MIP_NO_ROW),
			 change->op == 'U' ?
			 errmsg("a row of table \"%s\" that is to be updated is not there", target->name) :
			 errmsg("a row of table \"%s\" that is to be deleted is not there", target->name),
			 errdetail("It is identified by change %llu of the writeset.",
					   (unsigned long long) change->number)));
}

static void
begin_command(MipApply *apply)
{
	CommandCounterIncrement();
	mip_apply_see_own(apply);
	apply->estate->es_output_cid = GetCurrentCommandId(true);
}

/*
 * What came before is written, and seen: by triggers, and by checks that look at other
 * rows. Functions that are STABLE execute no commands of their own.
 */
static void
write_before(MipApply *apply, const MipTarget *target)
{
	if (!has_triggers(target) && !target->in_order && !target->in_turn)
		return;
	mip_apply_flush_all(apply);
	begin_command(apply);
}

static bool
fires_after(const MipTarget *target, char op)
{
	const TriggerDesc *triggers = target->info->ri_TrigDesc;

	if (triggers == NULL)
		return false;
	return op == 'I' ? triggers->trig_insert_after_row :
		op == 'U' ? triggers->trig_update_after_row : triggers->trig_delete_after_row;
}

/*
 * Behind the change, as where a subscriber applies it: they do not see what comes later,
 * nor, if their functions are STABLE, the change itself.
 */
static void
fire_after(MipApply *apply, MipTarget *target)
{
	mip_apply_flush(apply, target);
	mip_apply_own_settings(apply);
	AfterTriggerEndQuery(apply->estate);
	AfterTriggerBeginQuery();
	mip_apply_look_again(apply);
}

static void
change_row(MipApply *apply, MipTarget *target, const MipwChange *change)
{
	write_before(apply, target);
	for (MipTarget *twin = target->twin; twin != target; twin = twin->twin)
		mip_apply_flush(apply, twin);
	if (change->op == 'I')
		mip_apply_insert(apply, target, change);
	else if (change->op == 'U')
		require_row(target, change, mip_apply_update(apply, target, change));
	else
		require_row(target, change, mip_apply_delete(apply, target, change));
	if (fires_after(target, change->op))
		fire_after(apply, target);
}

static void
apply_row(MipApply *apply, const MipwChange *change)
{
	AclMode		right = change->op == 'I' ? ACL_INSERT :
		change->op == 'U' ? ACL_UPDATE : ACL_DELETE;
	MipTarget  *target = mip_target_of(apply, change, right);
	MipUser		user = mip_target_become_owner(apply, target);

	change_row(apply, target, change);
	mip_target_become_again(apply, user);
}

/* ---- TRUNCATE ---- */

static void
refuse_truncate_in_instance(const MipTarget *target)
{
	if (mip_in_transaction())
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot truncate table \"%s\" in a MIP transaction", target->name),
				 errdetail("Its lock would make instances of one request wait for each other.")));
}

typedef struct Truncation
{
	List	   *rels;
	List	   *relids;
	List	   *logged;
	List	   *partitioned;	/* opened beside those of the writeset */
	bool		triggers;
	bool		referred;		/* perhaps there are foreign keys */
} Truncation;

/*
 * They would fire as at a replica, and so would what they execute: for nobody who may
 * not have that by a setting.
 */
static void
check_may_fire(Relation rel)
{
	const TriggerDesc *triggers = rel->trigdesc;

	if (triggers == NULL ||
		pg_parameter_aclcheck("session_replication_role", GetUserId(), ACL_SET) == ACLCHECK_OK)
		return;
	for (int i = 0; i < triggers->numtriggers; i++)
		if (TRIGGER_FOR_TRUNCATE(triggers->triggers[i].tgtype) &&
			(triggers->triggers[i].tgenabled == TRIGGER_FIRES_ALWAYS ||
			 triggers->triggers[i].tgenabled == TRIGGER_FIRES_ON_REPLICA))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("cannot truncate table \"%s\" with a writeset: its trigger \"%s\" would fire as at a replica",
							RelationGetRelationName(rel), triggers->triggers[i].tgname),
					 errhint("Who applies it needs the right to set session_replication_role.")));
}

static void
add_relation(Truncation *all, Relation rel)
{
	Oid			relid = RelationGetRelid(rel);

	CheckTableNotInUse(rel, "TRUNCATE");
	check_may_fire(rel);
	if (rel->trigdesc && (rel->trigdesc->trig_truncate_before_statement ||
						  rel->trigdesc->trig_truncate_after_statement))
		all->triggers = true;
	all->referred |= rel->rd_rel->relhastriggers;
	all->rels = lappend(all->rels, rel);
	all->relids = lappend_oid(all->relids, relid);
	if (RelationIsLogicallyLogged(rel))
		all->logged = lappend_oid(all->logged, relid);
}

static void
add_truncated(MipApply *apply, Truncation *all, const MipwChange *change)
{
	MipTarget  *target = mip_target_of(apply, change, ACL_TRUNCATE);
	Oid			relid = RelationGetRelid(target->rel);

	refuse_truncate_in_instance(target);
	if (list_member_oid(all->relids, relid))
		return;
	LockRelationOid(relid, AccessExclusiveLock);
	mip_apply_forget(apply, target);
	add_relation(all, target->rel);
}

/* Are all tables that have rows of a partitioned one among those that are truncated? */
static bool
has_all_partitions(const Truncation *all, Oid partitioned, LOCKMODE lock)
{
	ListCell   *lc;

	foreach(lc, find_all_inheritors(partitioned, lock, NULL))
	{
		if (get_rel_relkind(lfirst_oid(lc)) != RELKIND_PARTITIONED_TABLE &&
			!list_member_oid(all->relids, lfirst_oid(lc)))
			return false;
	}
	return true;
}

static bool
add_partitioned(Truncation *all, Oid relid)
{
	Relation	rel;

	if (list_member_oid(all->relids, relid) ||
		get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE ||
		pg_class_aclcheck(relid, GetUserId(), ACL_TRUNCATE) != ACLCHECK_OK ||
		!has_all_partitions(all, relid, NoLock))
		return false;
	rel = try_relation_open(relid, AccessExclusiveLock);
	if (rel == NULL)
		return false;
	all->partitioned = lappend(all->partitioned, rel);
	if (!has_all_partitions(all, relid, AccessExclusiveLock))
		return false;
	mip_check_may_pass_over_truncation(rel);
	add_relation(all, rel);
	return true;
}

/*
 * A foreign key of a partitioned table keeps what it refers to from being truncated without
 * the table. The writeset has its partitions: if it has all, that is the table.
 */
static void
add_referring(Truncation *all)
{
	bool		added = all->referred;

	while (added)
	{
		List	   *referring = heap_truncate_find_FKs(all->relids);
		ListCell   *lc;

		added = false;
		foreach(lc, referring)
			added |= add_partitioned(all, lfirst_oid(lc));
		list_free(referring);
	}
}

/* An error there may be caught by a trigger that has applied a writeset of its own. */
static void
truncate_untold(const Truncation *all)
{
	const List *before = mip_capture_pause_truncate(all->relids);

	PG_TRY();
	{
		mip_truncate_tables(all->rels, all->relids, all->logged);
	}
	PG_FINALLY();
	{
		(void) mip_capture_pause_truncate(before);
	}
	PG_END_TRY();
}

/*
 * Statement triggers fire as they do at a replica; if there are any, what they execute is
 * executed as at a replica, too.
 */
static void
truncate_tables(const Truncation *all)
{
	int			level = NewGUCNestLevel();

	if (all->triggers)
		mip_set_for_now("session_replication_role", "replica");
	truncate_untold(all);
	AtEOXact_GUC(false, level);
}

/*
 * Truncates all that the writeset truncates next: tables that refer to each other can only
 * be truncated together. Returns how many changes that were.
 */
static int64
apply_truncations(MipApply *apply, MipwCursor *cursor, MipwChange *change)
{
	Truncation	all = {0};
	int64		count = 0;
	bool		more;
	ListCell   *lc;

	mip_apply_flush_all(apply);
	mip_apply_own_settings(apply);
	AfterTriggerEndQuery(apply->estate);	/* none must be pending */
	do
	{
		MipwCursor	ahead;

		apply->number = change->number;
		add_truncated(apply, &all, change);
		count++;
		ahead = *cursor;
		more = mipw_next(&ahead, change) && change->op == 'T';
		if (more)
			*cursor = ahead;
	} while (more);
	add_referring(&all);
	truncate_tables(&all);
	foreach(lc, all.partitioned)
		relation_close(lfirst(lc), NoLock);
	AfterTriggerBeginQuery();
	mip_apply_look_again(apply);
	return count;
}

/* ---- all of it ---- */

static void
begin(MipApply *apply, const MipwSet *set, void (*check_table) (Relation rel), bool as_is)
{
	MemoryContext before;

	memset(apply, 0, sizeof(MipApply));
	apply->set = set;
	apply->check_table = check_table;
	apply->as_is = as_is;
	dlist_init(&apply->batches);
	apply->estate = CreateExecutorState();
	before = MemoryContextSwitchTo(apply->estate->es_query_cxt);
	apply->scratch = AllocSetContextCreate(CurrentMemoryContext, "row of a writeset",
										   ALLOCSET_SMALL_SIZES);
	apply->targets = palloc0(Max(set->nrelations, 1) * sizeof(MipTarget *));
	mip_init_epq(&apply->epq, apply->estate);
	MemoryContextSwitchTo(before);
	/* what this transaction has done before is seen, and told from what we do */
	CommandCounterIncrement();
	PushCopiedSnapshot(GetTransactionSnapshot());
	UpdateActiveSnapshotCommandId();
	apply->snapshot = apply->estate->es_snapshot = GetActiveSnapshot();
	apply->first = GetCurrentCommandId(true);
	AfterTriggerBeginQuery();
}

static void
end(MipApply *apply)
{
	mip_apply_flush_all(apply);
	apply->number = 0;
	mip_apply_check_doubts(apply);
	AfterTriggerEndQuery(apply->estate);
	mip_targets_close(apply->targets, apply->set->nrelations);
	EvalPlanQualEnd(&apply->epq);
	ExecResetTupleTable(apply->estate->es_tupleTable, false);
	FreeExecutorState(apply->estate);
	PopActiveSnapshot();
	CommandCounterIncrement();
}

/* Which change has failed */
static void
add_context(void *arg)
{
	const MipApply *apply = arg;

	if (apply->number > 0)
		errcontext("change %llu of the writeset", (unsigned long long) apply->number);
}

int64
mip_apply(const MipwSet *set, void (*check_table) (Relation rel), bool as_is)
{
	MipApply	apply;
	MipwCursor	cursor = mipw_changes(set);
	MipwChange	change;
	ErrorContextCallback context = {error_context_stack, add_context, &apply};
	int64		count = 0;

	begin(&apply, set, check_table, as_is);
	error_context_stack = &context;
	while (mipw_next(&cursor, &change))
	{
		CHECK_FOR_INTERRUPTS();
		apply.number = change.number;
		apply.estate->es_output_cid = GetCurrentCommandId(true);
		if (change.op == 'T')
			count += apply_truncations(&apply, &cursor, &change);
		else
		{
			MemoryContext before;

			ResetPerTupleExprContext(apply.estate);
			before = MemoryContextSwitchTo(GetPerTupleMemoryContext(apply.estate));
			apply_row(&apply, &change);
			MemoryContextSwitchTo(before);
			count++;
		}
	}
	end(&apply);
	error_context_stack = context.previous;
	return count;
}
