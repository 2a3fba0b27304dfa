/*-------------------------------------------------------------------------
 *
 * trigger.c
 *	  The triggers of the schema mip's tables, above all that of mip.mipt for rows that
 *	  come in by SQL.
 *
 * They are from a dump, or a replica. What rows.c writes does not fire triggers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class_d.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/mip.h"
#include "family/family.h"
#include "mipt/catalog.h"
#include "mipt/rows.h"
#include "mipt/trigger.h"

PG_FUNCTION_INFO_V1(mip_keep_links);

static bool rows_came_in;		/* in the current transaction */

/*
 * Who has begun before a row was there looks again. Who ends before it is about to
 * be committed has ended before it came.
 */
static void
note_commit(XactEvent event, void *arg)
{
	if (!rows_came_in)
		return;
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		mip_families_disturbed();
	else
		rows_came_in = false;
}

/* It is about to be inserted: who has begun already may learn of it sooner. */
static void
note_row(HeapTuple row, TupleDesc desc)
{
	static bool registered = false;
	bool		isnull;
	Datum		datum = heap_getattr(row, Anum_xid, desc, &isnull);
	char	   *xid = isnull ? NULL : TextDatumGetCString(datum);

	if (!registered)
		RegisterXactCallback(note_commit, NULL);
	registered = true;
	rows_came_in = true;
	if (xid && strlen(xid) <= MIP_XID_MAX)
		mip_family_disturbed(xid);
}

/* Links and places of a new row are somebody else's, or made up; those of an old one stay. */
Datum
mip_keep_links(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	int			columns[] = {Anum_links, Anum_places};
	Datum		values[] = {(Datum) 0, (Datum) 0};
	bool		nulls[] = {true, true};
	HeapTuple	row;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		RelationGetRelid(trigger->tg_relation) != mipt_relid(MIPT_TABLE))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("mip.keep_links is the trigger of mip.mipt")));
	desc = RelationGetDescr(trigger->tg_relation);
	row = trigger->tg_trigtuple;
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
	{
		for (int i = 0; i < lengthof(columns); i++)
			values[i] = heap_getattr(row, columns[i], desc, &nulls[i]);
		row = trigger->tg_newtuple;
	}
	note_row(row, desc);
	return PointerGetDatum(heap_modify_tuple_by_cols(row, desc, lengthof(columns), columns,
													 values, nulls));
}

/* ---- that they stay ---- */

static bool
is_of_all(const AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		switch (castNode(AlterTableCmd, lfirst(lc))->subtype)
		{
			case AT_EnableTrigAll:
			case AT_EnableTrigUser:
			case AT_DisableTrigAll:
			case AT_DisableTrigUser:
				return true;
			default:
				break;
		}
	}
	return false;
}

/* Where there is such a trigger; false if it fires when it is to anyway. */
static bool
keep_trigger(Relation rel, const char *name, char fires)
{
	for (int i = 0; rel->trigdesc && i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &rel->trigdesc->triggers[i];

		if (strcmp(trigger->tgname, name) != 0 || trigger->tgenabled == fires)
			continue;
		mip_set_trigger(rel, name, fires);
		CommandCounterIncrement();	/* as of now rel->trigdesc is another one */
		return true;
	}
	return false;
}

void
mip_keep_triggers(const AlterTableStmt *stmt)
{
	Oid			relid;
	Relation	rel;
	bool		kept;

	if (!is_of_all(stmt) || !mipt_exists())
		return;
	relid = RangeVarGetRelid(stmt->relation, NoLock, true);
	if (!OidIsValid(relid) ||
		getExtensionOfObject(RelationRelationId, relid) != get_extension_oid("pg_mip", false))
		return;
	CommandCounterIncrement();
	rel = table_open(relid, NoLock);	/* ALTER TABLE has locked it */
	kept = keep_trigger(rel, "keep_links", TRIGGER_FIRES_ALWAYS);
	kept |= keep_trigger(rel, "ignore_replicated", TRIGGER_FIRES_ON_REPLICA);
	if (kept)
		ereport(NOTICE,
				(errmsg("triggers that pg_mip has on table \"%s.%s\" stay as they are",
						get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel))));
	table_close(rel, NoLock);
}
