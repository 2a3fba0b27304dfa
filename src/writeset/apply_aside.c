/*-------------------------------------------------------------------------
 *
 * apply_aside.c
 *	  Indexes that a replica can do without are set aside where they fail.
 *
 * Why, and what that means: tableam/aside.c. It is a subtransaction that fails, and it is begun
 * anew behind the entry that did: those before it have been made, for nobody takes entries
 * back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/sqlstate.h"
#include "base/subtransaction.h"
#include "tableam/aside.h"
#include "writeset/apply_aside.h"
#include "writeset/apply_check.h"

/* What is entered, and where that has come to */
typedef struct Entering
{
	MipApply   *apply;
	MipTarget  *target;
	TupleTableSlot **rows;
	int			n;
	bool		update;
	bool		only_summarizing;
	int			row;
	int			index;
} Entering;

/* ---- an index that has failed ---- */

/* What they keep from one row to the next has gone with the subtransaction. */
static void
close_indexes(MipTarget *target)
{
	MipTarget  *twin = target;

	for (int i = target->nneeded; i < target->info->ri_NumIndices; i++)
		target->info->ri_IndexRelationInfo[i]->ii_AmCache = NULL;
	do
	{
		mip_target_close_indexes(twin);
		twin = twin->twin;
	} while (twin != target);
}

static List *
needed_indexes(const MipTarget *target)
{
	List	   *needed = NIL;

	for (int i = 0; i < target->nneeded; i++)
		needed = lappend_oid(needed, RelationGetRelid(target->info->ri_IndexRelationDescs[i]));
	return needed;
}

/*
 * While the lock is waited for REINDEX CONCURRENTLY may put what it has built in the place of a needed one, be it this
 * index or another: then it is not known any more where entries have been made. Later there is nobody in the way.
 */
static void
set_aside(MipApply *apply, MipTarget *target, Oid indexid, const ErrorData *error)
{
	List	   *needed = needed_indexes(target);

	close_indexes(target);
	mip_index_set_aside(target->rel, indexid, error->message);
	mip_target_open_indexes(apply, target);
	if (!equal(needed, needed_indexes(target)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("an index of table \"%s\" has taken another one's place", RelationGetRelationName(target->rel))));
}

static void
give_up_index(Entering *it, const ErrorData *error)
{
	Oid			indexid = RelationGetRelid(it->target->info->ri_IndexRelationDescs[it->index]);
	int			number;

	set_aside(it->apply, it->target, indexid, error);
	number = mip_target_find_index(it->target, indexid);	/* somebody may be about
															 * to create another one */
	if (number < 0)
		elog(ERROR, "index %u has gone", indexid);
	it->index = number + 1;
}

/* ---- entering ---- */

/* With the memory of what it has kept, which 17 and 18 leave where it is. */
static void
clean_up(Relation index, IndexInfo *info)
{
	if (!MIP_HAS_INSERT_CLEANUP(index))
		return;
	mip_index_insert_cleanup(index, info);
	MemoryContextReset(info->ii_Context);
}

static void
enter(void *entering)
{
	Entering   *it = entering;
	MipTarget  *target = it->target;

	for (; it->row < it->n; it->row++)
	{
		if (it->row > 0)
			ResetPerTupleExprContext(it->apply->estate);
		for (; it->index < target->info->ri_NumIndices; it->index++)
			mip_apply_enter_some(it->apply, target, it->index, 1, it->rows[it->row], it->update,
								 it->only_summarizing);
		it->index = target->nneeded;
	}
	for (int i = target->nneeded; i < target->info->ri_NumIndices; i++)
		clean_up(target->info->ri_IndexRelationDescs[i], target->info->ri_IndexRelationInfo[i]);
}

void
mip_apply_enter_dispensable(MipApply *apply, MipTarget *target, TupleTableSlot **rows, int n,
							bool update, bool only_summarizing)
{
	Entering	it = {apply, target, rows, n, update, only_summarizing, 0, target->nneeded};
	ResultRelInfo all = *target->info;
	ErrorData  *error;

	if (target->nneeded == target->info->ri_NumIndices)
		return;
	while ((error = mip_try(enter, &it)) != NULL)
	{
		*target->info = all;
		if (it.row == n || mip_may_pass(error->sqlerrcode))
			ReThrowError(error);
		give_up_index(&it, error);
		FreeErrorData(error);
		all = *target->info;
	}
}

/* ---- keys that are there twice ---- */

typedef struct Doubting
{
	MipApply   *apply;
	MipDoubt   *doubt;
} Doubting;

static void
check_doubt(void *doubting)
{
	Doubting   *it = doubting;

	mip_apply_check_doubt(it->apply, it->doubt);
}

static bool
is_of_reindex(const MipApply *apply, const MipDoubt *doubt)
{
	int			number = apply->as_is ? mip_target_find_index(doubt->target, doubt->index) : -1;

	return number >= 0 && mip_index_is_of_reindex(doubt->target->info->ri_IndexRelationDescs[number]);
}

static void
check_or_set_aside(MipApply *apply, MipDoubt *doubt)
{
	Doubting	it = {apply, doubt};
	ErrorData  *error;

	ExecClearTuple(doubt->target->other);
	error = mip_try(check_doubt, &it);
	if (error == NULL)
		return;
	if (mip_may_pass(error->sqlerrcode))
		ReThrowError(error);
	set_aside(apply, doubt->target, doubt->index, error);
	FreeErrorData(error);
}

void
mip_apply_check_doubts(MipApply *apply)
{
	mip_apply_own_settings(apply);
	for (int64 i = 0; i < apply->ndoubts; i++)
	{
		MipDoubt   *doubt = &apply->doubts[i];

		CHECK_FOR_INTERRUPTS();
		ResetPerTupleExprContext(apply->estate);
		mip_target_open_indexes(apply, doubt->target);
		if (is_of_reindex(apply, doubt))
			check_or_set_aside(apply, doubt);
		else
			mip_apply_check_doubt(apply, doubt);
	}
	apply->ndoubts = 0;
}
