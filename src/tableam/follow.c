/*-------------------------------------------------------------------------
 *
 * follow.c
 *	  Serializable transactions of which PostgreSQL does not record all conflicts.
 *
 * It need not, to find two of them in a row at this site; or it should (releases 15 to
 * 18). Who goes by each one of them has a transaction followed from its first statement
 * on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/lwlock.h"
#include "storage/predicate.h"

#include "mipt/catalog.h"
#include "tableam/follow.h"
#include "tableam/predicate_internal.h"

/*
 * READ ONLY: who might make its snapshot unsafe does not matter any more, since it
 * goes by its conflicts. It counts as one that writes until it ends, for PostgreSQL
 * goes by the flag then, too.
 *
 * Those who wrote when it took its snapshot may all have committed since. Then their
 * conflicts with readers are to go, as soon as somebody cleans up: not these any more.
 */
void
mip_follow_reader(void)
{
	SERIALIZABLEXACT *mine = ShareSerializableXact();
	RWConflict	unsafe = NULL;

	if (mine == NULL || mip_conflict_pool == NULL || !(mine->flags & SXACT_FLAG_READ_ONLY))
		return;
	LWLockAcquire(SerializableFinishedListLock, LW_EXCLUSIVE);	/* nobody cleans up */
	LWLockAcquire(SerializableXactHashLock, LW_EXCLUSIVE);
	while ((unsafe = MIP_LIST_NEXT(RWConflictData, inLink, &mine->possibleUnsafeConflicts, unsafe)) != NULL)
	{
		mip_release_conflict(unsafe);
		unsafe = NULL;
	}
	mine->flags &= ~(SXACT_FLAG_READ_ONLY | SXACT_FLAG_RO_SAFE | SXACT_FLAG_RO_UNSAFE);
	mip_sxacts->WritableSxactCount++;
	mip_sxacts->CanPartialClearThrough = mip_sxacts->HavePartialClearedThrough;
	LWLockRelease(SerializableXactHashLock);
	LWLockRelease(SerializableFinishedListLock);
}

void
mip_follow_early_writer(void)
{
	static TransactionId registered;
	SERIALIZABLEXACT *mine = ShareSerializableXact();
	SERIALIZABLEXIDTAG tag;
	bool		found;

	if (mine == NULL || mip_conflict_pool == NULL || !TransactionIdIsValid(mine->topXid) ||
		TransactionIdEquals(registered, mine->topXid))
		return;
	tag.xid = mine->topXid;
	LWLockAcquire(SerializableXactHashLock, LW_EXCLUSIVE);
	((SERIALIZABLEXID *) hash_search(mip_sxact_of_xid, &tag, HASH_ENTER, &found))->myXact = mine;
	LWLockRelease(SerializableXactHashLock);
	registered = tag.xid;
}

/*
 * Whoever finishes a prepared transaction has its place in PostgreSQL's SSI for a moment,
 * and when he is back in his own it is not known any more whether he has written; who has
 * but read is let off some conflicts. To write to any table, if only for the look who has
 * read all of it, is enough.
 */
void
mip_follow_write(void)
{
	Relation	rel;

	if (ShareSerializableXact() == NULL || !TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	rel = table_open(mipt_relid(MIPT_TABLE), AccessShareLock);
	CheckForSerializableConflictIn(rel, NULL, InvalidBlockNumber);
	table_close(rel, NoLock);
}

bool
mip_follows(TransactionId xid)
{
	bool		found;

	LWLockAcquire(SerializableXactHashLock, LW_SHARED);
	found = mip_find_sxact(xid) != NULL;
	LWLockRelease(SerializableXactHashLock);
	return found;
}
