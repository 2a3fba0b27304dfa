/*-------------------------------------------------------------------------
 *
 * predicate.c
 *	  Serializable snapshot isolation (SSI) beside siblings and overlays.
 *
 * At most one instance of a family commits, so a cycle of committed transactions
 * has no edge between two siblings: leaving these out loses no anomaly, and
 * keeping them would let siblings fail each other. Every edge with an outsider is
 * recorded for each sibling on its own, so the winner's are right whoever wins,
 * and a loser's go with it. README beside this file has the proof; this is the means.
 *
 * A sibling writes what another one has read. PostgreSQL records the edge
 * reader -> writer unless the reader's list of conflicts out has an entry for that
 * writer. So there is one for each pair, a seed, that says nothing else: in
 * place of the reader it names a dummy that is doomed and read only, whom all skip
 * who go by the writer's list; and those who go by the reader's skip a writer that
 * is not prepared. Hence none names a writer that is prepared: before an instance is,
 * the seeds go in which it is the writer. It writes no more then.
 *
 * A sibling reads what another one has written, prepared or not. PostgreSQL asks
 * the transaction's own snapshot whether the writer is concurrent. While heap's code
 * reads, that snapshot names no sibling. It never judges what is visible meanwhile:
 * scans have copies of it.
 *
 * A prepared transaction that a crash has left, or whose conflicts have been
 * summarized, has the flag that it has some conflict out, unknown to whom, for
 * which every reader fails before anything is looked at. An entry in its list that
 * names a dummy, committed before all others, says the same to all but siblings.
 *
 * Overlays. Heap's code does not see that a locker has replaced a version, nor that
 * it is replaced where the new version is inserted. So the overlay checks for
 * readers of the base version (mip_predicate_check_overlay), and readers look for
 * overlays (mip_look), each behind what it leaves for the other: the reader its
 * SIREAD lock, the writer its entry in xmax. A look comes behind heap's, so it also
 * finds an updater that a hand-over has put there since.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/predicate.h"
#include "storage/predicate_internals.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/stop.h"
#include "heap/version.h"
#include "family/family.h"
#include "tableam/predicate.h"
#include "tableam/predicate_internal.h"

/*
 * How many transactions that have begun behind our snapshot are listed to tell a
 * sibling from them. A sibling that is farther away may fail us for nothing.
 */
#define LISTED_MAX	65536

/* In place of transactions, in lists of conflicts */
typedef struct Dummies
{
	SERIALIZABLEXACT seed;		/* the reader of a seed */
	SERIALIZABLEXACT before;	/* the writer of a conflict with who knows
								 * whom */
} Dummies;

/* predicate.c's own; NULL: not as expected */
HTAB	   *mip_sxact_of_xid;
RWConflictPoolHeader mip_conflict_pool;
PredXactList mip_sxacts;

static Dummies *dummies;

/* ---- start-up ---- */

void
mip_predicate_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(Dummies));
}

static void
make_dummy(SERIALIZABLEXACT *dummy, uint32 flags)
{
	memset(dummy, 0, sizeof(*dummy));
	dummy->prepareSeqNo = dummy->commitSeqNo = RecoverySerCommitSeqNo;
	dummy->SeqNo.lastCommitBeforeSnapshot = RecoverySerCommitSeqNo;
	MIP_LIST_INIT(&dummy->outConflicts);
	MIP_LIST_INIT(&dummy->inConflicts);
	MIP_LIST_INIT(&dummy->predicateLocks);
	MIP_LIST_INIT(&dummy->possibleUnsafeConflicts);
	dummy->flags = flags;
}

/* As many as InitPredicateLocks makes */
static int
max_sxacts(void)
{
	return (MaxBackends + max_prepared_xacts) * 10;
}

static HTAB *
attach_sxact_of_xid(void)
{
	HASHCTL		info = {.keysize = sizeof(SERIALIZABLEXIDTAG),.entrysize = sizeof(SERIALIZABLEXID)};
	HTAB	   *found = ShmemInitHash("SERIALIZABLEXID hash", max_sxacts(), max_sxacts(), &info,
									  HASH_ELEM | HASH_BLOBS | HASH_FIXED_SIZE);

	return hash_get_num_entries(found) == 0 ? found : NULL;
}

/* Is this the pool as InitPredicateLocks leaves it? */
static bool
is_pristine(RWConflictPoolHeader found)
{
	RWConflict	conflict = NULL;
	int			n = 0;

	while ((conflict = MIP_LIST_NEXT(RWConflictData, outLink, &found->availableList, conflict)) != NULL)
	{
		if (n >= max_sxacts() * 5 || conflict != &found->element[n++])
			return false;
	}
	return n == max_sxacts() * 5;
}

static RWConflictPoolHeader
attach_pool(void)
{
	bool		exists;
	RWConflictPoolHeader found = ShmemInitStruct("RWConflictPool", MIP_CONFLICT_POOL_SIZE(max_sxacts() * 5),
												 &exists);

	return exists && is_pristine(found) ? found : NULL;
}

static PredXactList
attach_sxacts(void)
{
	bool		exists;
	PredXactList found = ShmemInitStruct("PredXactList", MIP_SXACT_LIST_SIZE(max_sxacts()), &exists);

	return exists && found->WritableSxactCount == 0 && found->SxactGlobalXminCount == 0 &&
		found->OldCommittedSxact->flags == SXACT_FLAG_COMMITTED ? found : NULL;
}

/* They stay where they are, in all processes. */
static void
attach(void)
{
	MemoryContext memory = CurrentMemoryContext;

	PG_TRY();
	{
		mip_sxact_of_xid = attach_sxact_of_xid();
		mip_conflict_pool = attach_pool();
		mip_sxacts = attach_sxacts();
	}
	PG_CATCH();
	{
		/* of another size */
		MemoryContextSwitchTo(memory);
		FlushErrorState();
		mip_conflict_pool = NULL;
	}
	PG_END_TRY();
	if (mip_sxact_of_xid == NULL || mip_conflict_pool == NULL || mip_sxacts == NULL)
	{
		mip_sxact_of_xid = NULL;
		mip_conflict_pool = NULL;
		mip_sxacts = NULL;
		ereport(LOG,
				(errmsg("pg_mip does not know how this server keeps serializable transactions"),
				 errdetail("SERIALIZABLE instances cannot have siblings, and mip.serializable cannot be \"everywhere\".")));
	}
}

void
mip_predicate_shmem_startup(void)
{
	bool		found;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	dummies = ShmemInitStruct("pg_mip predicate", sizeof(Dummies), &found);
	if (!found)
	{
		make_dummy(&dummies->seed, SXACT_FLAG_DOOMED | SXACT_FLAG_READ_ONLY);
		make_dummy(&dummies->before, SXACT_FLAG_COMMITTED | SXACT_FLAG_PREPARED);
	}
	if (!IsUnderPostmaster)
		attach();
}

bool
mip_predicate_is_known(void)
{
	return mip_conflict_pool != NULL;
}

/* ---- conflicts; the caller holds SerializableXactHashLock exclusively ---- */

static RWConflict
next_out(SERIALIZABLEXACT *reader, RWConflict conflict)
{
	return MIP_LIST_NEXT(RWConflictData, outLink, &reader->outConflicts, conflict);
}

static RWConflict
next_in(SERIALIZABLEXACT *writer, RWConflict conflict)
{
	return MIP_LIST_NEXT(RWConflictData, inLink, &writer->inConflicts, conflict);
}

/* Between them, seed or not; NULL if there is none. */
static RWConflict
find_conflict(SERIALIZABLEXACT *reader, SERIALIZABLEXACT *writer)
{
	RWConflict	conflict = NULL;

	while ((conflict = next_out(reader, conflict)) != NULL && conflict->sxactIn != writer)
		;
	return conflict;
}

/*
 * How many that we may set; counted, for so many at most, once for all that are set
 * under the lock. PostgreSQL fails transactions where it has none left, and we can do
 * without: it keeps a fifth of the pool, ten for each transaction that there may be.
 */
static int	room;

static void
count_room(int most)
{
	RWConflict	conflict = NULL;

	for (room = -max_sxacts(); room < most; room++)
	{
		conflict = MIP_LIST_NEXT(RWConflictData, outLink, &mip_conflict_pool->availableList, conflict);
		if (conflict == NULL)
			return;
	}
}

/* As SetRWConflict, but in the name of `named`. False: there is no room. */
static bool
set_conflict(SERIALIZABLEXACT *reader, SERIALIZABLEXACT *named, SERIALIZABLEXACT *writer)
{
	RWConflict	conflict = NULL;

	if (room <= 0)
		return false;
	room--;
	conflict = MIP_LIST_NEXT(RWConflictData, outLink, &mip_conflict_pool->availableList, conflict);
	MIP_LIST_DELETE(&conflict->outLink);
	conflict->sxactOut = named;
	conflict->sxactIn = writer;
	MIP_LIST_PUSH(&reader->outConflicts, &conflict->outLink);
	MIP_LIST_PUSH(&writer->inConflicts, &conflict->inLink);
	return true;
}

/* ---- siblings are no rivals ---- */

/*
 * Where there is no room, siblings may fail each other for nothing. What this one
 * has read before it became an instance may have left a conflict that is real: it
 * becomes the seed.
 */
static void
seed(SERIALIZABLEXACT *reader, SERIALIZABLEXACT *writer)
{
	RWConflict	conflict = find_conflict(reader, writer);

	if (writer->flags & SXACT_FLAG_PREPARED)
	{
		if (conflict)
			mip_release_conflict(conflict);
	}
	else if (conflict)
		conflict->sxactOut = &dummies->seed;
	else
		(void) set_conflict(reader, &dummies->seed, writer);
}

/* Says that it has some conflict out so that siblings can pass. */
static void
name_summary(SERIALIZABLEXACT *sxact)
{
	if ((sxact->flags & SXACT_FLAG_SUMMARY_CONFLICT_OUT) &&
		(find_conflict(sxact, &dummies->before) ||
		 set_conflict(sxact, sxact, &dummies->before)))
		sxact->flags &= ~SXACT_FLAG_SUMMARY_CONFLICT_OUT;
}

/*
 * Siblings of this transaction; TopTransactionContext. One that is over may have
 * given its place to somebody else: then is_summarized asks for nothing.
 */
static SERIALIZABLEXACT **met;
static int	nmet;

static void
meet(SERIALIZABLEXACT *mine, List *siblings, bool seeds)
{
	ListCell   *lc;

	if (met)
		pfree(met);
	met = MemoryContextAlloc(TopTransactionContext, (list_length(siblings) + 1) * sizeof(*met));
	nmet = 0;
	LWLockAcquire(SerializableXactHashLock, LW_EXCLUSIVE);
	count_room(3 * list_length(siblings));
	foreach(lc, siblings)
	{
		SERIALIZABLEXACT *other = mip_find_sxact(((MipInstance *) lfirst(lc))->xid);

		if (other == NULL)
			continue;
		name_summary(other);
		if (!(other->flags & SXACT_FLAG_SUMMARY_CONFLICT_OUT))
			met[nmet++] = other;
		if (seeds)
		{
			seed(mine, other);
			seed(other, mine);
		}
	}
	LWLockRelease(SerializableXactHashLock);
}

/* Has a sibling got a summary since? Without the lock: who misses it fails for nothing. */
static bool
is_summarized(void)
{
	for (int i = 0; i < nmet; i++)
	{
		if (met[i]->flags & SXACT_FLAG_SUMMARY_CONFLICT_OUT)
			return true;
	}
	return false;
}

static List *
my_siblings(void)
{
	List	   *siblings = NIL;
	ListCell   *lc;

	foreach(lc, mip_family_instances(mip_mine.xid))
	{
		MipInstance *inst = lfirst(lc);

		if (inst->xinst != mip_mine.xinst)
			siblings = lappend(siblings, inst);
	}
	return siblings;
}

void
mip_predicate_begin(void)
{
	SERIALIZABLEXACT *mine = ShareSerializableXact();
	List	   *siblings;

	Assert(mip_in_transaction());
	if (!IsolationIsSerializable() || (siblings = my_siblings()) == NIL)
		return;
	if (mip_conflict_pool == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("a second instance of a family cannot be SERIALIZABLE on this server"),
				 errdetail("pg_mip does not know how it keeps serializable transactions."),
				 errhint("Use REPEATABLE READ, or decide family \"%s\" first.", mip_mine.xid)));
	/* NULL: read only, and nobody writes */
	if (mine)
		meet(mine, siblings, true);
}

TransactionId
mip_predicate_name_summaries(void)
{
	TransactionId first = InvalidTransactionId;
	List	   *living = mip_living_instances();
	ListCell   *lc;

	if (mip_conflict_pool == NULL)
		return InvalidTransactionId;
	LWLockAcquire(SerializableXactHashLock, LW_EXCLUSIVE);
	count_room(list_length(living));
	foreach(lc, living)
	{
		const MipLiving *inst = lfirst(lc);
		SERIALIZABLEXACT *sxact = inst->pid == 0 ? mip_find_sxact(inst->tid) : NULL;

		if (sxact == NULL || !(sxact->flags & SXACT_FLAG_SUMMARY_CONFLICT_OUT))
			continue;
		name_summary(sxact);
		if (!TransactionIdIsValid(first))
			first = inst->tid;
	}
	LWLockRelease(SerializableXactHashLock);
	return first;
}

void
mip_predicate_before_end(void)
{
	SERIALIZABLEXACT *mine = ShareSerializableXact();
	RWConflict	conflict;
	RWConflict	next;

	if (mine == NULL || mip_conflict_pool == NULL)
		return;
	LWLockAcquire(SerializableXactHashLock, LW_EXCLUSIVE);
	for (conflict = next_in(mine, NULL); conflict != NULL; conflict = next)
	{
		next = next_in(mine, conflict);
		if (conflict->sxactOut == &dummies->seed)
			mip_release_conflict(conflict);
	}
	LWLockRelease(SerializableXactHashLock);
}

/*
 * PostgreSQL asks once more when it commits. Nobody fails who is taken for
 * prepared: who meets such a one fails itself.
 */
void
mip_predicate_let_commit(void)
{
	PreCommit_CheckForSerializationFailure();
}

/* ---- the snapshot without siblings ---- */

Snapshot	mip_bare_snapshot;

/* What XidIsConcurrent goes by */
typedef struct Concurrent
{
	TransactionId xmax;
	TransactionId *xip;
	uint32		xcnt;
} Concurrent;

static Concurrent shown;		/* while siblings are hidden: the snapshot's
								 * own */
static Concurrent hidden;		/* without them; TopTransactionContext */
static uint64 hidden_joins;		/* family->joins of that; 0: not made yet */

static Concurrent
swap(Snapshot snapshot, const Concurrent *with)
{
	Concurrent	before = {.xmax = snapshot->xmax,.xip = snapshot->xip,.xcnt = snapshot->xcnt};

	snapshot->xmax = with->xmax;
	snapshot->xip = with->xip;
	snapshot->xcnt = with->xcnt;
	return before;
}

static bool
is_among(TransactionId xid, List *siblings)
{
	ListCell   *lc;

	foreach(lc, siblings)
	{
		if (TransactionIdEquals(((MipInstance *) lfirst(lc))->xid, xid))
			return true;
	}
	return false;
}

/* The end of what has to be listed for all siblings to be told from others. */
static TransactionId
end_of_list(Snapshot snapshot, List *siblings)
{
	TransactionId end = snapshot->xmax;
	ListCell   *lc;

	foreach(lc, siblings)
	{
		TransactionId xid = ((MipInstance *) lfirst(lc))->xid;

		if (TransactionIdFollowsOrEquals(xid, end) && xid - snapshot->xmax < LISTED_MAX)
		{
			end = xid;
			TransactionIdAdvance(end);
		}
	}
	return end;
}

static void
leave_out(Snapshot snapshot, List *siblings)
{
	TransactionId xid;

	if (hidden.xip)
		pfree(hidden.xip);
	hidden.xmax = end_of_list(snapshot, siblings);
	hidden.xip = MemoryContextAlloc(TopTransactionContext,
									(snapshot->xcnt + (hidden.xmax - snapshot->xmax) + 1) * sizeof(TransactionId));
	hidden.xcnt = 0;
	for (uint32 i = 0; i < snapshot->xcnt; i++)
	{
		if (!is_among(snapshot->xip[i], siblings))
			hidden.xip[hidden.xcnt++] = snapshot->xip[i];
	}
	xid = snapshot->xmax;
	while (xid != hidden.xmax)
	{
		if (!is_among(xid, siblings))
			hidden.xip[hidden.xcnt++] = xid;
		TransactionIdAdvance(xid);
	}
}

/*
 * A sibling that joins behind this is met by its seeds, until it is prepared;
 * should it be by then, it may fail us for nothing.
 */
static void
make_hidden(Snapshot snapshot)
{
	SERIALIZABLEXACT *mine = ShareSerializableXact();
	uint64		joins = mip_mine.family->joins;
	List	   *siblings = my_siblings();

	if (mine)
		meet(mine, siblings, false);
	leave_out(snapshot, siblings);
	list_free_deep(siblings);
	hidden_joins = joins;
}

void
mip_hide_siblings_slowly(Snapshot scanned)
{
	Snapshot	snapshot = GetTransactionSnapshot();

	Assert(mip_bare_snapshot == NULL);
	/* whoever scans with that itself is to see by it */
	if (scanned == snapshot || mip_conflict_pool == NULL)
		return;
	if (hidden_joins != mip_mine.family->joins || is_summarized())
		make_hidden(snapshot);
	shown = swap(snapshot, &hidden);
	mip_bare_snapshot = snapshot;
}

void
mip_show_siblings_slowly(void)
{
	(void) swap(mip_bare_snapshot, &shown);
	mip_bare_snapshot = NULL;
}

void
mip_predicate_at_abort_sub(void)
{
	mip_show_siblings();
}

/* The snapshot, and the list, go with their transaction. */
void
mip_predicate_at_eoxact(void)
{
	mip_show_siblings();
	memset(&hidden, 0, sizeof(hidden));
	hidden_joins = 0;
	met = NULL;
	nmet = 0;
}

/* ---- overlays ---- */

void
mip_predicate_check_overlay(Relation rel, ItemPointer base)
{
	CheckForSerializableConflictIn(rel, base, ItemPointerGetBlockNumber(base));
}

/* The transaction that an entry in xmax is of, if a reader may conflict with it. */
static TransactionId
replacer(const MultiXactMember *member)
{
	TransactionId xid = member->xid;

	if (mip_member_mode(member) < LockTupleNoKeyExclusive ||
		TransactionIdPrecedes(xid, TransactionXmin) ||
		mip_xid_is_sibling(xid) ||
		!(ISUPDATE_from_mxstatus(member->status) || mip_xid_may_overlay(xid)))
		return InvalidTransactionId;
	xid = SubTransGetTopmostTransaction(xid);
	return TransactionIdPrecedes(xid, TransactionXmin) ? InvalidTransactionId : xid;
}

static void
look_at(Relation rel, const MipHeader *header, Snapshot snapshot)
{
	MultiXactMember *members = NULL;
	int			n = mip_xmax_members(header, &members);

	mip_stop_point("look");
	for (int i = 0; i < n; i++)
	{
		TransactionId xid = replacer(&members[i]);

		if (TransactionIdIsValid(xid))
			CheckForSerializableConflictOut(rel, xid, snapshot);
	}
	if (members)
		pfree(members);
}

/*
 * A locker that has been handed over, and is over, since the header was read is
 * known to nobody any more; but then xmax has changed.
 */
void
mip_look_slowly(Relation rel, ItemPointer tid, Snapshot snapshot)
{
	MipHeader	header;
	MipHeader	seen = {0};

	if (!CheckForSerializableConflictOutNeeded(rel, snapshot))
		return;
	while (mip_read_header(rel, tid, &header, NULL) && !mip_same_xmax(&header, &seen))
	{
		seen = header;
		look_at(rel, &header, snapshot);
	}
}
