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
 * follow (mip_hand_over_begun). Since WAL is replayed in order, a crash
 * leaves a prefix of the hand-over, and repeating it completes it.
 *
 * Outsiders that hold key share locks on the base (foreign keys) keep them:
 * they stay in its xmax, and are entered in the versions after it, as heap's
 * update would have done.
 *
 * No relation lock is taken: the winner's own transaction holds one on each of
 * these tables until it is finished, and a new one could queue behind an
 * outsider that waits for the winner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/multixact.h"
#include "access/relation.h"
#include "access/visibilitymap.h"
#include "handover.h"
#include "miscadmin.h"
#include "sibling.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "wal.h"

/* A version, pinned and exclusively locked, with its map page pinned. */
typedef struct Pinned
{
	Buffer		buffer;
	Buffer		vmbuffer;
	HeapTupleHeader htup;
} Pinned;

static Relation
open_relation(Oid relid)
{
	Relation	rel = RelationIdGetRelation(relid);

	if (!RelationIsValid(rel))
		elog(ERROR, "pg_mip: table %u of an overlay link does not exist", relid);
	return rel;
}

static Pinned
pin_version(Relation rel, ItemPointer tid)
{
	Pinned		p = {.vmbuffer = InvalidBuffer};
	BlockNumber block = ItemPointerGetBlockNumber(tid);
	Page		page;
	ItemId		lp;

	visibilitymap_pin(rel, block, &p.vmbuffer);
	p.buffer = ReadBuffer(rel, block);
	LockBuffer(p.buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(p.buffer);
	lp = PageGetItemId(page, ItemPointerGetOffsetNumber(tid));
	if (!ItemIdIsNormal(lp))
		elog(ERROR, "pg_mip: version (%u,%u) of an overlay link in table \"%s\" does not exist",
			 block, ItemPointerGetOffsetNumber(tid), RelationGetRelationName(rel));
	p.htup = (HeapTupleHeader) PageGetItem(page, lp);
	return p;
}

static void
unpin_version(Pinned *p)
{
	UnlockReleaseBuffer(p->buffer);
	ReleaseBuffer(p->vmbuffer);
}

/* Does this header name the link's transaction as its updater? */
static bool
handed_over(HeapTupleHeader htup, const MipLink *link)
{
	return !(htup->t_infomask & HEAP_XMAX_INVALID) &&
		!HEAP_XMAX_IS_LOCKED_ONLY(htup->t_infomask) &&
		TransactionIdEquals(HeapTupleHeaderGetUpdateXid(htup), link->xmax);
}

/*
 * Running key share lockers of a version; other locks conflict with any
 * update, and those of siblings do not matter any more.
 */
static int
key_share_lockers(HeapTupleHeader htup, MultiXactMember **lockers)
{
	TransactionId xmax = HeapTupleHeaderGetRawXmax(htup);
	MultiXactMember *members;
	int			n,
				kept = 0;

	*lockers = NULL;
	if (htup->t_infomask & HEAP_XMAX_INVALID)
		return 0;
	if (!(htup->t_infomask & HEAP_XMAX_IS_MULTI))
	{
		if (!HEAP_XMAX_IS_LOCKED_ONLY(htup->t_infomask) ||
			!HEAP_XMAX_IS_KEYSHR_LOCKED(htup->t_infomask) ||
			!TransactionIdIsInProgress(xmax))
			return 0;
		*lockers = palloc(sizeof(MultiXactMember));
		(*lockers)->xid = xmax;
		(*lockers)->status = MultiXactStatusForKeyShare;
		return 1;
	}
	n = GetMultiXactIdMembers(xmax, &members, false,
							  HEAP_XMAX_IS_LOCKED_ONLY(htup->t_infomask));
	for (int i = 0; i < n; i++)
	{
		if (members[i].status == MultiXactStatusForKeyShare &&
			TransactionIdIsInProgress(members[i].xid))
			members[kept++] = members[i];
	}
	if (kept > 0)
		*lockers = members;
	return kept;
}

/* Not by a subtransaction that was rolled back. */
static bool
updated_again(HeapTupleHeader htup)
{
	return !(htup->t_infomask & HEAP_XMAX_INVALID) &&
		!HEAP_XMAX_IS_LOCKED_ONLY(htup->t_infomask) &&
		TransactionIdIsInProgress(HeapTupleHeaderGetUpdateXid(htup));
}

/*
 * Enters lockers in a later version of the row; *next is the version after it
 * if the winner has updated it again.
 */
static void
add_lockers(Relation rel, ItemPointer tid, const MultiXactMember *lockers, int n,
			bool *more, ItemPointer next)
{
	Pinned		p = pin_version(rel, tid);
	HeapTupleHeader htup = p.htup;
	MultiXactMember *held;
	int			nheld = key_share_lockers(htup, &held);
	MultiXactMember *members = palloc(sizeof(MultiXactMember) * (n + nheld + 1));
	MipXmaxChange change = {0};
	bool		updated = updated_again(htup);
	int			count = 0;

	*more = updated && !ItemPointerEquals(tid, &htup->t_ctid) &&
		!HeapTupleHeaderIndicatesMovedPartitions(htup);
	*next = htup->t_ctid;

	for (int i = 0; i < nheld; i++)
		members[count++] = held[i];
	for (int i = 0; i < n; i++)
	{
		bool		known = false;

		for (int j = 0; j < nheld; j++)
			known |= TransactionIdEquals(held[j].xid, lockers[i].xid);
		if (!known)
			members[count++] = lockers[i];
	}
	if (count > nheld)
	{
		if (updated)
		{
			members[count].xid = HeapTupleHeaderGetUpdateXid(htup);
			members[count++].status = (htup->t_infomask2 & HEAP_KEYS_UPDATED) ?
				MultiXactStatusUpdate : MultiXactStatusNoKeyUpdate;
		}
		else
		{
			change.flags = MIP_XMAX_SET_CTID | MIP_XMAX_CLEAR_HOT;
			change.ctid = *tid;
		}
		change.offnum = ItemPointerGetOffsetNumber(tid);
		change.xmax = MultiXactIdCreateFromMembers(count, members);
		mip_multixact_bits(members, count, &change.infomask, &change.infomask2);
		mip_set_xmax(rel, p.buffer, p.vmbuffer, &change);
	}
	unpin_version(&p);
	pfree(members);
}

static void
carry_lockers(Relation rel, const MipLink *link,
			  const MultiXactMember *lockers, int n)
{
	ItemPointerData tid = link->version;
	bool		more = ItemPointerIsValid(&tid);

	while (more)
	{
		ItemPointerData next;

		add_lockers(rel, &tid, lockers, n, &more, &next);
		tid = next;
	}
}

/* The base version's new xmax: the winner's update beside the lockers. */
static MipXmaxChange
handed_over_xmax(const MipLink *link, MultiXactMember *lockers, int n)
{
	MipXmaxChange change = {0};
	bool		keys = (link->flags & MIP_LINK_KEYS) != 0;

	change.offnum = ItemPointerGetOffsetNumber(&link->base);
	change.updater = link->xmax;
	change.flags = MIP_XMAX_SET_CTID | MIP_XMAX_CLEAR_HOT | MIP_XMAX_PRUNABLE;
	if (n == 0)
	{
		change.xmax = link->xmax;
		change.infomask2 = keys ? HEAP_KEYS_UPDATED : 0;
	}
	else
	{
		MultiXactMember *members = palloc(sizeof(MultiXactMember) * (n + 1));

		memcpy(members, lockers, sizeof(MultiXactMember) * n);
		members[n].xid = link->xmax;
		members[n].status = keys ? MultiXactStatusUpdate : MultiXactStatusNoKeyUpdate;
		change.xmax = MultiXactIdCreateFromMembers(n + 1, members);
		mip_multixact_bits(members, n + 1, &change.infomask, &change.infomask2);
		pfree(members);
	}
	if (link->flags & MIP_LINK_MOVED)
		ItemPointerSet(&change.ctid, MovedPartitionsBlockNumber,
					   MovedPartitionsOffsetNumber);
	else if (link->flags & MIP_LINK_DELETE)
		change.ctid = link->base;
	else
		change.ctid = link->version;
	return change;
}

static void
hand_over_link(Relation rel, const MipLink *link)
{
	TransactionId carried = InvalidTransactionId;

	for (;;)
	{
		ItemPointerData base = link->base;
		Pinned		p = pin_version(rel, &base);
		TransactionId raw = HeapTupleHeaderGetRawXmax(p.htup);
		MultiXactMember *lockers;
		int			n;

		if (handed_over(p.htup, link))
		{
			unpin_version(&p);
			return;
		}
		n = key_share_lockers(p.htup, &lockers);
		if (n > 0 && ItemPointerIsValid(&link->version) && raw != carried)
		{
			/* enter them in the later versions first, then look again */
			unpin_version(&p);
			carry_lockers(rel, link, lockers, n);
			carried = raw;
			continue;
		}
		else
		{
			MipXmaxChange change = handed_over_xmax(link, lockers, n);

			mip_set_xmax(rel, p.buffer, p.vmbuffer, &change);
			unpin_version(&p);
			return;
		}
	}
}

void
mip_hand_over(const bytea *links)
{
	MultiXactIdSetOldestMember();
	for (int i = 0; i < mip_links_count(links); i++)
	{
		MipLink		link = mip_links_get(links, i);
		Relation	rel = open_relation(link.relid);

		hand_over_link(rel, &link);
		RelationClose(rel);
		mip_crash_point("link");
	}
}

bool
mip_hand_over_begun(const bytea *links)
{
	MipLink		link;
	Relation	rel;
	Pinned		p;
	bool		begun;

	if (mip_links_count(links) == 0)
		return false;
	link = mip_links_get(links, 0);
	rel = open_relation(link.relid);
	p = pin_version(rel, &link.base);
	begun = handed_over(p.htup, &link);
	unpin_version(&p);
	RelationClose(rel);
	return begun;
}

static void
remove_toast(Relation rel, const MipLink *link)
{
	HeapTupleData tuple;
	Buffer		buffer;

	tuple.t_self = link->base;
	if (ItemPointerGetBlockNumber(&link->base) < RelationGetNumberOfBlocks(rel) &&
		heap_fetch(rel, SnapshotAny, &tuple, &buffer, false))
	{
		if (HeapTupleHasExternal(&tuple) && handed_over(tuple.t_data, link))
			heap_toast_delete(rel, &tuple, false);
		ReleaseBuffer(buffer);
	}
}

/*
 * heap_update drops the old version's out-of-line values that the new one
 * does not share; the overlay's new versions share none. The winner's own
 * locks are gone: a table that somebody is rewriting or has dropped meanwhile
 * is passed over, and takes its TOAST table with it.
 */
void
mip_remove_replaced_toast(const bytea *links)
{
	for (int i = 0; i < mip_links_count(links); i++)
	{
		MipLink		link = mip_links_get(links, i);
		Relation	rel;

		if (!ConditionalLockRelationOid(link.relid, RowExclusiveLock))
			continue;
		rel = try_relation_open(link.relid, NoLock);
		if (rel == NULL)
			continue;
		if (OidIsValid(rel->rd_rel->reltoastrelid))
			remove_toast(rel, &link);
		relation_close(rel, NoLock);
	}
}
