/*-------------------------------------------------------------------------
 *
 * apply_write.c
 *	  Changes of rows, as a writeset has them.
 *
 * By the executor's own parts, in the order in which it calls them: BEFORE triggers,
 * generated columns, constraints, the access method, indexes, AFTER triggers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "miscadmin.h"
#include "parser/parse_relation.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "tableam/capture.h"
#include "writeset/apply_aside.h"
#include "writeset/apply_check.h"
#include "writeset/apply_column.h"
#include "writeset/apply_find.h"
#include "writeset/apply_generated.h"
#include "writeset/apply_write.h"
#include "writeset/format.h"
#include "writeset/values.h"

/* As in COPY: so many rows, or bytes of them, are inserted at once. */
#define BATCH_ROWS	1000
#define BATCH_BYTES	65536

#define FIRES_BEFORE(target, event) \
	((target)->info->ri_TrigDesc && (target)->info->ri_TrigDesc->trig_##event##_before_row)

/* ---- values ---- */

static void
put_value(const MipApply *apply, MipTarget *target, int column, TupleTableSlot *slot)
{
	MipColumn  *mine = &target->columns[column];
	const MipwValue *value = &target->values[column];

	if (mine->attno == 0)
		return;
	slot->tts_isnull[mine->attno - 1] = value->null;
	slot->tts_values[mine->attno - 1] = value->null ? (Datum) 0 :
		mip_column_value(mine, apply->set, value);
}

/* A row to be inserted */
static void
set_row(const MipApply *apply, MipTarget *target, TupleTableSlot *slot)
{
	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts);
	for (int i = 0; i < target->source->ncolumns; i++)
		put_value(apply, target, i, slot);
	ExecStoreVirtualTuple(slot);
	slot->tts_tableOid = RelationGetRelid(target->rel);
}

/*
 * The new version of the row that was found. What is not changed stays as it is stored,
 * and so do values that are out of line.
 */
static void
set_version(const MipApply *apply, MipTarget *target)
{
	TupleTableSlot *slot = ExecClearTuple(target->row);
	int			natts = slot->tts_tupleDescriptor->natts;

	slot_getallattrs(target->found);
	memcpy(slot->tts_values, target->found->tts_values, natts * sizeof(Datum));
	memcpy(slot->tts_isnull, target->found->tts_isnull, natts * sizeof(bool));
	for (int i = 0; i < target->source->ncolumns; i++)
		if (target->values[i].there)
			put_value(apply, target, i, slot);
	ExecStoreVirtualTuple(slot);
	slot->tts_tableOid = RelationGetRelid(target->rel);
}

/* Of all columns, or of those to which the change gives a value. */
static void
check_domains(const MipApply *apply, MipTarget *target, TupleTableSlot *slot, bool all)
{
	if (apply->as_is)
		return;
	for (int i = 0; target->domains && i < target->source->ncolumns; i++)
	{
		MipColumn  *column = &target->columns[i];

		if (column->attno != 0 && (all || target->values[i].there))
			mip_column_check_domain(column, slot->tts_values[column->attno - 1],
									slot->tts_isnull[column->attno - 1]);
	}
}

static void
complete_row(MipApply *apply, MipTarget *target, TupleTableSlot *slot)
{
	TupleConstr *constr = RelationGetDescr(target->rel)->constr;

	if (apply->as_is)
		return;

	/*
	 * All of them, also in updates: before 16 the expressions for the columns
	 * that the first update has changed would be all that is computed from
	 * then on.
	 */
	if (constr && constr->has_generated_stored)
		ExecComputeStoredGenerated(target->info, apply->estate, slot, CMD_INSERT);
	if (constr)
		ExecConstraints(target->info, slot, apply->estate);
	if (target->rel->rd_rel->relispartition)
		ExecPartitionCheck(target->info, slot, apply->estate, true);
}

/* ---- insertions ---- */

static void
inserted(MipApply *apply, MipTarget *target, TupleTableSlot *slot)
{
	mip_apply_enter_some(apply, target, 0, target->nneeded, slot, false, false);
	ExecARInsertTriggers(apply->estate, target->info, slot, NIL, NULL);
	mip_apply_remember(apply, target, slot);
}

/* The trigger may look at what has been inserted before. */
static void
insert_one(MipApply *apply, MipTarget *target)
{
	bool		pause;

	mip_target_fix_settings(apply, target);
	set_row(apply, target, target->row);
	mip_target_own_settings(apply, target);
	check_domains(apply, target, target->row, true);
	if (!ExecBRInsertTriggers(apply->estate, target->info, target->row))
		return;
	complete_row(apply, target, target->row);
	pause = mip_capture_pause(true);
	table_tuple_insert(target->rel, target->row, GetCurrentCommandId(true), 0, NULL);
	(void) mip_capture_pause(pause);
	inserted(apply, target, target->row);
}

static void
insert_later(MipApply *apply, MipTarget *target, const MipwChange *change)
{
	MemoryContext before;
	int			n = target->batched;

	if (target->batch == NULL)
	{
		target->batch = MemoryContextAlloc(apply->estate->es_query_cxt,
										   BATCH_ROWS * sizeof(TupleTableSlot *));
		target->numbers = MemoryContextAlloc(apply->estate->es_query_cxt,
											 BATCH_ROWS * sizeof(uint64));
	}
	if (n == target->nslots)
	{
		before = MemoryContextSwitchTo(apply->estate->es_query_cxt);
		target->batch[target->nslots++] = table_slot_create(target->rel, NULL);
		MemoryContextSwitchTo(before);
	}
	mip_target_fix_settings(apply, target);
	before = MemoryContextSwitchTo(target->batch_memory);
	set_row(apply, target, target->batch[n]);
	MemoryContextSwitchTo(before);
	if (n == 0)
		dlist_push_tail(&apply->batches, &target->batch_node);
	target->numbers[target->batched++] = change->number;
	target->batched_bytes += change->body_end - change->body;
	if (target->in_order || target->batched == BATCH_ROWS ||
		target->batched_bytes >= BATCH_BYTES)
		mip_apply_flush(apply, target);
}

void
mip_apply_insert(MipApply *apply, MipTarget *target, const MipwChange *change)
{
	mipw_row(change, target->values);
	if ((target->rights & ACL_INSERT) == 0)
		mip_target_check_columns(target, ACL_INSERT, mip_target_given(target, target->values));
	if (FIRES_BEFORE(target, insert))
	{
		mip_target_open_indexes(apply, target);
		insert_one(apply, target);
	}
	else
		insert_later(apply, target, change);
}

static void
insert_batch(MipApply *apply, MipTarget *target)
{
	MemoryContext before = MemoryContextSwitchTo(GetPerTupleMemoryContext(apply->estate));
	CommandId	cid = GetCurrentCommandId(true);
	bool		pause;

	if (target->batched == BATCH_ROWS && target->bulk == NULL)
	{
		MemoryContextSwitchTo(apply->estate->es_query_cxt);
		target->bulk = GetBulkInsertState();
		MemoryContextSwitchTo(GetPerTupleMemoryContext(apply->estate));
	}
	pause = mip_capture_pause(true);
	if (target->batched == 1)
		table_tuple_insert(target->rel, target->batch[0], cid, 0, target->bulk);
	else
		table_multi_insert(target->rel, target->batch, target->batched, cid, 0, target->bulk);
	(void) mip_capture_pause(pause);
	MemoryContextSwitchTo(before);
}

void
mip_apply_flush(MipApply *apply, MipTarget *target)
{
	uint64		number = apply->number;
	MipUser		user;

	if (target->batched == 0)
		return;
	user = mip_target_become_owner(apply, target);
	mip_target_open_indexes(apply, target);
	mip_target_own_settings(apply, target);
	for (int i = 0; i < target->batched; i++)
	{
		ResetPerTupleExprContext(apply->estate);
		apply->number = target->numbers[i];
		check_domains(apply, target, target->batch[i], true);
		complete_row(apply, target, target->batch[i]);
	}
	insert_batch(apply, target);
	for (int i = 0; i < target->batched; i++)
	{
		ResetPerTupleExprContext(apply->estate);
		apply->number = target->numbers[i];
		mip_target_own_settings(apply, target);
		inserted(apply, target, target->batch[i]);
	}
	mip_apply_enter_dispensable(apply, target, target->batch, target->batched, false, false);
	for (int i = 0; i < target->batched; i++)
		ExecClearTuple(target->batch[i]);
	apply->number = number;
	dlist_delete(&target->batch_node);
	target->batched = 0;
	target->batched_bytes = 0;
	MemoryContextReset(target->batch_memory);
	mip_target_become_again(apply, user);
}

void
mip_apply_flush_all(MipApply *apply)
{
	while (!dlist_is_empty(&apply->batches))
		mip_apply_flush(apply, dlist_head_element(MipTarget, batch_node, &apply->batches));
}

/* ---- updates and deletions ---- */

/*
 * For triggers, which lock the row as strongly, but do not look for a later version
 * themselves, as we do. A key that they change is locked when it is.
 */
static TM_Result
lock_found(MipApply *apply, MipTarget *target, LockTupleMode mode)
{
	TM_FailureData tmfd;

	return table_tuple_lock(target->rel, &target->found->tts_tid, apply->snapshot,
							target->other, GetCurrentCommandId(true), mode,
							LockWaitBlock, 0, &tmfd);
}

/* By a command that the change itself, begun at this one, has had executed? */
static void
check_not_modified(TM_Result result, const TM_FailureData *tmfd, CommandId cid)
{
	if (result == TM_SelfModified && tmfd->cmax != cid)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("a row to be changed by a writeset was already modified by an operation triggered by that change"),
				 errhint("Consider using an AFTER trigger instead of a BEFORE trigger to propagate changes to other rows.")));
}

/* Indexes are told by the first update which of them is likely to stay as it is. */
static void
note_updated(MipApply *apply, MipTarget *target)
{
	Bitmapset  *given = mip_target_given(target, target->values);

	mip_target_check_columns(target, ACL_UPDATE, given);
	given = mip_target_updated(apply, target, given);
	if (!bms_equal(given, target->updated))
	{
		MemoryContext before = MemoryContextSwitchTo(apply->estate->es_query_cxt);

		bms_free(target->updated);
		target->updated = bms_copy(given);
		MemoryContextSwitchTo(before);
	}
	mip_set_updated_columns(apply->estate, target->info->ri_RangeTableIndex, target->updated);
}

static void
updated(MipApply *apply, MipTarget *target, bool only_summarizing)
{
	mip_apply_enter_some(apply, target, 0, target->nneeded, target->row, true, only_summarizing);
	mip_apply_enter_dispensable(apply, target, &target->row, 1, true, only_summarizing);
}

static TM_Result
update_found(MipApply *apply, MipTarget *target)
{
	ItemPointerData tid = target->found->tts_tid;
	CommandId	cid = GetCurrentCommandId(true);
	bool		before = FIRES_BEFORE(target, update);
	TM_FailureData tmfd;
	LockTupleMode mode;
	MipUpdateIndexes indexes;
	TM_Result	result;
	bool		pause;

	if (before)
	{
		mode = ExecUpdateLockMode(apply->estate, target->info);
		result = lock_found(apply, target, mode);
		if (result != TM_Ok)
			return result;
	}
	set_version(apply, target);
	mip_target_own_settings(apply, target);
	check_domains(apply, target, target->row, false);
	if (before && !mip_before_update_triggers(apply->estate, &apply->epq, target->info, &tid,
											  target->row))
		return TM_Ok;
	complete_row(apply, target, target->row);
	pause = mip_capture_pause(true);
	result = table_tuple_update(target->rel, &tid, target->row, cid, apply->snapshot,
								InvalidSnapshot, true, &tmfd, &mode, &indexes);
	(void) mip_capture_pause(pause);
	check_not_modified(result, &tmfd, cid);
	if (result != TM_Ok)
		return result;
	if (MIP_UPDATES_INDEXES(indexes))
		updated(apply, target, MIP_UPDATES_SUMMARIES_ONLY(indexes));
	ExecARUpdateTriggers(apply->estate, target->info, NULL, NULL, &tid, NULL, target->row, NIL,
						 NULL, false);
	mip_apply_remember(apply, target, target->row);
	return TM_Ok;
}

static TM_Result
delete_found(MipApply *apply, MipTarget *target)
{
	ItemPointerData tid = target->found->tts_tid;
	CommandId	cid = GetCurrentCommandId(true);
	bool		before = FIRES_BEFORE(target, delete);
	TM_FailureData tmfd;
	TM_Result	result;
	bool		pause;

	mip_target_own_settings(apply, target);
	if (before && (result = lock_found(apply, target, LockTupleExclusive)) != TM_Ok)
		return result;
	if (before && !mip_before_delete_triggers(apply->estate, &apply->epq, target->info, &tid))
		return TM_Ok;
	pause = mip_capture_pause(true);
	result = table_tuple_delete(target->rel, &tid, cid, apply->snapshot, InvalidSnapshot, true,
								&tmfd, false);
	(void) mip_capture_pause(pause);
	check_not_modified(result, &tmfd, cid);
	if (result == TM_Ok)
		ExecARDeleteTriggers(apply->estate, target->info, &tid, NULL, NULL, false);
	return result;
}

/* Somebody else, or this writeset, has changed the row since the snapshot. */
static void
check_may_look_again(TM_Result result)
{
	bool		others = result == TM_Updated || result == TM_Deleted;

	if (others && IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 result == TM_Updated ?
				 errmsg("could not serialize access due to concurrent update") :
				 errmsg("could not serialize access due to concurrent delete")));
	if (!others && result != TM_SelfModified && result != TM_Invisible)
		elog(ERROR, "pg_mip: unexpected result of a change: %d", result);
}

static bool
change_row(MipApply *apply, MipTarget *target, TM_Result (*change) (MipApply *, MipTarget *))
{
	bool		again = false;

	for (;; again = true)
	{
		bool		found;

		mip_target_fix_settings(apply, target);
		found = mip_apply_find(apply, target, again);
		if (found)
		{
			TM_Result	result = change(apply, target);

			if (result == TM_Ok)
				return true;
			check_may_look_again(result);
		}
		else if (again)
			return false;
		CHECK_FOR_INTERRUPTS();
		mip_apply_look_again(apply);
	}
}

bool
mip_apply_update(MipApply *apply, MipTarget *target, const MipwChange *change)
{
	mip_apply_flush(apply, target);
	mip_target_open_indexes(apply, target);
	mip_target_fix_settings(apply, target);
	mip_apply_want(apply, target, change);
	mipw_row(change, target->values);
	note_updated(apply, target);
	return change_row(apply, target, update_found);
}

bool
mip_apply_delete(MipApply *apply, MipTarget *target, const MipwChange *change)
{
	mip_apply_flush(apply, target);
	mip_target_open_indexes(apply, target);
	mip_target_fix_settings(apply, target);
	mip_apply_want(apply, target, change);
	return change_row(apply, target, delete_found);
}
