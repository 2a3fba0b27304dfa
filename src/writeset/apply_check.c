/*-------------------------------------------------------------------------
 *
 * apply_check.c
 *	  Unique and exclusion constraints, once a writeset has been applied.
 *
 * All are taken for deferred until then, but for the key that rows are found by: so other
 * keys may be swapped, by an UPDATE under a DEFERRABLE constraint, or by two that were one
 * behind the other until the writeset was compacted. Entries that are not the only ones of their key are looked at in the end,
 * as PostgreSQL does for deferred constraints (unique_key_recheck): its own triggers for
 * that are not fired, and constraints that are not DEFERRABLE have none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/hio.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "writeset/apply_check.h"

static void
add_doubt(MipApply *apply, MipTarget *target, Oid index, ItemPointer tid)
{
	MipDoubt   *doubt;

	if (apply->doubts == NULL)
	{
		apply->room = 64;
		apply->doubts = MemoryContextAlloc(apply->estate->es_query_cxt,
										   apply->room * sizeof(MipDoubt));
	}
	else if (apply->ndoubts == apply->room)
	{
		apply->room *= 2;
		apply->doubts = repalloc_huge(apply->doubts, mul_size(apply->room, sizeof(MipDoubt)));
	}
	doubt = &apply->doubts[apply->ndoubts++];
	doubt->target = target;
	doubt->index = index;
	doubt->tid = *tid;
}

/*
 * Is the row, or a later version of it that has the same index entries, still there?
 * `tid` becomes that version's.
 */
static bool
is_there(Relation rel, ItemPointer tid, TupleTableSlot *slot)
{
	IndexFetchTableData *fetch = table_index_fetch_begin(rel);
	bool		again = false;
	bool		found = table_index_fetch_tuple(fetch, tid, SnapshotSelf, slot, &again, NULL);

	table_index_fetch_end(fetch);
	return found;
}

static void
check_version(MipApply *apply, MipTarget *target, int number, ItemPointer tid)
{
	Relation	index = target->info->ri_IndexRelationDescs[number];
	IndexInfo  *info = target->info->ri_IndexRelationInfo[number];
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	ItemPointerData version = *tid;
	TupleTableSlot *slot = target->other;	/* what is found may be in use */

	if (!info->ii_ReadyForInserts || !is_there(target->rel, &version, slot))
		return;
	GetPerTupleExprContext(apply->estate)->ecxt_scantuple = slot;
	FormIndexDatum(info, slot, apply->estate, values, nulls);
	if (info->ii_ExclusionOps)
		check_exclusion_constraint(target->rel, index, info, &version, values, nulls,
								   apply->estate, false);
	else
		index_insert(index, values, nulls, tid, target->rel, UNIQUE_CHECK_EXISTING, false,
					 info);
}

/* A page that is pinned in a subtransaction is not to be once that has failed. */
static void
check_entry(MipApply *apply, MipTarget *target, int number, ItemPointer tid)
{
	PG_TRY();
	{
		check_version(apply, target, number, tid);
	}
	PG_CATCH();
	{
		ExecClearTuple(target->other);
		PG_RE_THROW();
	}
	PG_END_TRY();
	ExecClearTuple(target->other);
}

static void
check_entry_of(MipApply *apply, MipTarget *target, Oid index, ItemPointer tid)
{
	MipUser		user = mip_target_become_owner(apply, target);
	int			number = mip_target_find_index(target, index);

	if (number >= 0)
		check_entry(apply, target, number, tid);
	mip_target_become_again(apply, user);
}

/*
 * Two rows never have the identity at once, where the writeset comes from, nor in the order
 * of a compacted one. So if they have here, one of them is only here, and must not be
 * taken for the other.
 */
static bool
is_at_once(const MipTarget *target, Oid index)
{
	return !target->source->whole && index == RelationGetRelid(target->index);
}

void
mip_apply_enter_some(MipApply *apply, MipTarget *target, int first, int n, TupleTableSlot *row,
					 bool update, bool only_summarizing)
{
	ResultRelInfo *info = target->info;
	ResultRelInfo all = *info;
	bool		conflict = false;
	List	   *doubtful;
	ListCell   *lc;

	if (n == 0)
		return;
	info->ri_NumIndices = n;
	info->ri_IndexRelationDescs += first;
	info->ri_IndexRelationInfo += first;
	/* as for a speculative insertion: nothing fails, nobody is waited for */
	doubtful = mip_insert_index_tuples(info, row, apply->estate, update, &conflict, only_summarizing);
	info->ri_NumIndices = all.ri_NumIndices;
	info->ri_IndexRelationDescs = all.ri_IndexRelationDescs;
	info->ri_IndexRelationInfo = all.ri_IndexRelationInfo;
	foreach(lc, doubtful)
	{
		if (is_at_once(target, lfirst_oid(lc)))
			check_entry_of(apply, target, lfirst_oid(lc), &row->tts_tid);
		else
			add_doubt(apply, target, lfirst_oid(lc), &row->tts_tid);
	}
	list_free(doubtful);
}

static void
forget(MipTarget *target)
{
	mip_target_close_indexes(target);
	if (target->bulk)
		FreeBulkInsertState(target->bulk);
	target->bulk = NULL;
}

/* Of a table that is truncated: its rows, and the page with room for the next ones */
void
mip_apply_forget(MipApply *apply, MipTarget *target)
{
	int64		kept = 0;

	for (int64 i = 0; i < apply->ndoubts; i++)
		if (RelationGetRelid(apply->doubts[i].target->rel) != RelationGetRelid(target->rel))
			apply->doubts[kept++] = apply->doubts[i];
	apply->ndoubts = kept;
	forget(target);
	for (MipTarget *twin = target->twin; twin != target; twin = twin->twin)
		forget(twin);
}

void
mip_apply_check_doubt(MipApply *apply, MipDoubt *doubt)
{
	check_entry_of(apply, doubt->target, doubt->index, &doubt->tid);
}
