/*-------------------------------------------------------------------------
 *
 * temporary.c
 *	  Temporary objects in the way of a definition.
 *
 * What is temporary here may depend on what all replicas change, and keeps it as it is: a view
 * of a table, a function that has it for an argument. It comes after what is ordered. With
 * its session it goes, whatever it is; unless the server has crashed: then it stays until somebody
 * has the schema for his own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "miscadmin.h"
#include "storage/proc.h"

#include "base/owner.h"
#include "base/rows.h"
#include "replication/member.h"
#include "replication/temporary.h"

/* For so long it is waited for, in ms, and looked so often. */
#define PATIENCE_MS	2000
#define NAP_MS		10

/* Is there one yet? */
static bool
end_sessions(void)
{
	bool		found = false;

	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		const PGPROC *proc = &ProcGlobal->allProcs[i];

		if (proc != MyProc && proc->pid != 0 && proc->databaseId == MyDatabaseId &&
			OidIsValid(proc->tempNamespaceId))
			found |= kill(proc->pid, SIGTERM) == 0;
	}
	return found;
}

static bool
is_left_behind(Oid schema)
{
	return checkTempNamespaceStatus(schema) == TEMP_NAMESPACE_IDLE;
}

/* Somebody may come to have it meanwhile, which he tells before he has anything there. */
static void
empty_schema(Relation schemas, HeapTuple row, void *arg)
{
	Form_pg_namespace form = (Form_pg_namespace) GETSTRUCT(row);
	ObjectAddress schema = {NamespaceRelationId, form->oid, 0};

	if (strncmp(NameStr(form->nspname), "pg_temp_", 8) != 0 || !is_left_behind(form->oid))
		return;
	performDeletion(&schema, DROP_CASCADE,
					PERFORM_DELETION_INTERNAL | PERFORM_DELETION_QUIETLY |
					PERFORM_DELETION_SKIP_ORIGINAL | PERFORM_DELETION_SKIP_EXTENSIONS);
	if (!is_left_behind(form->oid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("schema \"%s\" has become that of another session", NameStr(form->nspname))));
}

/* Until the position is done, or given up: mip_applying_end() */
static void
keep_others_away(void)
{
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	mip_member->keeps_temporary_away = true;
	LWLockRelease(mip_member->lock);
}

void
mip_temporary_clear(void)
{
	keep_others_away();
	for (int waited = 0; end_sessions() && waited < PATIENCE_MS; waited += NAP_MS)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(NAP_MS * 1000L);
	}
	mip_each_row(NamespaceRelationId, empty_schema, NULL);
	CommandCounterIncrement();
}

/* Whoever has told that he has a schema before this is asked is ended; who has not is told here. */
void
mip_temporary_check_created(void)
{
	bool		away;

	if (!mip_has_temporary_schema())
		return;
	LWLockAcquire(mip_member->lock, LW_SHARED);
	away = mip_member->keeps_temporary_away && mip_member->applier != MyProcPid;
	LWLockRelease(mip_member->lock);
	if (away)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("nothing temporary can be created while a definition of all replicas is executed"),
				 errdetail("Something of that kind has been in its way."),
				 errhint("Try again.")));
}
