/*-------------------------------------------------------------------------
 *
 * version.c
 *	  Row versions on their pages: who is in a header's xmax, and the means
 *	  to change it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/transam.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"

#include "heap/version.h"
#include "heap/wal.h"

static const LockTupleMode status_modes[] = {
	[MultiXactStatusForKeyShare] = LockTupleKeyShare,
	[MultiXactStatusForShare] = LockTupleShare,
	[MultiXactStatusForNoKeyUpdate] = LockTupleNoKeyExclusive,
	[MultiXactStatusForUpdate] = LockTupleExclusive,
	[MultiXactStatusNoKeyUpdate] = LockTupleNoKeyExclusive,
	[MultiXactStatusUpdate] = LockTupleExclusive,
};

LockTupleMode
mip_member_mode(const MultiXactMember *member)
{
	return status_modes[member->status];
}

/* ---- reading ---- */

static MultiXactStatus
plain_status(uint16 infomask, uint16 infomask2)
{
	bool		keys = (infomask2 & HEAP_KEYS_UPDATED) != 0;

	if (!HEAP_XMAX_IS_LOCKED_ONLY(infomask))
		return keys ? MultiXactStatusUpdate : MultiXactStatusNoKeyUpdate;
	if (HEAP_XMAX_IS_KEYSHR_LOCKED(infomask))
		return MultiXactStatusForKeyShare;
	if (HEAP_XMAX_IS_SHR_LOCKED(infomask))
		return MultiXactStatusForShare;
	return keys ? MultiXactStatusForUpdate : MultiXactStatusForNoKeyUpdate;
}

int
mip_xmax_members(const MipHeader *header, MultiXactMember **members)
{
	uint16		infomask = header->infomask;

	if ((infomask & HEAP_XMAX_INVALID) || HEAP_LOCKED_UPGRADED(infomask) ||
		!TransactionIdIsValid(header->xmax))
		return 0;
	if (infomask & HEAP_XMAX_IS_MULTI)
	{
		int			n = GetMultiXactIdMembers(header->xmax, members, false,
											  HEAP_XMAX_IS_LOCKED_ONLY(infomask));

		return Max(n, 0);
	}
	*members = palloc(sizeof(MultiXactMember));
	(*members)->xid = header->xmax;
	(*members)->status = plain_status(infomask, header->infomask2);
	return 1;
}

bool
mip_update_member(const MipHeader *header, MultiXactMember *update)
{
	MultiXactMember *members = NULL;
	int			n = mip_xmax_members(header, &members);
	bool		found = false;

	for (int i = 0; i < n && !found; i++)
	{
		found = ISUPDATE_from_mxstatus(members[i].status);
		*update = members[i];
	}
	if (members)
		pfree(members);
	return found;
}

TransactionId
mip_updater(const MipHeader *header, bool *keys)
{
	MultiXactMember update;
	bool		found = mip_update_member(header, &update);

	*keys = found && update.status == MultiXactStatusUpdate;
	return found ? update.xid : InvalidTransactionId;
}

MipHeader
mip_header(HeapTupleHeader htup)
{
	MipHeader	header = {
		.xmin = HeapTupleHeaderGetXmin(htup),
		.ctid = htup->t_ctid,
		.xmax = HeapTupleHeaderGetRawXmax(htup),
		.infomask = htup->t_infomask,
		.infomask2 = htup->t_infomask2,
	};

	return header;
}

/* The version on its locked page, or NULL. */
static ItemId
find_version(Buffer buffer, ItemPointer tid)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber offnum = ItemPointerGetOffsetNumber(tid);

	if (offnum > PageGetMaxOffsetNumber(page) ||
		!ItemIdIsNormal(PageGetItemId(page, offnum)))
		return NULL;
	return PageGetItemId(page, offnum);
}

bool
mip_read_header(Relation rel, ItemPointer tid, MipHeader *header, HeapTuple *copy)
{
	Buffer		buffer = ReadBuffer(rel, ItemPointerGetBlockNumber(tid));
	ItemId		lp;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	lp = find_version(buffer, tid);
	if (lp)
	{
		HeapTupleData tup;

		tup.t_data = (HeapTupleHeader) PageGetItem(BufferGetPage(buffer), lp);
		tup.t_len = ItemIdGetLength(lp);
		tup.t_self = *tid;
		tup.t_tableOid = RelationGetRelid(rel);
		*header = mip_header(tup.t_data);
		if (copy)
			*copy = heap_copytuple(&tup);
	}
	UnlockReleaseBuffer(buffer);
	return lp != NULL;
}

int
mip_running_members(const MipHeader *header, LockTupleMode mode,
					MultiXactMember **members, bool *held, bool *updated)
{
	MultiXactMember *all = NULL;
	int			n = mip_xmax_members(header, &all);
	int			kept = 0;

	*held = *updated = false;
	*members = palloc(sizeof(MultiXactMember) * (n + 1));
	for (int i = 0; i < n; i++)
	{
		bool		mine = TransactionIdIsCurrentTransactionId(all[i].xid);

		if (mine && mip_member_mode(&all[i]) >= mode)
			*held = true;
		if (!mine && !TransactionIdIsInProgress(all[i].xid))
		{
			if (ISUPDATE_from_mxstatus(all[i].status) &&
				TransactionIdDidCommit(all[i].xid))
				*updated = true;
			continue;
		}
		(*members)[kept++] = all[i];	/* [lockers-stay] */
	}
	if (all)
		pfree(all);
	return kept;
}

int
mip_key_share_lockers(const MipHeader *header, MultiXactMember **lockers)
{
	MultiXactMember *all = NULL;
	int			n = mip_xmax_members(header, &all);
	int			kept = 0;
	bool		for_update = false;

	*lockers = palloc(sizeof(MultiXactMember) * (n + 1));
	for (int i = 0; i < n; i++)
	{
		if (!TransactionIdIsInProgress(all[i].xid))
			continue;
		for_update |= all[i].status == MultiXactStatusForUpdate;
		if (all[i].status == MultiXactStatusForKeyShare)
			(*lockers)[kept++] = all[i];
	}
	if (all)
		pfree(all);
	return for_update ? 0 : kept;
}

TM_Result
mip_update_committed(Relation rel, ItemPointer tid, TM_FailureData *tmfd)
{
	MipHeader	header;
	TransactionId updater;
	bool		keys;

	tmfd->ctid = *tid;
	tmfd->xmax = InvalidTransactionId;
	tmfd->cmax = InvalidCommandId;
	if (!mip_read_header(rel, tid, &header, NULL))
		return TM_Deleted;
	updater = mip_updater(&header, &keys);
	tmfd->ctid = header.ctid;
	if (!TransactionIdIsValid(updater) || TransactionIdIsInProgress(updater) ||
		!TransactionIdDidCommit(updater))
		return TM_Ok;
	tmfd->xmax = updater;
	return ItemPointerEquals(&tmfd->ctid, tid) ? TM_Deleted : TM_Updated;
}

bool
mip_holds(const MipHeader *header)
{
	MultiXactMember *members = NULL;
	int			n = mip_xmax_members(header, &members);
	bool		found = false;

	for (int i = 0; i < n; i++)
		found |= TransactionIdIsCurrentTransactionId(members[i].xid);
	if (members)
		pfree(members);
	return found;
}

bool
mip_is_in_xmax(Relation rel, ItemPointer tid)
{
	MipHeader	header;

	return mip_read_header(rel, tid, &header, NULL) && mip_holds(&header);
}

/* ---- changing ---- */

MipPinned
mip_pin_version(Relation rel, ItemPointer tid)
{
	MipPinned	pinned = {.vmbuffer = InvalidBuffer};
	BlockNumber block = ItemPointerGetBlockNumber(tid);
	ItemId		lp;

	pinned.buffer = ReadBuffer(rel, block);
	LockBuffer(pinned.buffer, BUFFER_LOCK_EXCLUSIVE);

	/*
	 * as heap: only for bits to clear (a map may have to be made, on a full
	 * disk), unlocked
	 */
	while (PageIsAllVisible(BufferGetPage(pinned.buffer)) &&
		   !visibilitymap_pin_ok(block, pinned.vmbuffer))
	{
		LockBuffer(pinned.buffer, BUFFER_LOCK_UNLOCK);
		visibilitymap_pin(rel, block, &pinned.vmbuffer);
		LockBuffer(pinned.buffer, BUFFER_LOCK_EXCLUSIVE);
	}
	lp = find_version(pinned.buffer, tid);
	if (lp == NULL)
		elog(ERROR, "pg_mip: version (%u,%u) in table \"%s\" does not exist",
			 block, ItemPointerGetOffsetNumber(tid), RelationGetRelationName(rel));
	pinned.htup = (HeapTupleHeader) PageGetItem(BufferGetPage(pinned.buffer), lp);
	return pinned;
}

void
mip_unpin_version(MipPinned *pinned)
{
	UnlockReleaseBuffer(pinned->buffer);
	if (BufferIsValid(pinned->vmbuffer))
		ReleaseBuffer(pinned->vmbuffer);
}

/* The infomask bits of a multixact of these members. */
static void
multixact_bits(const MultiXactMember *members, int n,
			   uint16 *infomask, uint16 *infomask2)
{
	LockTupleMode strongest = LockTupleKeyShare;
	bool		has_update = false;

	Assert(n > 0);
	*infomask = HEAP_XMAX_IS_MULTI;
	*infomask2 = 0;
	for (int i = 0; i < n; i++)
	{
		MultiXactStatus status = members[i].status;

		strongest = Max(strongest, mip_member_mode(&members[i]));
		has_update |= ISUPDATE_from_mxstatus(status);
		if (status == MultiXactStatusForUpdate || status == MultiXactStatusUpdate)
			*infomask2 |= HEAP_KEYS_UPDATED;
	}
	if (strongest >= LockTupleNoKeyExclusive)
		*infomask |= HEAP_XMAX_EXCL_LOCK;
	else if (strongest == LockTupleShare)
		*infomask |= HEAP_XMAX_SHR_LOCK;
	else
		*infomask |= HEAP_XMAX_KEYSHR_LOCK;
	if (!has_update)
		*infomask |= HEAP_XMAX_LOCK_ONLY;
}

static void
multixact_of(MipXmaxChange *change, MultiXactMember *members, int n)
{
	change->xmax = MultiXactIdCreateFromMembers(n, members);
	multixact_bits(members, n, &change->infomask, &change->infomask2);
}

void
mip_xmax_of(MipXmaxChange *change, MultiXactMember *members, int n)
{
	if (n > 1)
	{
		multixact_of(change, members, n);
		return;
	}
	change->xmax = members[0].xid;
	multixact_bits(members, n, &change->infomask, &change->infomask2);
	change->infomask &= ~HEAP_XMAX_IS_MULTI;
	if (!(change->infomask & HEAP_XMAX_LOCK_ONLY))
		change->infomask = 0;	/* no lock beside the update */
}

static void
set_xmax(Relation rel, ItemPointer tid, MipPinned *pinned, MipXmaxChange *change)
{
	change->offnum = ItemPointerGetOffsetNumber(tid);
	if (change->infomask & HEAP_XMAX_LOCK_ONLY)
	{
		/* as heap_lock_tuple: nobody's update is left */
		change->flags = MIP_XMAX_SET_CTID | MIP_XMAX_CLEAR_HOT;
		change->ctid = *tid;
	}
	mip_set_xmax(rel, pinned->buffer, pinned->vmbuffer, change);
}

void
mip_set_members(Relation rel, ItemPointer tid, MipPinned *pinned,
				MultiXactMember *members, int n)
{
	MipXmaxChange change = {0};

	mip_xmax_of(&change, members, n);
	set_xmax(rel, tid, pinned, &change);
}

#ifdef USE_ASSERT_CHECKING
/* Are all others that run among these? */
static bool
keeps_running(HeapTupleHeader htup, const MultiXactMember *members, int n)
{
	MipHeader	header = mip_header(htup);
	MultiXactMember *running;
	bool		held,
				updated,
				kept = true;
	int			nrunning = mip_running_members(&header, LockTupleKeyShare, &running, &held, &updated);

	for (int i = 0; i < nrunning; i++)
	{
		bool		found = false;

		for (int j = 0; j < n; j++)
			found |= TransactionIdEquals(members[j].xid, running[i].xid) &&
				mip_member_mode(&members[j]) >= mip_member_mode(&running[i]);
		kept &= found || TransactionIdIsCurrentTransactionId(running[i].xid);
	}
	pfree(running);
	return kept;
}
#endif

void
mip_set_multixact(Relation rel, ItemPointer tid, MipPinned *pinned,
				  MultiXactMember *members, int n)
{
	MipXmaxChange change = {0};

	Assert(keeps_running(pinned->htup, members, n));	/* [lockers-stay] */
	multixact_of(&change, members, n);
	set_xmax(rel, tid, pinned, &change);
}

bool
mip_drop_dead_members(Relation rel, ItemPointer tid)
{
	MipPinned	pinned;
	MipHeader	header;
	MultiXactMember *running,
			   *all = NULL;
	int			n;
	bool		held,
				updated,
				dead;

	MultiXactIdSetOldestMember();
	pinned = mip_pin_version(rel, tid);
	header = mip_header(pinned.htup);
	n = mip_running_members(&header, LockTupleKeyShare, &running, &held, &updated);
	if (updated)
		(void) mip_update_member(&header, &running[n++]);
	dead = n > 0 && (header.infomask & HEAP_XMAX_IS_MULTI) != 0 &&
		n < mip_xmax_members(&header, &all);
	if (dead)
		mip_set_multixact(rel, tid, &pinned, running, n);
	mip_unpin_version(&pinned);
	pfree(running);
	if (all)
		pfree(all);
	return dead;
}

bool
mip_leave(Relation rel, ItemPointer tid, MipPinned *pinned)
{
	MipHeader	header = mip_header(pinned->htup);
	MultiXactMember *members;
	bool		held,
				updated;
	int			n = mip_running_members(&header, LockTupleKeyShare, &members, &held, &updated);
	int			kept = 0;

	for (int i = 0; i < n; i++)
	{
		if (!TransactionIdIsCurrentTransactionId(members[i].xid) ||
			ISUPDATE_from_mxstatus(members[i].status))
			members[kept++] = members[i];
	}
	if (updated)
		(void) mip_update_member(&header, &members[kept++]);
	if (kept > 0)
		mip_set_multixact(rel, tid, pinned, members, kept);
	pfree(members);
	return kept > 0;
}
