/*-------------------------------------------------------------------------
 *
 * unflushed.c
 *	  Finishing a prepared instance without waiting for the WAL flush.
 *
 * COMMIT PREPARED and ROLLBACK PREPARED always flush: a coordinator that has heard
 * of it forgets the transaction. Nobody forgets a family: should a crash lose the
 * commit, the winner is prepared again, and whoever comes derives the same
 * winner (spec/, LoseCommit). A loser that is prepared again is rolled back again:
 * it can win no more. So this does what FinishPreparedTransaction and
 * RecordTransactionCommitPrepared or RecordTransactionAbortPrepared do, but for the
 * flush, as RecordTransactionCommit does it with synchronous_commit = off.
 *
 * The table of prepared transactions is twophase.c's own. What is known of it
 * here is compared with the server when that starts, and with the PREPARE record
 * each time; if anything differs, or is out of the ordinary, COMMIT PREPARED's own
 * code is to be used.
 *
 * TwoPhaseStateLock is held all the time (for a commit with DELAY_CHKPT_START).
 * A checkpoint writes a transaction that was prepared before its redo pointer to a
 * file. If it does that before us we see it (ondisk). If it does not find the
 * transaction any more, the record of its end is before the checkpoint's, which is
 * flushed before the checkpoint counts: so there is no crash that finds neither the
 * file nor the PREPARE record nor the end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/clog.h"
#include "access/commit_ts.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "access/twophase_rmgr.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/origin.h"
#include "replication/syncrep.h"
#include "storage/lwlock.h"
#include "storage/predicate.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "mipt/durable.h"
#include "transam/unflushed.h"

/* ---- twophase.c's own ---- */

typedef struct GlobalTransactionData
{
	struct GlobalTransactionData *next;
	int			pgprocno;
#if PG_VERSION_NUM < 170000
	BackendId	dummyBackendId;
#endif
	TimestampTz prepared_at;
	XLogRecPtr	prepare_start_lsn;
	XLogRecPtr	prepare_end_lsn;
	TransactionId xid;
	Oid			owner;
	int			locking_backend;	/* -1: nobody */
	bool		valid;
	bool		ondisk;
	bool		inredo;
	char		gid[GIDSIZE];
} GlobalTransactionData;

typedef struct TwoPhaseStateData
{
	GlobalTransaction freeGXacts;
	int			numPrepXacts;
	GlobalTransaction prepXacts[FLEXIBLE_ARRAY_MEMBER];
} TwoPhaseStateData;

typedef struct TwoPhaseRecordOnDisk
{
	uint32		len;
	TwoPhaseRmgrId rmid;
	uint16		info;
} TwoPhaseRecordOnDisk;

#define TWOPHASE_MAGIC	0x57F94534

static bool synchronous_commit_prepared = true;
static TwoPhaseStateData *table;	/* NULL: not as expected */

/* ---- start-up ---- */

static Size
table_offset(void)
{
	return MAXALIGN(offsetof(TwoPhaseStateData, prepXacts) +
					sizeof(GlobalTransaction) * max_prepared_xacts);
}

/* Is this the table as TwoPhaseShmemInit leaves it? */
static bool
is_pristine(TwoPhaseStateData *found)
{
	GlobalTransaction all = (GlobalTransaction) ((char *) found + table_offset());

	if (found->numPrepXacts != 0 || found->freeGXacts != &all[max_prepared_xacts - 1])
		return false;
	for (int i = 0; i < max_prepared_xacts; i++)
	{
		if (all[i].next != (i == 0 ? NULL : &all[i - 1]) ||
			GetPGProcByNumber(all[i].pgprocno) != &PreparedXactProcs[i])
			return false;
	}
	return true;
}

/* The table stays where it is, in all processes. */
void
mip_unflushed_shmem_startup(void)
{
	Size		size = table_offset() + sizeof(GlobalTransactionData) * max_prepared_xacts;
	TwoPhaseStateData *found;
	bool		exists = false;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	table = NULL;
	if (max_prepared_xacts == 0)
		return;
	if (size == TwoPhaseShmemSize())
	{
		found = ShmemInitStruct("Prepared Transaction Table", size, &exists);
		if (exists && is_pristine(found))
			table = found;
	}
	if (table == NULL)
		ereport(LOG,
				(errmsg("pg_mip does not know how this server keeps prepared transactions"),
				 errdetail("mip.synchronous_commit_prepared = off has no effect.")));
}

void
mip_unflushed_init(void)
{
	DefineCustomBoolVariable("mip.synchronous_commit_prepared",
							 "Whether mip.commit waits for the WAL flush.",
							 "If not, a crash can leave the winner prepared again, to be committed by whoever finds it.",
							 &synchronous_commit_prepared, true, PGC_USERSET, 0,
							 NULL, NULL, NULL);
}

/* ---- the transaction ---- */

/* NULL: there is none that we may finish. */
static GlobalTransaction
find(const char *gid)
{
	Assert(LWLockHeldByMe(TwoPhaseStateLock));
	for (int i = 0; i < table->numPrepXacts; i++)
	{
		GlobalTransaction gxact = table->prepXacts[i];

		if (strcmp(gxact->gid, gid) != 0)
			continue;
		if (gxact->valid && !gxact->ondisk && !gxact->inredo &&
			gxact->locking_backend == -1 &&
			GetPGProcByNumber(gxact->pgprocno)->databaseId == MyDatabaseId)
			return gxact;
	}
	return NULL;
}

/* The PREPARE record at this place, or NULL if there is another one. */
static xl_xact_prepare *
read_record(XLogRecPtr lsn)
{
	XLogReaderState *reader;
	xl_xact_prepare *state = NULL;
	char	   *error;

	reader = XLogReaderAllocate(wal_segment_size, NULL,
								XL_ROUTINE(.page_read = &read_local_xlog_page,
										   .segment_open = &wal_segment_open,
										   .segment_close = &wal_segment_close),
								NULL);
	if (reader == NULL)
		return NULL;
	XLogBeginRead(reader, lsn);
	if (XLogReadRecord(reader, &error) &&
		XLogRecGetRmid(reader) == RM_XACT_ID &&
		(XLogRecGetInfo(reader) & XLOG_XACT_OPMASK) == XLOG_XACT_PREPARE)
	{
		state = palloc(XLogRecGetDataLen(reader));
		memcpy(state, XLogRecGetData(reader), XLogRecGetDataLen(reader));
	}
	XLogReaderFree(reader);
	return state;
}

/*
 * Others' caches must learn of changes in catalogs, which functions can make in an
 * instance (pg_replication_origin_create). Relations and files that come or go come
 * with those, and only by DDL, which is refused there.
 */
static bool
changes_catalogs(const xl_xact_prepare *state)
{
	Assert(state->ninvalmsgs > 0 ||
		   (state->ncommitrels == 0 && state->nabortrels == 0 &&
			state->ncommitstats == 0 && state->nabortstats == 0 && !state->initfileinval));
	return state->ninvalmsgs > 0;
}

/* The state of a transaction that is as simple as an instance should be. */
static xl_xact_prepare *
read_state(const char *gid, XLogRecPtr *lsn)
{
	GlobalTransaction gxact;
	GlobalTransactionData copy;
	xl_xact_prepare *state;

	LWLockAcquire(TwoPhaseStateLock, LW_SHARED);
	gxact = find(gid);
	if (gxact)
		copy = *gxact;
	LWLockRelease(TwoPhaseStateLock);
	if (gxact == NULL)
		return NULL;
	*lsn = copy.prepare_start_lsn;
	state = read_record(copy.prepare_start_lsn);
	if (state == NULL ||
		state->magic != TWOPHASE_MAGIC || state->xid != copy.xid ||
		state->database != MyDatabaseId || state->owner != copy.owner ||
		state->prepared_at != copy.prepared_at ||
		strcmp((char *) state + MAXALIGN(sizeof(xl_xact_prepare)), gid) != 0 ||
		changes_catalogs(state))
		return NULL;
	return state;
}

/* ---- its end ---- */

/* RecordTransactionCommitPrepared */
static void
record_commit(const char *gid, TransactionId xid, int nchildren, TransactionId *children)
{
	TimestampTz now = GetCurrentTimestamp();
	XLogRecPtr	lsn;

	START_CRIT_SECTION();
	MyProc->delayChkptFlags |= DELAY_CHKPT_START;
	lsn = XactLogCommitRecord(now, nchildren, children, 0, NULL, 0, NULL, 0, NULL, false,
							  MyXactFlags | XACT_FLAGS_ACQUIREDACCESSEXCLUSIVELOCK,
							  xid, gid);
	TransactionTreeSetCommitTsData(xid, nchildren, children, now, InvalidRepOriginId);
	XLogSetAsyncXactLSN(lsn);
	mip_note_unflushed(lsn);	/* [told-is-durable] */
	TransactionIdAsyncCommitTree(xid, nchildren, children, lsn);
	MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;
	END_CRIT_SECTION();
}

/*
 * RecordTransactionAbortPrepared. No DELAY_CHKPT_START: a transaction of which clog
 * says nothing has not committed. Hints of it may be on disk before; see
 * entries_of_revived in decide.c.
 */
static void
record_abort(const char *gid, TransactionId xid, int nchildren, TransactionId *children)
{
	XLogRecPtr	lsn;

	START_CRIT_SECTION();
	lsn = XactLogAbortRecord(GetCurrentTimestamp(), nchildren, children, 0, NULL, 0, NULL,
							 MyXactFlags | XACT_FLAGS_ACQUIREDACCESSEXCLUSIVELOCK, xid, gid);
	XLogSetAsyncXactLSN(lsn);

	/*
	 * unlike TransactionIdAbortTree: not on disk before the record, which
	 * others need
	 */
	TransactionIdSetTreeStatus(xid, nchildren, children, TRANSACTION_STATUS_ABORTED, lsn);
	END_CRIT_SECTION();
}

/* ProcessRecords */
static void
run_callbacks(char *at, TransactionId xid, bool commit)
{
	const TwoPhaseCallback *callbacks = commit ? twophase_postcommit_callbacks
		: twophase_postabort_callbacks;

	for (;;)
	{
		TwoPhaseRecordOnDisk *record = (TwoPhaseRecordOnDisk *) at;

		if (record->rmid == TWOPHASE_RM_END_ID)
			break;
		at += MAXALIGN(sizeof(TwoPhaseRecordOnDisk));
		if (callbacks[record->rmid] != NULL)
			callbacks[record->rmid] (xid, record->info, at, record->len);
		at += MAXALIGN(record->len);
	}
	PredicateLockTwoPhaseFinish(xid, commit);
}

/* RemoveGXact */
static void
remove_from_table(GlobalTransaction gxact)
{
	for (int i = 0; i < table->numPrepXacts; i++)
	{
		if (table->prepXacts[i] != gxact)
			continue;
		table->prepXacts[i] = table->prepXacts[--table->numPrepXacts];
		gxact->next = table->freeGXacts;
		table->freeGXacts = gxact;
		return;
	}
}

static void
finish(GlobalTransaction gxact, xl_xact_prepare *state, bool commit)
{
	TransactionId xid = state->xid;
	TransactionId *children = (TransactionId *)
		((char *) state + MAXALIGN(sizeof(xl_xact_prepare)) + MAXALIGN(state->gidlen));
	char	   *records = (char *) children + MAXALIGN(state->nsubxacts * sizeof(TransactionId));

	Assert(LWLockHeldByMeInMode(TwoPhaseStateLock, LW_EXCLUSIVE));
	if (commit)
		record_commit(gxact->gid, xid, state->nsubxacts, children);
	else
		record_abort(gxact->gid, xid, state->nsubxacts, children);
	ProcArrayRemove(GetPGProcByNumber(gxact->pgprocno),
					TransactionIdLatest(xid, state->nsubxacts, children));
	gxact->valid = false;
	PG_TRY();
	{
		run_callbacks(records, xid, commit);
	}
	PG_CATCH();
	{
		/* as AtAbort_Twophase; the lock goes with the transaction */
		remove_from_table(gxact);
		PG_RE_THROW();
	}
	PG_END_TRY();
	remove_from_table(gxact);
}

bool
mip_commits_unflushed(void)
{
	return !synchronous_commit_prepared;
}

static bool
is_possible(void)
{
	return table != NULL &&
		replorigin_session_origin == InvalidRepOriginId &&
		(SyncRepStandbyNames == NULL || SyncRepStandbyNames[0] == '\0');
}

bool
mip_finish_unflushed(const char *gid, bool commit)
{
	xl_xact_prepare *state;
	GlobalTransaction gxact;
	XLogRecPtr	lsn;

	if (!is_possible() || (state = read_state(gid, &lsn)) == NULL)
		return false;

	HOLD_INTERRUPTS();
	LWLockAcquire(TwoPhaseStateLock, LW_EXCLUSIVE);
	gxact = find(gid);
	/* meanwhile a checkpoint may have written it to disk */
	if (gxact && gxact->xid == state->xid && gxact->prepare_start_lsn == lsn)
		finish(gxact, state, commit);
	else
		gxact = NULL;
	LWLockRelease(TwoPhaseStateLock);
	if (gxact)
		AtEOXact_PgStat(commit, false);
	RESUME_INTERRUPTS();
	pfree(state);
	return gxact != NULL;
}
