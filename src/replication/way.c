/*-------------------------------------------------------------------------
 *
 * way.c
 *	  Local transactions in the way of what is applied.
 *
 * What is ordered comes before them, so they have to go. Who waits for his verdict, or
 * begins to while it is being applied, and has a key in common with it would be refused
 * once it is his turn, and is so at once. Others run yet, or have no more than a lock in common: they are found when they
 * are waited for. The applier waits as anybody does, for whatever it may be; a timer
 * tells a background worker, which looks at the lock table, and ends them as a standby
 * ends what is in the way of its WAL: 40001, and whose transaction is idle loses
 * its session.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "storage/procsignal.h"
#include "utils/elog.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/locks.h"
#include "replication/member.h"
#include "replication/skip.h"
#include "replication/way.h"
#include "workers/worker.h"

/* So long waits the applier before it has somebody ended, and between two looks. */
#define PATIENCE_MS		5

/*
 * Who reads from, or writes to, his client, or catches errors, does not see that his statement
 * is to end. After so long his session is ended.
 */
#define LAST_PATIENCE_MS	200

/* It is woken when there is something to do. */
#define LONGEST_NAP_MS	(60 * 1000L)

static TimeoutId timer = MAX_TIMEOUTS;
static emit_log_hook_type prev_emit_log_hook;

/* ---- who waits for his verdict ---- */

static bool
waits(const MipCommit *commit)
{
	return commit->state == MIP_COMMIT_QUEUED || commit->state == MIP_COMMIT_TAKEN;
}

/* Of a writeset that has been made, or looked at, before */
static void
decode(const uint8 *bytes, Size length, MipwSet *set)
{
	if (mipw_decode(bytes, length, palloc, set) != NULL)
		elog(ERROR, "a writeset in the memory of this server is damaged");
}

static bool
is_of_family(const MipMessage *message, uint64 family)
{
	return message->kind == MIP_MESSAGE_REQUEST && message->family == family;
}

static bool
is_in_conflict(const MipMessage *message, const void *set)
{
	MipwSet		other;

	if (message->writeset == NULL)
		return false;
	decode(message->writeset, message->writeset_length, &other);
	return mipw_conflict(set, &other);
}

static bool
is_another(const MipMessage *waiting, const void *message)
{
	return !mip_same_id(&waiting->id, &((const MipMessage *) message)->id);
}

/* A fence has changed nothing, and stays. */
static bool
may_have_changed(const MipMessage *waiting)
{
	return waiting->kind != MIP_MESSAGE_FENCE;
}

static bool
has_changed_before(const MipMessage *waiting, const void *message)
{
	return is_another(waiting, message) && may_have_changed(waiting);
}

static bool
is_sibling(const MipMessage *waiting, const void *message)
{
	return is_another(waiting, message) && is_of_family(waiting, ((const MipMessage *) message)->family);
}

/* With the member's lock */
static void
refuse_waiting(bool (*has_to_go) (const MipMessage *waiting, const void *what), const void *what)
{
	for (int i = 0; i < mip_member->ncommits; i++)
	{
		MipCommit  *commit = &mip_member->commits[i];
		MipMessage	message;

		if (!waits(commit))
			continue;
		message = mip_message_of(dsa_get_address(mip_member_memory(), commit->message), commit->length);
		if (has_to_go(&message, what))
			mip_commit_set(commit, MIP_COMMIT_REFUSED);
	}
}

void
mip_applying_begin(const MipwSet *set)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pg_mip in the way",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	dsa_area   *memory = mip_member_memory();
	dsa_pointer copy = dsa_allocate_extended(memory, set->length, DSA_ALLOC_HUGE);

	memcpy(dsa_get_address(memory, copy), set->bytes, set->length);
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	Assert(!DsaPointerIsValid(mip_member->applying));
	mip_member->applying = copy;
	mip_member->applying_length = set->length;
	refuse_waiting(is_in_conflict, set);
	LWLockRelease(mip_member->lock);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}

/* All but the one who waits for it: they have made their changes before it. */
void
mip_defining_begin(const MipMessage *message, uint64 position)
{
	(void) mip_member_memory();
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_member->defining = position;
	refuse_waiting(has_changed_before, message);
	LWLockRelease(mip_member->lock);
}

/* Before they are doomed, which would interrupt them: then they would not know. */
void
mip_deciding_begin(const MipMessage *message)
{
	(void) mip_member_memory();
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_member->deciding = message->family;
	refuse_waiting(is_sibling, message);
	LWLockRelease(mip_member->lock);
}

void
mip_applying_end(void)
{
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_definition_undone();
	mip_member->keeps_temporary_away = false;
	mip_member->defining = mip_member->deciding = 0;
	if (DsaPointerIsValid(mip_member->applying))
		dsa_free(mip_member_memory(), mip_member->applying);
	mip_member->applying = InvalidDsaPointer;
	LWLockRelease(mip_member->lock);
}

bool
mip_meets_applying(const MipMessage *message)
{
	MipwSet		set;

	Assert(LWLockHeldByMe(mip_member->lock));
	if ((may_have_changed(message) && message->first < mip_member->defining) || is_of_family(message, mip_member->deciding))
		return true;
	if (!DsaPointerIsValid(mip_member->applying) || mip_member->applied > message->snapshot)
		return false;
	decode(dsa_get_address(mip_member_memory(), mip_member->applying), mip_member->applying_length, &set);
	return is_in_conflict(message, &set);
}

/* ---- who is waited for ---- */

/* In a signal handler, which a session that ends keeps for as long as its process does, longer than its PGPROC. */
static void
tell_watcher(void)
{
	Latch	   *watcher = mip_member->watcher;

	if (MyProc != NULL && MyProc->waitStatus == PROC_WAIT_STATUS_WAITING && watcher != NULL)
		SetLatch(watcher);
}

void
mip_clear_way(bool clear)
{
	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, tell_watcher);
	if (clear)
		enable_timeout_every(timer, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PATIENCE_MS),
							 PATIENCE_MS);
	else
		disable_timeout(timer, false);
}

/* ---- the watcher ---- */

/* With the member's lock. It is counted once, however often it has to be told. */
static void
end_running(MipCommit *commit, const LockInstanceData *entry, bool session)
{
	VirtualTransactionId vxid = mip_entry_vxid(entry);

	if (CancelVirtualTransaction(vxid, PROCSIG_RECOVERY_CONFLICT_LOCK) != entry->pid)
		return;
	mip_member->counters[MIP_REPLICATION_ENDED] += !VirtualTransactionIdEquals(vxid, commit->ended);
	commit->ended = vxid;
	if (session)
		(void) kill(entry->pid, SIGTERM);
}

/*
 * Ends a transaction. If it is at its COMMIT, and may be in the log, it is known there whether it
 * stays, and not here. With the lock, so that it does not get there meanwhile.
 */
static void
end_transaction(const LockInstanceData *entry, bool session)
{
	PGPROC	   *proc = BackendPidGetProc(entry->pid);
	MipCommit  *commit;

	if (proc == NULL || mip_proc_number(proc) >= mip_member->ncommits)
		return;
	commit = &mip_member->commits[mip_proc_number(proc)];
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	if (waits(commit))
		mip_commit_set(commit, commit->state == MIP_COMMIT_QUEUED ? MIP_COMMIT_REFUSED : MIP_COMMIT_IN_THE_WAY);
	else if (commit->state == MIP_COMMIT_NONE)
		end_running(commit, entry, session);
	LWLockRelease(mip_member->lock);
}

/* What the applier waits for, or NULL */
static const LockInstanceData *
find_wait(const LockData *locks, int applier)
{
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *entry = &locks->locks[i];

		if (entry->pid == applier && entry->waitLockMode != NoLock)
			return entry;
	}
	return NULL;
}

static void
clear_way_of(int applier)
{
	LockData   *locks = GetLockStatusData();
	const LockInstanceData *wait = find_wait(locks, applier);

	for (int i = 0; wait && i < locks->nelements; i++)
	{
		const LockInstanceData *entry = &locks->locks[i];

		if (entry != wait && entry->pid != 0 && entry->pid != applier &&
			mip_same_lock(entry, wait) && mip_lock_blocks(locks, entry, wait))
			end_transaction(entry, wait->waitStart != 0 &&
							TimestampDifferenceExceeds(wait->waitStart, GetCurrentTimestamp(),
													   LAST_PATIENCE_MS));
	}
}

static void
set_watcher(Latch *latch)
{
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_member->watcher = latch;
	LWLockRelease(mip_member->lock);
}

static void
leave(int code, Datum arg)
{
	set_watcher(NULL);
}

static int
applier_pid(void)
{
	int			pid;

	LWLockAcquire(mip_member->lock, LW_SHARED);
	pid = mip_member->applier;
	LWLockRelease(mip_member->lock);
	return pid;
}

void
mip_way_main(Datum arg)
{
	MemoryContext context;

	mip_worker_listen();
	before_shmem_exit(leave, (Datum) 0);
	set_watcher(MyLatch);
	context = AllocSetContextCreate(TopMemoryContext, "pg_mip in the way", ALLOCSET_DEFAULT_SIZES);
	while (!ShutdownRequestPending)
	{
		int			applier;

		(void) mip_worker_wait(LONGEST_NAP_MS);
		applier = applier_pid();
		MemoryContextSwitchTo(context);
		if (applier != 0)
			clear_way_of(applier);
		MemoryContextReset(context);
	}
	proc_exit(1);				/* comes back if the server stays */
}

/* ---- what they are told ---- */

/* Of a standby's conflicts there are none here. */
static const char *
told_instead(const ErrorData *edata)
{
	if (edata->message_id == NULL || edata->sqlerrcode != ERRCODE_T_R_SERIALIZATION_FAILURE)
		return NULL;
	if (strcmp(edata->message_id, "canceling statement due to conflict with recovery") == 0)
		return "canceling statement due to a concurrent update at another replica";
	if (strcmp(edata->message_id, "terminating connection due to conflict with recovery") == 0)
		return "terminating connection due to a concurrent update at another replica";
	return NULL;
}

static void
emit_log(ErrorData *edata)
{
	const char *told = edata->elevel >= ERROR && mip_is_replicated() ? told_instead(edata) : NULL;

	if (told && !RecoveryInProgress())
	{
		edata->message = MemoryContextStrdup(edata->assoc_context, told);
		edata->detail = MemoryContextStrdup(edata->assoc_context,
											"The transaction was in the way of one that comes before it.");
		edata->hint = MemoryContextStrdup(edata->assoc_context,
										  "The transaction might succeed if retried.");
	}
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

void
mip_way_init(void)
{
	BackgroundWorker worker;

	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = emit_log;
	mip_worker_describe(&worker, "pg_mip replication", "mip_way_main", BGWORKER_SHMEM_ACCESS);
	RegisterBackgroundWorker(&worker);
}
