/*-------------------------------------------------------------------------
 *
 * chain.c
 *	  Going along a row's versions.
 *
 * A key share lock beside an update that leaves the key alone does not wait for
 * it, so it must hold on the version that the update makes, too: who deletes that
 * one, or changes its key, is to meet it. heap_lock_updated_tuple does this for
 * outsiders. It waits for whom it finds on the way, though, siblings included, so
 * an instance has its own: each version is claimed (claim.c), and only outsiders
 * are waited for.
 *
 * Heap locks the later versions first, and the first one last. Here the first
 * one is locked already, and so on along the chain: an update that comes after
 * our lock takes it along to the version that it makes (heap_update), and one
 * that was there before is what we see now, or it has been aborted, and then
 * another one has come after our lock. So there is nothing to check again. (But
 * heap_update forgets a key share lock that comes while it has the page unlocked, to
 * make room or out-of-line values, and is not confirmed behind it: on heap as well.)
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"

#include "base/stop.h"
#include "heap/version.h"
#include "family/current.h"
#include "tableam/chain.h"
#include "tableam/claim.h"
#include "tableam/overlay.h"

/* What leads from a version to the next one. */
typedef struct ChainLink
{
	TransactionId xmin;
	TransactionId updater;		/* invalid: none */
	bool		keys;			/* that changes the key, or deletes the row */
	ItemPointerData next;
} ChainLink;

static bool
read_link(Relation rel, ItemPointer tid, ChainLink *link)
{
	MipHeader	header;

	if (!mip_read_header(rel, tid, &header, NULL))
		return false;
	link->xmin = header.xmin;
	link->next = header.ctid;
	link->updater = mip_updater(&header, &link->keys);
	return true;
}

/* ---- key share locks ---- */

/*
 * Is there a version to be locked after this one? Not after our own change, and
 * not after a sibling's: only one of us will commit.
 */
static bool
goes_on(Relation rel, ItemPointer tid, ChainLink *link)
{
	return TransactionIdIsValid(link->updater) &&
		!ItemPointerEquals(&link->next, tid) &&
		!ItemPointerIndicatesMovedPartitions(&link->next) &&
		!TransactionIdIsCurrentTransactionId(link->updater) &&
		!mip_xid_is_sibling(link->updater) &&
		mip_overlay_find(rel, tid) == NULL &&
		(TransactionIdIsInProgress(link->updater) ||
		 TransactionIdDidCommit(link->updater));
}

/*
 * Locks one later version. Heap's lock would not do: as long as the update runs
 * that made it, it is invisible. A version whose update has committed needs no
 * lock any more, the next one does.
 */
static TM_Result
lock_later(Relation rel, ItemPointer tid, LockWaitPolicy policy, ChainLink *link)
{
	MipClaim	claim;
	bool		replaced,
				joined;

	do
	{
		if (!mip_claim(&claim, rel, tid, LockTupleKeyShare, NULL, policy,
					   XLTW_LockUpdated))
			return TM_WouldBlock;
		replaced = claim.verdict == MIP_REPLACED;
		joined = !replaced && mip_join(&claim);
		mip_release(&claim);
	} while (!replaced && !joined);
	if (!read_link(rel, tid, link))
		elog(ERROR, "pg_mip: a version that is pinned is gone");
	if (!replaced || !link->keys)
		return TM_Ok;
	return ItemPointerEquals(&link->next, tid) ? TM_Deleted : TM_Updated;
}

TM_Result
mip_lock_later_versions(Relation rel, ItemPointer tid, LockWaitPolicy policy,
						TM_FailureData *tmfd)
{
	ItemPointerData current = *tid;
	ChainLink	link;
	TM_Result	result = TM_Ok;

	if (!read_link(rel, &current, &link))
		elog(ERROR, "pg_mip: a version that was just locked is gone");
	tmfd->ctid = link.next;
	tmfd->xmax = link.updater;
	tmfd->cmax = InvalidCommandId;
	while (result == TM_Ok && goes_on(rel, &current, &link))
	{
		TransactionId prior = link.updater;
		Buffer		buffer;

		mip_stop_point("next version");
		current = link.next;
		/* from here on its line pointer cannot be recycled */
		buffer = ReadBuffer(rel, ItemPointerGetBlockNumber(&current));
		if (read_link(rel, &current, &link) &&
			TransactionIdEquals(link.xmin, prior))
			result = lock_later(rel, &current, policy, &link);
		else
			link.updater = InvalidTransactionId;
		ReleaseBuffer(buffer);
	}
	return result;
}

/* ---- the row's latest version ---- */

/* Has this transaction replaced a version, in its overlay or as heap does it? */
static bool
replaced_by_us(Relation rel, ItemPointer tid, ChainLink *link)
{
	const MipLink *overlaid = mip_overlay_find(rel, tid);

	if (overlaid)
	{
		link->updater = overlaid->xmax;
		link->next = overlaid->version;
	}
	return TransactionIdIsCurrentTransactionId(link->updater);
}

/* The command of this transaction that has made this version. */
static CommandId
made_by_command(Relation rel, ItemPointer tid)
{
	MipHeader	header;
	HeapTuple	version;
	CommandId	cmin;

	if (!mip_read_header(rel, tid, &header, &version))
		elog(ERROR, "pg_mip: a version of this transaction is gone");
	cmin = HeapTupleHeaderGetCmin(version->t_data);
	heap_freetuple(version);
	return cmin;
}

TM_Result
mip_next_version(Relation rel, ItemPointer tid, CommandId cid, TM_FailureData *tmfd)
{
	ChainLink	link = {.updater = tmfd->xmax,.next = tmfd->ctid};
	CommandId	cmin;

	do
	{
		TransactionId prior = link.updater;

		if (!ItemPointerIsValid(&link.next) || ItemPointerEquals(&link.next, tid))
			return TM_Deleted;
		*tid = link.next;
		if (ItemPointerIndicatesMovedPartitions(tid))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("tuple to be locked was already moved to another partition due to concurrent update")));
		/* a recycled line pointer: the row was deleted */
		if (!read_link(rel, tid, &link) || !TransactionIdEquals(link.xmin, prior))
			return TM_Deleted;
	} while (replaced_by_us(rel, tid, &link));

	if (!TransactionIdIsCurrentTransactionId(link.xmin))
		return TM_Ok;
	cmin = made_by_command(rel, tid);
	if (cmin < cid)
		return TM_Ok;
	/* not visible to this command: by itself, or one that it called? */
	tmfd->xmax = link.xmin;
	tmfd->cmax = cmin;
	return TM_SelfModified;
}
