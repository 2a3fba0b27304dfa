/*-------------------------------------------------------------------------
 *
 * free_keys.c
 *	  An insertion tells that its keys were free.
 *
 * Whoever must know of that finds what has been inserted. Of an insertion that has been
 * rolled back with its savepoint there is nothing to be found, but the transaction goes
 * on, and has been told. Where each single conflict counts (transam/across.c) the unique
 * and exclusion indexes of the table count as read, then, before they are asked: as a
 * whole, for nobody tells which pages they look at. SIREAD locks outlive a savepoint.
 *
 * At one site PostgreSQL leaves it at that, and so do we.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_index.h"
#include "storage/predicate.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "tableam/free_keys.h"

static TableAmRoutine inner;
static bool (*each_conflict_counts) (void);

/* The last table whose indexes have been marked: a loop pays once. */
static struct
{
	Oid			table;
	TransactionId by;
	bool		keys;
}			marked;

static uint64 changes;			/* of relations, seen by this session */

/* There may be another index. */
static void
forget_marked(Datum arg, Oid relid)
{
	marked.table = InvalidOid;
	changes++;
}

static bool
is_marked(Relation rel, bool keys)
{
	return marked.table == RelationGetRelid(rel) && (marked.keys || !keys) &&
		TransactionIdEquals(marked.by, GetTopTransactionId());
}

static void
listen_to_changes(void)
{
	static bool listens = false;

	if (!listens)
		CacheRegisterRelcacheCallback(forget_marked, (Datum) 0);
	listens = true;
}

static void
remember_marked(Relation rel, bool keys)
{
	marked.table = RelationGetRelid(rel);
	marked.by = GetTopTransactionId();
	marked.keys = keys;
}

/*
 * Does it tell anything? Not one that is unique in columns alone, if these are as they
 * were (`keys`: they may not be).
 */
static bool
tells(Relation index, bool keys)
{
	if (!index->rd_index->indisready)
		return false;
	if (index->rd_index->indisexclusion)
		return true;
	return index->rd_index->indisunique &&
		(keys ||
		 !heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL) ||
		 !heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL));
}

static void
mark(Relation rel, bool keys)
{
	List	   *indexes;
	ListCell   *lc;
	uint64		before;

	if (is_marked(rel, keys))
		return;
	listen_to_changes();
	before = changes;
	indexes = RelationGetIndexList(rel);
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (tells(index, keys))
			PredicateLockRelation(index, GetTransactionSnapshot());
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	if (changes == before)
		remember_marked(rel, keys);
}

static inline bool
may_be_undone(void)
{
	return unlikely(IsolationIsSerializable()) && GetCurrentTransactionNestLevel() > 1 &&
		each_conflict_counts && each_conflict_counts();
}

/* ---- callbacks ---- */

static void
mip_telling_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
				   struct BulkInsertStateData *bistate)
{
	if (may_be_undone())
		mark(rel, true);
	inner.tuple_insert(rel, slot, cid, options, bistate);
}

static void
mip_telling_insert_speculative(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
							   struct BulkInsertStateData *bistate, uint32 token)
{
	if (may_be_undone())
		mark(rel, true);
	inner.tuple_insert_speculative(rel, slot, cid, options, bistate, token);
}

static void
mip_telling_multi_insert(Relation rel, TupleTableSlot **slots, int nslots, CommandId cid,
						 int options, struct BulkInsertStateData *bistate)
{
	if (may_be_undone())
		mark(rel, true);
	inner.multi_insert(rel, slots, nslots, cid, options, bistate);
}

/* Only here it is known whether there will be entries in indexes. */
static TM_Result
mip_telling_update(Relation rel, ItemPointer otid, TupleTableSlot *slot, CommandId cid,
				   Snapshot snapshot, Snapshot crosscheck, bool wait, TM_FailureData *tmfd,
				   LockTupleMode *lockmode, MipUpdateIndexes *update_indexes)
{
	TM_Result	result = inner.tuple_update(rel, otid, slot, cid, snapshot, crosscheck, wait,
											tmfd, lockmode, update_indexes);

	if (may_be_undone() && result == TM_Ok && MIP_UPDATES_INDEXES(*update_indexes) &&
		!MIP_UPDATES_SUMMARIES_ONLY(*update_indexes))
		mark(rel, *lockmode == LockTupleExclusive);
	return result;
}

void
mip_tableam_free_keys(TableAmRoutine *routine)
{
	inner = *routine;
	routine->tuple_insert = mip_telling_insert;
	routine->tuple_insert_speculative = mip_telling_insert_speculative;
	routine->multi_insert = mip_telling_multi_insert;
	routine->tuple_update = mip_telling_update;
}

void
mip_free_keys_count_if(bool (*everywhere) (void))
{
	each_conflict_counts = everywhere;
}
