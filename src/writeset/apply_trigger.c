/*-------------------------------------------------------------------------
 *
 * apply_trigger.c
 *	  Which triggers fire where a writeset is applied, and who may leave out the others.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_trigger_d.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "rewrite/prs2lock.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"

#include "base/compat.h"
#include "writeset/apply_trigger.h"

#define FIRES(type, level, timing, event) \
	TRIGGER_TYPE_MATCHES(type, TRIGGER_TYPE_##level, TRIGGER_TYPE_##timing, TRIGGER_TYPE_##event)

static void
set_flags(TriggerDesc *desc, int16 type)
{
	desc->trig_insert_before_row |= FIRES(type, ROW, BEFORE, INSERT);
	desc->trig_insert_after_row |= FIRES(type, ROW, AFTER, INSERT);
	desc->trig_update_before_row |= FIRES(type, ROW, BEFORE, UPDATE);
	desc->trig_update_after_row |= FIRES(type, ROW, AFTER, UPDATE);
	desc->trig_delete_before_row |= FIRES(type, ROW, BEFORE, DELETE);
	desc->trig_delete_after_row |= FIRES(type, ROW, AFTER, DELETE);
}

/*
 * Row triggers that are to fire for what comes from elsewhere: those of replicas, and
 * those that always do, but not for foreign keys. In the session's own role they would
 * not, or others would; and in that of a replica statements in their functions would not
 * fire theirs. Unique constraints that may be deferred are checked by apply_check.c.
 */
static bool
is_to_fire(const Trigger *trigger)
{
	return (trigger->tgenabled == TRIGGER_FIRES_ALWAYS ||
			trigger->tgenabled == TRIGGER_FIRES_ON_REPLICA) &&
		TRIGGER_FOR_ROW(trigger->tgtype) &&
		RI_FKey_trigger_type(trigger->tgfoid) == RI_TRIGGER_NONE &&
		trigger->tgfoid != F_UNIQUE_KEY_RECHECK;
}

void
mip_choose_triggers(ResultRelInfo *info)
{
	const TriggerDesc *all = info->ri_TrigDesc;
	TriggerDesc *chosen;

	info->ri_TrigDesc = NULL;
	if (all == NULL)
		return;
	chosen = palloc0(sizeof(TriggerDesc));
	chosen->triggers = palloc(all->numtriggers * sizeof(Trigger));
	for (int i = 0; i < all->numtriggers; i++)
	{
		const Trigger *trigger = &all->triggers[i];

		if (!is_to_fire(trigger))
			continue;
		chosen->triggers[chosen->numtriggers] = *trigger;
		chosen->triggers[chosen->numtriggers].tgenabled = TRIGGER_FIRES_ALWAYS;

		/*
		 * Else when the first row has come, and what a call keeps for the
		 * next one goes with it
		 */
		fmgr_info(trigger->tgfoid, &info->ri_TrigFunctions[chosen->numtriggers]);
		chosen->numtriggers++;
		set_flags(chosen, trigger->tgtype);
	}
	if (chosen->numtriggers > 0)
		info->ri_TrigDesc = chosen;
}

static bool
is_of_event(const Trigger *trigger, AclMode right)
{
	return right == ACL_INSERT ? TRIGGER_FOR_INSERT(trigger->tgtype) :
		right == ACL_UPDATE ? TRIGGER_FOR_UPDATE(trigger->tgtype) :
		TRIGGER_FOR_DELETE(trigger->tgtype);
}

/* What a transition table has is what a statement has changed, and there is none. */
void
mip_refuse_transition_tables(const ResultRelInfo *info, AclMode right)
{
	const TriggerDesc *fire = info->ri_TrigDesc;

	for (int i = 0; fire && i < fire->numtriggers; i++)
	{
		const Trigger *trigger = &fire->triggers[i];

		if ((trigger->tgoldtable || trigger->tgnewtable) && is_of_event(trigger, right))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot apply a writeset to table \"%s\": its trigger \"%s\" would fire, and has transition tables",
							RelationGetRelationName(info->ri_RelationDesc), trigger->tgname),
					 errdetail("These hold what a statement has changed, and a writeset has no statements."),
					 errhint("Let the trigger fire for statements of this database only (ALTER TABLE ... ENABLE TRIGGER), or create it without REFERENCING.")));
	}
}

/* Would it fire if statements made the changes, and does not here? */
static bool
is_passed_over(const Trigger *trigger)
{
	bool		truncates = !TRIGGER_FOR_ROW(trigger->tgtype) && TRIGGER_FOR_TRUNCATE(trigger->tgtype);

	return (trigger->tgenabled == TRIGGER_FIRES_ON_ORIGIN ||
			(trigger->tgenabled == TRIGGER_FIRES_ALWAYS && !is_to_fire(trigger) && !truncates)) &&
		trigger->tgfoid != F_UNIQUE_KEY_RECHECK;
}

/* Rules of statements; a table has none of SELECT. */
static bool
has_rules(Relation rel)
{
	return rel->rd_rules != NULL && rel->rd_rules->numLocks > 0;
}

pg_noreturn static void
refuse_passing_over(Relation rel, const Trigger *trigger)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be owner of table \"%s\" to apply a writeset to it",
					RelationGetRelationName(rel)),
			 RI_FKey_trigger_type(trigger->tgfoid) == RI_TRIGGER_NONE ?
			 errdetail("Its trigger \"%s\" would not fire.", trigger->tgname) :
			 errdetail("Its foreign keys would not be checked."),
			 errhint("Let the table's owner apply it.")));
}

static void
check_triggers(Relation rel, bool truncation)
{
	const TriggerDesc *all = rel->trigdesc;

	for (int i = 0; all && i < all->numtriggers; i++)
	{
		const Trigger *trigger = &all->triggers[i];

		if (is_passed_over(trigger) && (!truncation || TRIGGER_FOR_TRUNCATE(trigger->tgtype)))
			refuse_passing_over(rel, trigger);
	}
}

/*
 * What a table's owner lets happen with each change, be it a foreign key's check or an
 * audit, is his to leave out: a right to change rows is none to do so unnoticed.
 */
void
mip_check_may_pass_over_triggers(Relation rel)
{
	if (mip_object_ownercheck_class(RelationGetRelid(rel), GetUserId()))
		return;
	if (has_rules(rel))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table \"%s\" to apply a writeset to it",
						RelationGetRelationName(rel)),
				 errdetail("Its rules would not be applied."),
				 errhint("Let the table's owner apply it.")));
	check_triggers(rel, false);
}

/* Rows of a partitioned table are its partitions', and so is what happens with them. */
void
mip_check_may_pass_over_truncation(Relation partitioned)
{
	if (!mip_object_ownercheck_class(RelationGetRelid(partitioned), GetUserId()))
		check_triggers(partitioned, true);
}
