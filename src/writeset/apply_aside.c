/*-------------------------------------------------------------------------
 *
 * apply_aside.c
 *	  Indexes that a replica can do without are set aside where they fail.
 *
 * What an index does with a row goes by which others are in it, and where they lie, which is not
 * the same at any two replicas: distances overflow, unions become too long. Or the index is this
 * replica's own. But the row is certified, and all others have it. By unique btrees
 * rows are found and told apart; the others only help to find them. So one that fails here is
 * given up, not the replica. An exclusion constraint whose index is set aside holds no more: what
 * is written here is refused (replication/fits.c), and what comes from others has met theirs.
 *
 * It is a subtransaction that fails, and it is begun anew behind the entry that did:
 * those before it have been made, for nobody takes entries back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/sqlstate.h"
#include "base/subtransaction.h"
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

static void
mark(Oid indexid)
{
	Relation	indexes = table_open(IndexRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(indexid));
	Form_pg_index form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", indexid);
	form = (Form_pg_index) GETSTRUCT(tuple);
	form->indisvalid = form->indisready = form->indisclustered = false;
	CatalogTupleUpdate(indexes, &tuple->t_self, tuple);
	heap_freetuple(tuple);
	table_close(indexes, RowExclusiveLock);
}

/* Whoever has a plan with it, and is about to execute that, would not see what it does not have. */
static void
set_aside(MipTarget *target, Oid indexid, const ErrorData *error)
{
	LockRelationOid(RelationGetRelid(target->rel), AccessExclusiveLock);
	mark(indexid);
	CacheInvalidateRelcache(target->rel);
	CommandCounterIncrement();
	ereport(WARNING,
			(errmsg("index \"%s\" of table \"%s\" is set aside at this replica", get_rel_name(indexid),
					RelationGetRelationName(target->rel)),
			 errdetail("It cannot take in a row of another replica: %s", error->message),
			 errhint("Queries do without it. Remove such rows, then use REINDEX INDEX.")));
}

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

/* Where it is now: somebody may be about to create another one. */
static int
place_of(const MipTarget *target, Oid indexid)
{
	for (int i = target->nneeded; i < target->info->ri_NumIndices; i++)
		if (RelationGetRelid(target->info->ri_IndexRelationDescs[i]) == indexid)
			return i;
	elog(ERROR, "index %u has gone", indexid);
}

static void
give_up_index(Entering *it, const ErrorData *error)
{
	Oid			indexid = RelationGetRelid(it->target->info->ri_IndexRelationDescs[it->index]);

	close_indexes(it->target);
	set_aside(it->target, indexid, error);
	mip_target_open_indexes(it->apply, it->target);
	it->index = place_of(it->target, indexid) + 1;
}

/* ---- entering ---- */

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
		mip_index_insert_cleanup(target->info->ri_IndexRelationDescs[i], target->info->ri_IndexRelationInfo[i]);
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
		if (mip_may_pass(error->sqlerrcode))
			ReThrowError(error);
		give_up_index(&it, error);
		FreeErrorData(error);
		all = *target->info;
	}
}
