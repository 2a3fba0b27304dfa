/*-------------------------------------------------------------------------
 *
 * sibling.c
 *	  Claiming row versions in a MIP transaction.
 *
 * heap's own update, delete and lock wait for every conflicting transaction,
 * siblings included. So before any of them runs, mip_claim looks at the
 * version's xmax: outsiders in the way are waited for here, with the same
 * queueing as heap's; if only siblings are in the way the caller takes the
 * overlay's path; else heap's code runs and finds nothing to wait for.
 *
 * Between that look and what follows, no sibling may get in: both happen
 * under a mutex on (family, relation, TID), a heavyweight lock of its own
 * kind that only family members take and that is never held while waiting
 * for an outsider. An outsider can still slip in, and so can a sibling whose
 * key share lock follows a chain of updates (heap_lock_updated_tuple), so
 * heap is told not to wait where it can be: it gives up, and the claim is made
 * again.
 *
 * Never queue for heap's tuple lock where a sibling uses the version: the
 * head of that queue may be an outsider that waits for the sibling.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/transam.h"
#include "access/visibilitymap.h"
#include "miscadmin.h"
#include "sibling.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/datum.h"
#include "utils/rel.h"
#include "wal.h"

/* Lock manager modes with which heap queues for each tuple lock mode. */
static const LOCKMODE queue_modes[] = {
	[LockTupleKeyShare] = AccessShareLock,
	[LockTupleShare] = RowShareLock,
	[LockTupleNoKeyExclusive] = ExclusiveLock,
	[LockTupleExclusive] = AccessExclusiveLock,
};

static const LockTupleMode status_modes[] = {
	[MultiXactStatusForKeyShare] = LockTupleKeyShare,
	[MultiXactStatusForShare] = LockTupleShare,
	[MultiXactStatusForNoKeyUpdate] = LockTupleNoKeyExclusive,
	[MultiXactStatusForUpdate] = LockTupleExclusive,
	[MultiXactStatusNoKeyUpdate] = LockTupleNoKeyExclusive,
	[MultiXactStatusUpdate] = LockTupleExclusive,
};

static const MultiXactStatus lock_statuses[] = {
	[LockTupleKeyShare] = MultiXactStatusForKeyShare,
	[LockTupleShare] = MultiXactStatusForShare,
	[LockTupleNoKeyExclusive] = MultiXactStatusForNoKeyUpdate,
	[LockTupleExclusive] = MultiXactStatusForUpdate,
};

/* PostgreSQL's row lock conflict table (documentation, 13.3.2). */
static bool
modes_conflict(LockTupleMode a, LockTupleMode b)
{
	return DoLockModesConflict(queue_modes[a], queue_modes[b]);
}

/* ---- reading a header ---- */

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

/*
 * The transactions in a version's xmax, running or not; 0 if there are none.
 * The array is palloc'd.
 */
static int
xmax_members(TransactionId xmax, uint16 infomask, uint16 infomask2,
			 MultiXactMember **members)
{
	if ((infomask & HEAP_XMAX_INVALID) || HEAP_LOCKED_UPGRADED(infomask) ||
		!TransactionIdIsValid(xmax))
		return 0;
	if (infomask & HEAP_XMAX_IS_MULTI)
	{
		int			n = GetMultiXactIdMembers(xmax, members, false,
											  HEAP_XMAX_IS_LOCKED_ONLY(infomask));

		return Max(n, 0);
	}
	*members = palloc(sizeof(MultiXactMember));
	(*members)->xid = xmax;
	(*members)->status = plain_status(infomask, infomask2);
	return 1;
}

/* What mip_claim needs to know of a version, read under the buffer lock. */
typedef struct Header
{
	TransactionId xmin;
	TransactionId xmax;
	uint16		infomask;
	uint16		infomask2;
	HeapTuple	copy;			/* if asked for */
} Header;

static bool
read_header(Relation rel, ItemPointer tid, Header *header, bool copy)
{
	Buffer		buffer = ReadBuffer(rel, ItemPointerGetBlockNumber(tid));
	Page		page;
	ItemId		lp;
	bool		normal = false;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	if (ItemPointerGetOffsetNumber(tid) <= PageGetMaxOffsetNumber(page))
	{
		lp = PageGetItemId(page, ItemPointerGetOffsetNumber(tid));
		normal = ItemIdIsNormal(lp);
	}
	if (normal)
	{
		HeapTupleHeader htup = (HeapTupleHeader) PageGetItem(page, lp);

		header->xmin = HeapTupleHeaderGetXmin(htup);
		header->xmax = HeapTupleHeaderGetRawXmax(htup);
		header->infomask = htup->t_infomask;
		header->infomask2 = htup->t_infomask2;
		if (copy)
		{
			HeapTupleData tup;

			tup.t_data = htup;
			tup.t_len = ItemIdGetLength(lp);
			tup.t_self = *tid;
			tup.t_tableOid = RelationGetRelid(rel);
			header->copy = heap_copytuple(&tup);
		}
	}
	UnlockReleaseBuffer(buffer);
	return normal;
}

/* Does `update` change a column that a foreign key could refer to? */
static LockTupleMode
update_mode(Relation rel, HeapTuple old, TupleTableSlot *update)
{
	Bitmapset  *keys = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_KEY);
	TupleDesc	desc = RelationGetDescr(rel);
	LockTupleMode mode = LockTupleNoKeyExclusive;
	int			i = -1;

	while ((i = bms_next_member(keys, i)) >= 0)
	{
		AttrNumber	attno = i + FirstLowInvalidHeapAttributeNumber;
		Form_pg_attribute att;
		Datum		was,
					is;
		bool		was_null,
					is_null;

		if (attno <= 0)
		{
			mode = LockTupleExclusive;
			break;
		}
		att = TupleDescAttr(desc, attno - 1);
		was = heap_getattr(old, attno, desc, &was_null);
		is = slot_getattr(update, attno, &is_null);
		if (was_null != is_null ||
			(!was_null && !datumIsEqual(was, is, att->attbyval, att->attlen)))
		{
			mode = LockTupleExclusive;
			break;
		}
	}
	bms_free(keys);
	return mode;
}

/*
 * Sorts out who is in the way of `mode`. With MIP_WAIT, *wait is the
 * outsider; *shared tells whether siblings use the version too.
 */
static MipVerdict
classify(const Header *header, LockTupleMode mode, TransactionId *wait,
		 bool *shared)
{
	MultiXactMember *members = NULL;
	int			n = xmax_members(header->xmax, header->infomask,
								 header->infomask2, &members);
	MipVerdict	verdict = MIP_CLEAR;

	*shared = false;
	for (int i = 0; i < n; i++)
	{
		TransactionId xid = members[i].xid;
		bool		update = ISUPDATE_from_mxstatus(members[i].status);
		bool		conflict = modes_conflict(mode, status_modes[members[i].status]);

		if (TransactionIdIsCurrentTransactionId(xid))
		{
			if (update)
			{
				/* already replaced by ourselves: heap knows what that means */
				verdict = MIP_CLEAR;
				break;
			}
			continue;
		}
		if (!TransactionIdIsInProgress(xid))
		{
			if (update && TransactionIdDidCommit(xid))
			{
				verdict = MIP_CLEAR;	/* not the latest version any more */
				break;
			}
			continue;
		}
		if (mip_xid_is_sibling(xid))
		{
			*shared = true;
			/* heap would follow a sibling's update to its new version */
			if ((conflict || update) && verdict == MIP_CLEAR)
				verdict = MIP_OVERLAP;
		}
		else if (conflict)
		{
			verdict = MIP_WAIT;
			*wait = xid;
		}
	}
	if (members)
		pfree(members);
	return verdict;
}

/* ---- claims ---- */

static void
lock_mutex(MipClaim *claim)
{
	LOCKTAG    *tag = &claim->mutex;

	tag->locktag_field1 = mip_mine.family->id;
	tag->locktag_field2 = RelationGetRelid(claim->rel);
	tag->locktag_field3 = ItemPointerGetBlockNumber(&claim->tid);
	tag->locktag_field4 = ItemPointerGetOffsetNumber(&claim->tid);
	tag->locktag_type = LOCKTAG_USERLOCK;
	tag->locktag_lockmethodid = DEFAULT_LOCKMETHOD;
	(void) LockAcquire(tag, ExclusiveLock, false, false);
}

static void
unlock_mutex(MipClaim *claim)
{
	LockRelease(&claim->mutex, ExclusiveLock, false);
}

static void
leave_queue(MipClaim *claim)
{
	if (claim->queued)
		UnlockTuple(claim->rel, &claim->tid, claim->queue_mode);
	claim->queued = false;
}

static void
not_available(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not obtain lock on row in relation \"%s\"",
					RelationGetRelationName(rel))));
}

/*
 * Waits until the outsider `xid` is through, in heap's order of arrival
 * unless siblings use the version too. False: SKIP LOCKED.
 */
static bool
wait_for_outsider(MipClaim *claim, TransactionId xid, bool shared,
				  LockWaitPolicy policy, XLTW_Oper oper)
{
	if (policy == LockWaitBlock)
	{
		if (shared)
			leave_queue(claim);
		if (!shared && !claim->queued)
		{
			claim->queue_mode = queue_modes[claim->mode];
			LockTuple(claim->rel, &claim->tid, claim->queue_mode);
			claim->queued = true;
		}
		XactLockTableWait(xid, claim->rel, &claim->tid, oper);
		mip_check_doomed();
		return true;
	}
	if (mip_conditional_xact_wait(xid))
		return true;
	if (policy == LockWaitError)
		not_available(claim->rel);
	return false;
}

bool
mip_claim(MipClaim *claim, Relation rel, ItemPointer tid, LockTupleMode mode,
		  TupleTableSlot *update, LockWaitPolicy policy, XLTW_Oper oper)
{
	claim->rel = rel;
	claim->tid = *tid;
	claim->mode = mode;
	claim->queued = false;

	for (;;)
	{
		Header		header;
		TransactionId wait = InvalidTransactionId;
		bool		shared = false;

		CHECK_FOR_INTERRUPTS();
		mip_check_doomed();
		lock_mutex(claim);
		claim->verdict = MIP_CLEAR;
		claim->untouched = !read_header(rel, tid, &header, false) ||
			(header.infomask & HEAP_XMAX_INVALID) != 0;
		if (!claim->untouched)
			claim->verdict = classify(&header, claim->mode, &wait, &shared);

		/* An update that leaves the key alone conflicts with less. */
		if (claim->verdict != MIP_CLEAR && update)
		{
			if (!read_header(rel, tid, &header, true))
			{
				unlock_mutex(claim);
				continue;
			}
			claim->mode = update_mode(rel, header.copy, update);
			heap_freetuple(header.copy);
			claim->verdict = classify(&header, claim->mode, &wait, &shared);
		}
		if (claim->verdict != MIP_WAIT)
			return true;

		unlock_mutex(claim);
		if (!wait_for_outsider(claim, wait, shared, policy, oper))
		{
			leave_queue(claim);
			return false;
		}
	}
}

void
mip_release(MipClaim *claim)
{
	unlock_mutex(claim);
	leave_queue(claim);
}

/* ---- for unique checks of outsiders ---- */

/*
 * An instance's overlay may have deleted this live version, or changed its
 * key, while the header shows no more than a lock. Whoever asks whether the key is
 * taken has to wait for it, as for a delete of heap's. Returns the instance
 * to wait for, if any; it may hold no more than that lock.
 */
TransactionId
mip_pending_owner(Relation rel, ItemPointer tid)
{
	Header		header;
	MultiXactMember *members = NULL;
	TransactionId owner = InvalidTransactionId;
	int			n;

	if (!read_header(rel, tid, &header, false))
		return owner;
	n = xmax_members(header.xmax, header.infomask, header.infomask2, &members);
	for (int i = 0; i < n; i++)
	{
		TransactionId xid = members[i].xid;

		if (members[i].status == MultiXactStatusForUpdate &&
			!TransactionIdIsCurrentTransactionId(xid) &&
			TransactionIdIsInProgress(xid) &&
			mip_xid_is_instance(xid) && !mip_xid_is_sibling(xid))
			owner = xid;
	}
	if (members)
		pfree(members);
	return owner;
}

/* ---- joining ---- */

void
mip_multixact_bits(const MultiXactMember *members, int n,
				   uint16 *infomask, uint16 *infomask2)
{
	LockTupleMode strongest = LockTupleKeyShare;
	bool		has_update = false;

	*infomask = HEAP_XMAX_IS_MULTI;
	*infomask2 = 0;
	for (int i = 0; i < n; i++)
	{
		MultiXactStatus status = members[i].status;

		strongest = Max(strongest, status_modes[status]);
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

/*
 * The members that stay in a version's xmax: all that run. Sets *held if this
 * transaction is among them with `mode` or more.
 */
static int
running_members(const Header *header, LockTupleMode mode,
				MultiXactMember **members, bool *held, bool *updated)
{
	MultiXactMember *all = NULL;
	int			n = xmax_members(header->xmax, header->infomask,
								 header->infomask2, &all);
	int			kept = 0;

	*held = *updated = false;
	*members = palloc(sizeof(MultiXactMember) * (n + 1));
	for (int i = 0; i < n; i++)
	{
		bool		mine = TransactionIdIsCurrentTransactionId(all[i].xid);

		if (mine && status_modes[all[i].status] >= mode)
			*held = true;
		if (!mine && !TransactionIdIsInProgress(all[i].xid))
		{
			if (ISUPDATE_from_mxstatus(all[i].status) &&
				TransactionIdDidCommit(all[i].xid))
				*updated = true;
			continue;
		}
		(*members)[kept++] = all[i];
	}
	if (all)
		pfree(all);
	return kept;
}

/* A version under the exclusive buffer lock, with its map page pinned. */
typedef struct Locked
{
	Buffer		buffer;
	Buffer		vmbuffer;
	Header		header;
} Locked;

static Locked
lock_header(Relation rel, ItemPointer tid)
{
	Locked		locked = {.vmbuffer = InvalidBuffer};
	BlockNumber block = ItemPointerGetBlockNumber(tid);
	Page		page;
	HeapTupleHeader htup;

	visibilitymap_pin(rel, block, &locked.vmbuffer);
	locked.buffer = ReadBuffer(rel, block);
	LockBuffer(locked.buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(locked.buffer);
	htup = (HeapTupleHeader)
		PageGetItem(page, PageGetItemId(page, ItemPointerGetOffsetNumber(tid)));
	locked.header.xmin = HeapTupleHeaderGetXmin(htup);
	locked.header.xmax = HeapTupleHeaderGetRawXmax(htup);
	locked.header.infomask = htup->t_infomask;
	locked.header.infomask2 = htup->t_infomask2;
	return locked;
}

static void
unlock_header(Locked *locked)
{
	UnlockReleaseBuffer(locked->buffer);
	ReleaseBuffer(locked->vmbuffer);
}

static void
set_members(Relation rel, ItemPointer tid, Locked *locked,
			MultiXactMember *members, int n)
{
	MipXmaxChange change = {0};

	change.offnum = ItemPointerGetOffsetNumber(tid);
	change.xmax = MultiXactIdCreateFromMembers(n, members);
	mip_multixact_bits(members, n, &change.infomask, &change.infomask2);
	if (change.infomask & HEAP_XMAX_LOCK_ONLY)
	{
		/* as heap_lock_tuple: nobody's update is left */
		change.flags = MIP_XMAX_SET_CTID | MIP_XMAX_CLEAR_HOT;
		change.ctid = *tid;
	}
	mip_set_xmax(rel, locked->buffer, locked->vmbuffer, &change);
}

bool
mip_join(MipClaim *claim)
{
	TransactionId xid = GetCurrentTransactionId();
	Locked		locked = lock_header(claim->rel, &claim->tid);
	MultiXactMember *members;
	int			n;
	bool		held,
				updated;
	TransactionId wait;
	bool		shared;
	bool		valid;

	/* An outsider may have come in since the claim was made. */
	n = running_members(&locked.header, claim->mode, &members, &held, &updated);
	valid = !updated &&
		classify(&locked.header, claim->mode, &wait, &shared) != MIP_WAIT;
	if (valid && !held)
	{
		members[n].xid = xid;
		members[n].status = lock_statuses[claim->mode];
		set_members(claim->rel, &claim->tid, &locked, members, n + 1);
	}
	unlock_header(&locked);
	pfree(members);
	if (!valid)
		mip_release(claim);
	return valid;
}

/* ---- key share locks ---- */

/*
 * Among the running members of an updated version's xmax: a locker that is in
 * the way of a key share lock. *spoilt: the header says that the key is
 * changing although the update leaves it alone.
 */
static TransactionId
key_locker(const Header *header, bool *spoilt)
{
	MultiXactMember *members = NULL;
	TransactionId locker = InvalidTransactionId;
	int			n = xmax_members(header->xmax, header->infomask,
								 header->infomask2, &members);

	*spoilt = false;
	for (int i = 0; i < n; i++)
	{
		if (!TransactionIdIsInProgress(members[i].xid))
			continue;
		if (members[i].status == MultiXactStatusNoKeyUpdate)
			*spoilt = true;
		else if (members[i].status == MultiXactStatusForUpdate &&
				 !TransactionIdIsCurrentTransactionId(members[i].xid))
			locker = members[i].xid;
	}
	if (members)
		pfree(members);
	return locker;
}

/* Drops members that do not run any more, and with them the hint. */
static void
drop_dead_lockers(Relation rel, ItemPointer tid)
{
	Locked		locked;
	MultiXactMember *members;
	int			n;
	bool		held,
				updated,
				spoilt;

	MultiXactIdSetOldestMember();
	locked = lock_header(rel, tid);
	n = running_members(&locked.header, LockTupleKeyShare, &members, &held, &updated);
	if (!updated && n > 0 && (locked.header.infomask & HEAP_XMAX_IS_MULTI) &&
		!TransactionIdIsValid(key_locker(&locked.header, &spoilt)) && spoilt)
		set_members(rel, tid, &locked, members, n);
	unlock_header(&locked);
	pfree(members);
}

/*
 * heap never sees an update that leaves the key alone beside a FOR UPDATE
 * locker, as a sibling's overlay makes one: it would wait for the locker and
 * then, since the header still says that the key is changing, take the update,
 * which is running, for finished. So wait for the locker here, and mend the
 * header when it is gone.
 */
bool
mip_mend_key_share(Relation rel, ItemPointer tid, LockWaitPolicy policy)
{
	for (;;)
	{
		Header		header;
		TransactionId locker;
		bool		spoilt;

		if (!read_header(rel, tid, &header, false) ||
			(header.infomask & HEAP_XMAX_INVALID) ||
			!(header.infomask & HEAP_XMAX_IS_MULTI) ||
			HEAP_XMAX_IS_LOCKED_ONLY(header.infomask) ||
			!(header.infomask2 & HEAP_KEYS_UPDATED))
			return true;
		locker = key_locker(&header, &spoilt);
		if (!spoilt)
			return true;
		if (!TransactionIdIsValid(locker))
		{
			drop_dead_lockers(rel, tid);
			return true;
		}
		if (policy == LockWaitBlock)
			XactLockTableWait(locker, rel, tid, XLTW_Lock);
		else if (!mip_conditional_xact_wait(locker))
		{
			if (policy == LockWaitError)
				not_available(rel);
			return false;
		}
	}
}
