/*-------------------------------------------------------------------------
 *
 * pending.c
 *	  Triggers that may still change rows before the transaction ends.
 *
 * PostgreSQL tells of one table whether events of it are pending. They may be of any
 * table that the transaction has written to, mip table or not. Those of constraints that
 * are deferred only check.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "commands/trigger.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"

#include "base/locks.h"
#include "writeset/pending.h"

static bool
only_checks(const Trigger *trigger)
{
	return RI_FKey_trigger_type(trigger->tgfoid) != RI_TRIGGER_NONE ||
		trigger->tgfoid == F_UNIQUE_KEY_RECHECK;
}

static bool
has_deferrable_trigger(Relation rel)
{
	for (int i = 0; rel->trigdesc && i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &rel->trigdesc->triggers[i];

		if (trigger->tgdeferrable && !only_checks(trigger))
			return true;
	}
	return false;
}

void
mip_refuse_pending_triggers(void)
{
	List	   *tables = mip_own_written_tables();
	ListCell   *lc;

	foreach(lc, tables)
	{
		Relation	rel = try_relation_open(lfirst_oid(lc), NoLock);

		if (rel == NULL)
			continue;
		/* that looks at all events, whatever tables they are of */
		if (has_deferrable_trigger(rel) && AfterTriggerPendingOnRel(lfirst_oid(lc)))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("deferred triggers of table \"%s\" have not been fired yet",
							RelationGetRelationName(rel)),
					 errdetail("They may make changes that belong to the writeset."),
					 errhint("Send SET CONSTRAINTS ALL IMMEDIATE before, and extract behind the statement, not in RETURNING or in such a trigger.")));
		relation_close(rel, NoLock);
	}
	list_free(tables);
}
