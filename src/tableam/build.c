/*-------------------------------------------------------------------------
 *
 * build.c
 *	  Building indexes of a mip table.
 *
 * Where a replica executes a definition of all replicas its rows are what the others have, but
 * not where these lie, nor which dead ones are among them. So an index may fail here. Then it gets
 * no dead rows; and if it fails again, nothing at all, and is set aside.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/index.h"
#include "nodes/execnodes.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "tableam/am.h"
#include "tableam/aside.h"
#include "tableam/build.h"

/* An index, by what it is when it is begun anew */
typedef struct Built
{
	Oid			table;
	NameData	name;
	Oid			oid;			/* this time; 0: it has not been built */
	bool		needed;
	char	   *why;			/* it is left out */
} Built;

static bool seen_only;			/* between mip_builds_begin and _end */
static Built last;				/* that was built there; table 0: none */
static List *left_out;			/* in TopMemoryContext */

/* ---- what is left out ---- */

static Built *
find_left_out(Oid table, const char *name)
{
	ListCell   *lc;

	foreach(lc, left_out)
	{
		Built	   *built = lfirst(lc);

		if (built->table == table && strcmp(NameStr(built->name), name) == 0)
			return built;
	}
	return NULL;
}

/* Is it to be built? */
static bool
note_build(Relation rel, Relation index)
{
	Built	   *built = find_left_out(RelationGetRelid(rel), RelationGetRelationName(index));

	if (built)
	{
		built->oid = RelationGetRelid(index);
		return false;
	}
	last.table = RelationGetRelid(rel);
	last.name = index->rd_rel->relname;
	last.needed = mip_index_is_needed(index);
	return true;
}

bool
mip_builds_leave_out(const char *why)
{
	MemoryContext caller;
	Built	   *built;

	if (!OidIsValid(last.table) || last.needed)
		return false;
	caller = MemoryContextSwitchTo(TopMemoryContext);
	built = palloc(sizeof(Built));
	*built = last;
	built->why = pstrdup(why);
	left_out = lappend(left_out, built);
	MemoryContextSwitchTo(caller);
	return true;
}

void
mip_builds_leave_out_none(void)
{
	ListCell   *lc;

	foreach(lc, left_out)
		pfree(((Built *) lfirst(lc))->why);
	list_free_deep(left_out);
	left_out = NIL;
}

/* It may have gone since, with its table. */
void
mip_builds_set_aside(void)
{
	ListCell   *lc;

	foreach(lc, left_out)
	{
		Built	   *built = lfirst(lc);
		Relation	rel = OidIsValid(built->oid) ? try_relation_open(built->table, AccessShareLock) : NULL;

		if (rel == NULL)
			continue;
		if (SearchSysCacheExists1(INDEXRELID, ObjectIdGetDatum(built->oid)))
			mip_index_set_aside(rel, built->oid, built->why);
		relation_close(rel, NoLock);
	}
}

void
mip_builds_begin(void)
{
	ListCell   *lc;

	foreach(lc, left_out)
		((Built *) lfirst(lc))->oid = InvalidOid;
	memset(&last, 0, sizeof(last));
	seen_only = true;
}

void
mip_builds_end(void)
{
	seen_only = false;
}

/* ---- heap_getnext insists on heap's own routine ---- */

/*
 * A copy of a relation's descriptor that says "heap", for heap's scan code
 * only; the relation itself must not change under its users' eyes (and a
 * relcache rebuild would undo it). Lives as long as resource owners may look
 * at it after an error.
 */
static Relation
heap_view(Relation rel)
{
	Relation	view = MemoryContextAlloc(TopTransactionContext, sizeof(RelationData));

	/* the view shares the relation's counters: make sure that it has some */
	(void) pgstat_should_count_relation(rel);
	*view = *rel;
	view->rd_tableam = mip_heap();
	view->rd_refcnt = 0;
	view->rd_smgr = NULL;
	return view;
}

static double
mip_index_build_range_scan(Relation rel, Relation index, IndexInfo *info,
						   bool allow_sync, bool anyvisible, bool progress,
						   BlockNumber start_blockno, BlockNumber numblocks,
						   IndexBuildCallback callback, void *state,
						   TableScanDesc scan)
{
	Relation	view = heap_view(rel);
	bool		concurrent = info->ii_Concurrent;
	volatile double tuples;

	if (seen_only && !note_build(rel, index))
		return rel->rd_rel->reltuples < 0 ? RelationGetNumberOfBlocks(rel) : rel->rd_rel->reltuples;
	RelationIncrementReferenceCount(view);
	PG_TRY();
	{
		if (scan)
		{
			/* a parallel worker's scan: move its reference over as well */
			RelationIncrementReferenceCount(view);
			RelationDecrementReferenceCount(scan->rs_rd);
			scan->rs_rd = view;
		}
		else if (seen_only)
			info->ii_Concurrent = info->ii_BrokenHotChain = true;
		tuples = mip_heap()->index_build_range_scan(view, index, info, allow_sync,
													anyvisible, progress,
													start_blockno, numblocks,
													callback, state, scan);
	}
	PG_FINALLY();
	{
		info->ii_Concurrent = concurrent;
		RelationCloseSmgr(view);
	}
	PG_END_TRY();
	RelationDecrementReferenceCount(view);
	return tuples;
}

static void
mip_index_validate_scan(Relation rel, Relation index, IndexInfo *info,
						Snapshot snapshot, ValidateIndexState *state)
{
	Relation	view = heap_view(rel);

	RelationIncrementReferenceCount(view);
	PG_TRY();
	{
		mip_heap()->index_validate_scan(view, index, info, snapshot, state);
	}
	PG_FINALLY();
	{
		RelationCloseSmgr(view);
	}
	PG_END_TRY();
	RelationDecrementReferenceCount(view);
}

void
mip_tableam_build(TableAmRoutine *routine)
{
	routine->index_build_range_scan = mip_index_build_range_scan;
	routine->index_validate_scan = mip_index_validate_scan;
}
