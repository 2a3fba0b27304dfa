/*-------------------------------------------------------------------------
 *
 * handover.c
 *	  Writing a winner's overlay into the base versions' headers.
 *
 * Until then a base version names the overlay's owner only as a locker; from
 * then on it names it as the updater, with ctid leading to the owner's
 * version, as if heap had updated it. The owner is still in progress, so
 * nothing becomes visible before its commit, and everything at it.
 *
 * The first link's header tells that a hand-over began: the update of a
 * sibling that stood there is lost from then on, so no other winner may
 * follow (mip_hand_over_begun) [first-header-decides]. Since WAL is replayed in
 * order, a crash leaves a prefix of the hand-over, and repeating it completes it
 * [hand-over-prefix].
 *
 * Outsiders that hold key share locks on the base (foreign keys) keep them:
 * they stay in its xmax, and are entered in the versions after it, as heap's
 * update would have done. (Not where the row is deleted, or its key changed, by what
 * comes after it: see mip_confirm_key_share.)
 *
 * Chunks of the base's out-of-line values get the same header: they go with
 * the version that names them, at the same commit.
 *
 * No relation lock is taken: the winner's own transaction holds one on each of
 * these tables, and their TOAST tables, until it is finished, and a new one
 * could queue behind an outsider that waits for the winner. (Nobody waits for
 * an index of a TOAST table without having the table.)
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/multixact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "base/stats.h"
#include "base/stop.h"
#include "family/family_lock.h"
#include "heap/version.h"
#include "heap/wal.h"
#include "tableam/handover.h"
#include "tableam/link.h"

static Relation
open_relation(Oid relid)
{
	Relation	rel = RelationIdGetRelation(relid);

	if (!RelationIsValid(rel))
		elog(ERROR, "pg_mip: table %u of an overlay link does not exist", relid);
	pgstat_init_relation(rel);	/* as relation_open does */
	return rel;
}

/* Does this header name the link's transaction as its updater? */
static bool
handed_over(const MipHeader *header, const MipLink *link)
{
	bool		keys;

	return TransactionIdEquals(mip_updater(header, &keys), link->xmax);
}

static bool
is_member(TransactionId xid, const MultiXactMember *members, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (TransactionIdEquals(members[i].xid, xid))
			return true;
	}
	return false;
}

/*
 * Enters lockers in a later version of the row. True: the winner has updated it
 * again (not in a subtransaction that was rolled back), to what *tid is then.
 */
static bool
add_lockers(Relation rel, ItemPointer tid, const MultiXactMember *lockers, int n)
{
	MipPinned	pinned = mip_pin_version(rel, tid);
	MipHeader	header = mip_header(pinned.htup);
	MultiXactMember *members;
	int			held = mip_key_share_lockers(&header, &members);
	int			count = held;
	MultiXactMember update;
	bool		updated = mip_update_member(&header, &update) &&
		TransactionIdIsInProgress(update.xid);
	bool		more = updated && !ItemPointerEquals(&header.ctid, tid) &&
		!ItemPointerIndicatesMovedPartitions(&header.ctid);

	members = repalloc(members, sizeof(MultiXactMember) * (held + n + 1));
	for (int i = 0; i < n; i++)
	{
		if (!is_member(lockers[i].xid, members, held))
			members[count++] = lockers[i];
	}
	if (count > held)
	{
		if (updated)
			members[count++] = update;
		mip_set_members(rel, tid, &pinned, members, count);
	}
	mip_unpin_version(&pinned);
	pfree(members);
	if (more)
		*tid = header.ctid;
	return more;
}

static void
carry_lockers(Relation rel, const MipLink *link,
			  const MultiXactMember *lockers, int n)
{
	ItemPointerData tid = link->version;

	while (add_lockers(rel, &tid, lockers, n))
		;
}

/*
 * The base version's new xmax: the winner's update beside the lockers, which
 * have room for it.
 */
static MipXmaxChange
handed_over_xmax(const MipLink *link, MultiXactMember *lockers, int n)
{
	MipXmaxChange change = {0};

	lockers[n].xid = link->xmax;
	lockers[n].status = (link->flags & MIP_LINK_KEYS) ?
		MultiXactStatusUpdate : MultiXactStatusNoKeyUpdate;
	mip_xmax_of(&change, lockers, n + 1);
	change.offnum = ItemPointerGetOffsetNumber(&link->base);
	change.updater = link->xmax;
	change.cid = link->cid;
	change.flags = MIP_XMAX_SET_CTID | MIP_XMAX_CLEAR_HOT | MIP_XMAX_UPDATED;
	if (link->flags & MIP_LINK_MOVED)
		ItemPointerSet(&change.ctid, MovedPartitionsBlockNumber,
					   MovedPartitionsOffsetNumber);
	else if (link->flags & MIP_LINK_DELETE)
		change.ctid = link->base;
	else
		change.ctid = link->version;
	return change;
}

/*
 * False if that has been done before. Key share lockers are entered in the later
 * versions first, with this one unlocked; so look again whether they are all.
 * (Other locks conflict with any update, and those of siblings do not matter any
 * more.)
 */
static bool
hand_over_version(Relation rel, const MipLink *link)
{
	ItemPointerData base = link->base;
	MipHeader	carried = {0};

	for (;;)
	{
		MipPinned	pinned = mip_pin_version(rel, &base);
		MipHeader	header = mip_header(pinned.htup);
		MultiXactMember *lockers;
		int			n;

		if (handed_over(&header, link))
		{
			/* what is repeated: [hand-over-prefix] */
			mip_unpin_version(&pinned);
			return false;
		}
		n = mip_key_share_lockers(&header, &lockers);
		if (n == 0 || !ItemPointerIsValid(&link->version) ||
			mip_same_xmax(&header, &carried))
		{
			MipXmaxChange change = handed_over_xmax(link, lockers, n);

			mip_set_xmax(rel, pinned.buffer, pinned.vmbuffer, &change);
			mip_unpin_version(&pinned);
			pfree(lockers);
			return true;
		}
		mip_unpin_version(&pinned);
		carry_lockers(rel, link, lockers, n);
		carried = header;
		pfree(lockers);
	}
}

/* ---- out-of-line values ---- */

static void
hand_over_chunks(Relation toast, Relation index, Oid value, TransactionId xmax)
{
	MipLink		link = {
		.relid = RelationGetRelid(toast),
		.xmax = xmax,
		.flags = MIP_LINK_DELETE | MIP_LINK_KEYS
	};
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	chunk;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(value));
	scan = systable_beginscan_ordered(toast, index, SnapshotSelf, 1, &key);
	while ((chunk = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		link.base = chunk->t_self;
		if (hand_over_version(toast, &link))
			pgstat_count_heap_delete(toast);
		mip_stop_point("chunk");
	}
	systable_endscan_ordered(scan);
}

static Relation
open_valid_index(Relation toast)
{
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(toast))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (index->rd_index->indisvalid)
			return index;
		index_close(index, AccessShareLock);
	}
	elog(ERROR, "pg_mip: no valid index of TOAST table %u", RelationGetRelid(toast));
}

static void
hand_over_values(Relation rel, HeapTuple base, TransactionId xmax)
{
	Relation	toast = open_relation(rel->rd_rel->reltoastrelid);
	Relation	index = open_valid_index(toast);
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc(sizeof(Datum) * desc->natts);
	bool	   *nulls = palloc(sizeof(bool) * desc->natts);

	heap_deform_tuple(base, desc, values, nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		struct varatt_external pointer;

		if (nulls[i] || TupleDescAttr(desc, i)->attlen != -1 ||
			!VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(values[i])))
			continue;
		VARATT_EXTERNAL_GET_POINTER(pointer, DatumGetPointer(values[i]));
		hand_over_chunks(toast, index, pointer.va_valueid, xmax);
	}
	index_close(index, AccessShareLock);
	RelationClose(toast);
	pfree(values);
	pfree(nulls);
}

/*
 * heap_update drops the old version's out-of-line values that the new one
 * does not share; the overlay's new versions share none. The version's own
 * header comes first: it forbids another winner, whose deletion of the same
 * chunks gets lost here.
 */
static void
hand_over_link(Relation rel, const MipLink *link)
{
	ItemPointerData tid = link->base;
	MipHeader	header;
	HeapTuple	base;

	(void) hand_over_version(rel, link);
	mip_stop_point("header");
	if (!OidIsValid(rel->rd_rel->reltoastrelid) ||
		!mip_read_header(rel, &tid, &header, &base))
		return;
	Assert(handed_over(&header, link));
	if (HeapTupleHasExternal(base))
		hand_over_values(rel, base, link->xmax);
	heap_freetuple(base);
}

/* ---- all links ---- */

void
mip_hand_over(const bytea *links)
{
	Assert(mip_family_is_locked());
	MultiXactIdSetOldestMember();
	for (int i = 0; i < mip_links_count(links); i++)
	{
		MipLink		link = mip_links_get(links, i);
		Relation	rel;

		CHECK_FOR_INTERRUPTS();
		Assert(i == 0 || mip_hand_over_begun(links));	/* [first-header-decides] */
		rel = open_relation(link.relid);
		hand_over_link(rel, &link);
		RelationClose(rel);
		mip_stop_point("link");
	}
	if (mip_links_count(links) > 0)
		mip_count(MIP_COUNT_HAND_OVERS);
	mip_count_many(MIP_COUNT_ROWS, mip_links_count(links));
}

bool
mip_hand_over_begun(const bytea *links)
{
	MipLink		link;
	Relation	rel;
	MipPinned	pinned;
	MipHeader	header;
	bool		begun;

	Assert(mip_family_is_locked());
	if (mip_links_count(links) == 0)
		return false;
	link = mip_links_get(links, 0);
	rel = open_relation(link.relid);
	pinned = mip_pin_version(rel, &link.base);
	header = mip_header(pinned.htup);
	mip_unpin_version(&pinned);
	begun = handed_over(&header, &link);
	RelationClose(rel);
	return begun;
}
