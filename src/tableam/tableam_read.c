/*-------------------------------------------------------------------------
 *
 * tableam_read.c
 *	  Reading callbacks: hide base versions that the overlay has replaced.
 *
 * A pending sibling's own versions need no hiding from MVCC snapshots: they
 * belong to a running transaction, and what that transaction replaced is
 * visible, which is exactly the pre-image. Dirty snapshots (unique checks, ON
 * CONFLICT, exclusion) do see them and are corrected here.
 *
 * Once a doomed instance's winner has begun its hand-over, versions may
 * appear twice to it. The flag is set before the first header changes, so
 * each callback looks at it after it has seen a page (page_seen), the writing
 * ones as well (write_version).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/relscan.h"
#include "executor/tuptable.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"

#include "base/compat.h"
#include "family/current.h"
#include "tableam/am.h"
#include "tableam/outsider.h"
#include "tableam/overlay.h"
#include "tableam/predicate.h"
#include "tableam/tableam.h"

/* May be used what was seen there? Else it is an error. [doomed-before-header] */
static inline void
page_seen(void)
{
	if (mip_in_transaction())
		mip_check_doomed();
}

static inline bool
hidden(Relation rel, ItemPointer tid, Snapshot snapshot)
{
	return mip_overlay_exists() && mip_overlay_hides(rel, tid, snapshot);
}

/* Is what heap's scan has found to be passed over? */
static inline bool
scan_passes_over(TableScanDesc scan, TupleTableSlot *slot, bool found)
{
	page_seen();
	if (!found)
		return false;
	if (mip_in_transaction() && hidden(scan->rs_rd, &slot->tts_tid, scan->rs_snapshot))
		return true;
	mip_look(scan->rs_rd, slot, scan->rs_snapshot);
	return false;
}

typedef bool (*NextSlot) (TableScanDesc, ScanDirection, TupleTableSlot *);

static inline bool
next_slot(NextSlot heaps, TableScanDesc scan, ScanDirection direction,
		  TupleTableSlot *slot)
{
	bool		found;

	do
	{
		mip_hide_siblings(scan->rs_snapshot);
		found = heaps(scan, direction, slot);
		mip_show_siblings();
	} while (scan_passes_over(scan, slot, found));
	return found;
}

static bool
mip_scan_getnextslot(TableScanDesc scan, ScanDirection direction,
					 TupleTableSlot *slot)
{
	return next_slot(heap_getnextslot, scan, direction, slot);
}

static bool
mip_scan_getnextslot_tidrange(TableScanDesc scan, ScanDirection direction,
							  TupleTableSlot *slot)
{
	return next_slot(heap_getnextslot_tidrange, scan, direction, slot);
}

/*
 * Should a unique check and its like, with a dirty snapshot, pass over this
 * version? Also clears the snapshot's idea of whom to wait for where that is
 * a sibling: to us the version is simply there.
 */
static bool
dirty_pass_over(Snapshot snapshot)
{
	if (TransactionIdIsValid(snapshot->xmin) && mip_xid_is_sibling(snapshot->xmin))
	{
		snapshot->xmin = InvalidTransactionId;
		snapshot->xmax = InvalidTransactionId;
		snapshot->speculativeToken = 0;
		return true;
	}
	if (TransactionIdIsValid(snapshot->xmax) && mip_xid_is_sibling(snapshot->xmax))
		snapshot->xmax = InvalidTransactionId;
	return false;
}

typedef enum Verdict
{
	FOUND,
	PASS_OVER,
	LOOK_AGAIN
} Verdict;

/* What is to be done with what heap has found? */
static Verdict
judge(Relation rel, TupleTableSlot *slot, Snapshot snapshot, MipSeen *seen)
{
	if (mip_in_transaction() && hidden(rel, &slot->tts_tid, snapshot))
		return PASS_OVER;
	if (snapshot->snapshot_type != SNAPSHOT_DIRTY)
		return FOUND;
	if (mip_in_transaction() && dirty_pass_over(snapshot))
		return PASS_OVER;
	if (TransactionIdIsValid(snapshot->xmin) || TransactionIdIsValid(snapshot->xmax))
		return FOUND;
	/* outsiders too: a version may be deleted in an overlay */
	return mip_pending_owner(rel, &slot->tts_tid, seen, &snapshot->xmax) ?
		FOUND : LOOK_AGAIN;
}

static bool
mip_index_fetch_tuple(struct IndexFetchTableData *scan, ItemPointer tid,
					  Snapshot snapshot, TupleTableSlot *slot,
					  bool *call_again, bool *all_dead)
{
	MipSeen		seen = {0};

	for (;;)
	{
		ItemPointerData from = *tid;
		bool		goes_on = *call_again;
		bool		found;
		Verdict		verdict;

		mip_hide_siblings(snapshot);
		found = mip_heap()->index_fetch_tuple(scan, tid, snapshot, slot,
											  call_again, all_dead);
		mip_show_siblings();
		page_seen();
		if (!found)
			return false;
		verdict = judge(scan->rel, slot, snapshot, &seen);
		if (verdict == FOUND)
		{
			mip_look(scan->rel, slot, snapshot);
			return true;
		}
		ExecClearTuple(slot);
		if (verdict == LOOK_AGAIN)
		{
			*tid = from;
			*call_again = goes_on;
			continue;
		}
		/* dead to us is not dead to all */
		if (all_dead)
			*all_dead = false;
		/* callers ask once only, so look at the rest of the chain here */
		if (!*call_again)
			return false;
	}
}

static bool
mip_scan_bitmap_next_tuple(TableScanDesc scan, MIP_BITMAP_NEXT_TUPLE_ARGS
						   TupleTableSlot *slot MIP_BITMAP_NEXT_TUPLE_TAIL)
{
	bool		found;

	do
	{
		mip_hide_siblings(scan->rs_snapshot);
		found = mip_heap()->scan_bitmap_next_tuple(scan, MIP_BITMAP_NEXT_TUPLE_PASS
												   slot MIP_BITMAP_NEXT_TUPLE_PASS_TAIL);
		mip_show_siblings();
	} while (scan_passes_over(scan, slot, found));
	return found;
}

#if PG_VERSION_NUM < 180000
/* Here a page's versions are judged, not where they are returned. */
static bool
mip_scan_bitmap_next_block(TableScanDesc scan, struct TBMIterateResult *tbmres)
{
	bool		found;

	mip_hide_siblings(scan->rs_snapshot);
	found = mip_heap()->scan_bitmap_next_block(scan, tbmres);
	mip_show_siblings();
	return found;
}
#endif

/* Likewise */
static bool
mip_scan_sample_next_block(TableScanDesc scan, struct SampleScanState *state)
{
	bool		found;

	mip_hide_siblings(scan->rs_snapshot);
	found = mip_heap()->scan_sample_next_block(scan, state);
	mip_show_siblings();
	return found;
}

static bool
mip_scan_sample_next_tuple(TableScanDesc scan, struct SampleScanState *state,
						   TupleTableSlot *slot)
{
	bool		found;

	do
	{
		mip_hide_siblings(scan->rs_snapshot);
		found = mip_heap()->scan_sample_next_tuple(scan, state, slot);
		mip_show_siblings();
	} while (scan_passes_over(scan, slot, found));
	return found;
}

/*
 * At SERIALIZABLE also that there is no row is read, but heap leaves no mark of that.
 * Ours comes before the last look. False: none is needed.
 */
static inline bool
mark_nothing_found(Relation rel, Snapshot snapshot)
{
	if (!IsolationIsSerializable() || !IsMVCCSnapshot(snapshot))
		return false;
	PredicateLockRelation(rel, snapshot);
	return true;
}

static inline bool
fetch_row_version(Relation rel, ItemPointer tid, Snapshot snapshot, TupleTableSlot *slot)
{
	bool		found;

	mip_hide_siblings(snapshot);
	found = mip_heap()->tuple_fetch_row_version(rel, tid, snapshot, slot);
	mip_show_siblings();
	page_seen();
	return found;
}

static bool
mip_tuple_fetch_row_version(Relation rel, ItemPointer tid, Snapshot snapshot,
							TupleTableSlot *slot)
{
	bool		found;

	if (mip_in_transaction() && hidden(rel, tid, snapshot))
		return false;
	found = fetch_row_version(rel, tid, snapshot, slot);
	if (!found && mark_nothing_found(rel, snapshot))
		found = fetch_row_version(rel, tid, snapshot, slot);
	if (found)
		mip_look(rel, slot, snapshot);
	return found;
}

/* A scan of TIDs asks this first: pages behind those that there are have no rows. */
static bool
mip_tuple_tid_valid(TableScanDesc scan, ItemPointer tid)
{
	if (mip_heap()->tuple_tid_valid(scan, tid))
		return true;
	return ItemPointerIsValid(tid) && mark_nothing_found(scan->rs_rd, scan->rs_snapshot) &&
		ItemPointerGetBlockNumber(tid) < RelationGetNumberOfBlocks(scan->rs_rd);
}

/*
 * ON CONFLICT asks this of the row that it has met: whatever it does then, and if the
 * savepoint is rolled back, that row has been read. Heap leaves no mark of that. Ours
 * comes before the look, for whoever writes behind it.
 */
static bool
mip_tuple_satisfies_snapshot(Relation rel, TupleTableSlot *slot, Snapshot snapshot)
{
	HeapTuple	tuple = ((BufferHeapTupleTableSlot *) slot)->base.tuple;
	bool		satisfies;

	Assert(TTS_IS_BUFFERTUPLE(slot));
	if (mip_in_transaction() && hidden(rel, &slot->tts_tid, snapshot))
		return false;
	PredicateLockTID(rel, &slot->tts_tid, snapshot, HeapTupleHeaderGetXmin(tuple->t_data));
	satisfies = mip_heap()->tuple_satisfies_snapshot(rel, slot, snapshot);
	page_seen();
	if (satisfies)
		mip_look(rel, slot, snapshot);
	return satisfies;
}

/* WHERE CURRENT OF must find what we made of the cursor's row. */
static void
mip_tuple_get_latest_tid(TableScanDesc scan, ItemPointer tid)
{
	mip_hide_siblings(scan->rs_snapshot);
	mip_heap()->tuple_get_latest_tid(scan, tid);
	if (mip_in_transaction() && hidden(scan->rs_rd, tid, scan->rs_snapshot))
	{
		const MipLink *link = mip_overlay_find(scan->rs_rd, tid);

		if (ItemPointerIsValid(&link->version))
		{
			*tid = link->version;
			mip_heap()->tuple_get_latest_tid(scan, tid);
		}
	}
	mip_show_siblings();
	page_seen();
}

void
mip_tableam_read(TableAmRoutine *routine)
{
	routine->scan_getnextslot = mip_scan_getnextslot;
	routine->scan_getnextslot_tidrange = mip_scan_getnextslot_tidrange;
	routine->index_fetch_tuple = mip_index_fetch_tuple;
	routine->scan_bitmap_next_tuple = mip_scan_bitmap_next_tuple;
#if PG_VERSION_NUM < 180000
	routine->scan_bitmap_next_block = mip_scan_bitmap_next_block;
#endif
	routine->scan_sample_next_block = mip_scan_sample_next_block;
	routine->scan_sample_next_tuple = mip_scan_sample_next_tuple;
	routine->tuple_fetch_row_version = mip_tuple_fetch_row_version;
	routine->tuple_tid_valid = mip_tuple_tid_valid;
	routine->tuple_satisfies_snapshot = mip_tuple_satisfies_snapshot;
	routine->tuple_get_latest_tid = mip_tuple_get_latest_tid;
}
