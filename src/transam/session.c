/*-------------------------------------------------------------------------
 *
 * session.c
 *	  What an instance would leave in its session.
 *
 * Connections are shared by requests, and which session has run the winner is
 * chance. So an instance leaves nothing behind, however it ends: SET lasts as
 * long as SET LOCAL, as it does in a transaction that is rolled back; statements
 * of PREPARE go, and so do advisory locks that the session has got. What cannot be
 * taken back is refused: cursors WITH HOLD in guard.c. (DDL, temporary tables
 * included, and LISTEN an instance cannot execute anyhow.)
 *
 * What the session had before, and the instance has taken away, is not given back:
 * statements by DEALLOCATE, which drivers send at any time, and advisory locks,
 * which somebody else may have by now.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/prepare.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "base/locks.h"
#include "transam/session.h"

/* In the transaction's memory */
static List *prepared;			/* names of statements */
static List *locks_before;		/* of MipOwnLock */

void
mip_session_begin(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	prepared = NIL;
	locks_before = mip_own_advisory_locks();
	MemoryContextSwitchTo(old);
}

void
mip_session_note_prepared(const char *name)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	prepared = lappend(prepared, pstrdup(name));
	MemoryContextSwitchTo(old);
}

/* ---- advisory locks ---- */

/* Calls must be made in the order of locks: *i is how far the former ones have come. */
static int64
held_before(const MipOwnLock *lock, int *i)
{
	for (; *i < list_length(locks_before); (*i)++)
	{
		MipOwnLock *before = list_nth(locks_before, *i);
		int			order = mip_compare_own_locks(before, lock);

		if (order >= 0)
			return order == 0 ? before->session : 0;
	}
	return 0;
}

static void
release_locks(void)
{
	ListCell   *lc;
	int			i = 0;

	foreach(lc, mip_own_advisory_locks())
	{
		MipOwnLock *lock = lfirst(lc);

		for (int64 n = held_before(lock, &i); n < lock->session; n++)
			LockRelease(&lock->tag, lock->mode, true);
	}
}

static void
refuse_locks_of_both(void)
{
	const MipOwnLock *object = NULL;	/* its locks are side by side */
	bool		session = false;
	bool		transaction = false;
	ListCell   *lc;

	foreach(lc, mip_own_advisory_locks())
	{
		MipOwnLock *lock = lfirst(lc);

		if (object == NULL || memcmp(&object->tag, &lock->tag, sizeof(LOCKTAG)) != 0)
			session = transaction = false;
		object = lock;
		session |= lock->session > 0;
		transaction |= lock->transaction > 0;
		if (session && transaction)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot prepare an instance with an advisory lock that its session had before"),
					 errdetail("PostgreSQL prepares no transaction with a lock that is its session's, too."),
					 errhint("Release it before mip.begin.")));
	}
}

/*
 * Sooner than in a commit, as PostgreSQL does not prepare a transaction that has a
 * lock which is its session's, too. Nobody can tell: until the instance is decided
 * others see nothing of it, with or without the lock.
 */
void
mip_session_before_prepare(void)
{
	release_locks();
	refuse_locks_of_both();
}

/* ---- settings ---- */

/*
 * As in a transaction that is aborted; PostgreSQL then finds none to keep. But for
 * how the transaction itself was begun: what is left of its end goes by that.
 */
static void
restore_settings(void)
{
	int			isolation = XactIsoLevel;
	bool		read_only = XactReadOnly;
	bool		deferrable = XactDeferrable;

	AtEOXact_GUC(false, 1);
	(void) NewGUCNestLevel();
	XactIsoLevel = isolation;
	XactReadOnly = read_only;
	XactDeferrable = deferrable;
}

/* ---- the end ---- */

/* Those of the protocol stay, by the name of ours, too: they are the driver's. */
static void
drop_statements(void)
{
	ListCell   *lc;

	foreach(lc, prepared)
	{
		PreparedStatement *statement = FetchPreparedStatement(lfirst(lc), false);

		if (statement && statement->from_sql)
			DropPreparedStatement(lfirst(lc), false);
	}
}

void
mip_session_restore(bool kept)
{
	drop_statements();
	release_locks();
	if (kept)
		restore_settings();
}
