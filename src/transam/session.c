/*-------------------------------------------------------------------------
 *
 * session.c
 *	  What an instance would leave in its session.
 *
 * Connections are shared by requests, and which session has run the winner is
 * chance. So an instance leaves nothing behind, however it ends: SET lasts as
 * long as SET LOCAL, as it does in a transaction that is rolled back; PREPAREd
 * statements go; and what cannot be taken back is refused: advisory locks of the
 * session here, cursors WITH HOLD in guard.c. (DDL, temporary tables included,
 * and LISTEN an instance cannot execute anyhow.)
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "commands/prepare.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "base/mip.h"
#include "family/current.h"
#include "transam/session.h"

static object_access_hook_type prev_object_access;

/* Names of statements, in the transaction's memory */
static List *prepared;

void
mip_session_note_prepared(const char *name)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	prepared = lappend(prepared, pstrdup(name));
	MemoryContextSwitchTo(old);
}

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

void
mip_session_restore(bool kept)
{
	ListCell   *lc;

	foreach(lc, prepared)
		DropPreparedStatement(lfirst(lc), false);
	prepared = NIL;
	if (kept)
		restore_settings();
}

static bool
locks_for_session(Oid function)
{
	switch (function)
	{
		case F_PG_ADVISORY_LOCK_INT8:
		case F_PG_ADVISORY_LOCK_INT4_INT4:
		case F_PG_ADVISORY_LOCK_SHARED_INT8:
		case F_PG_ADVISORY_LOCK_SHARED_INT4_INT4:
		case F_PG_TRY_ADVISORY_LOCK_INT8:
		case F_PG_TRY_ADVISORY_LOCK_INT4_INT4:
		case F_PG_TRY_ADVISORY_LOCK_SHARED_INT8:
		case F_PG_TRY_ADVISORY_LOCK_SHARED_INT4_INT4:
			return true;
		default:
			return false;
	}
}

static void
mip_object_access(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class, object, sub, arg);
	if (access == OAT_FUNCTION_EXECUTE && mip_in_transaction() && locks_for_session(object))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("cannot take an advisory lock of the session in a MIP transaction"),
				 errdetail("It would outlast the transaction, whatever becomes of that."),
				 errhint("Use pg_advisory_xact_lock.")));
}

void
mip_session_init(void)
{
	prev_object_access = object_access_hook;
	object_access_hook = mip_object_access;
}
