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

#include "base/rows.h"
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

void
mip_temporary_clear(void)
{
	for (int waited = 0; end_sessions() && waited < PATIENCE_MS; waited += NAP_MS)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(NAP_MS * 1000L);
	}
	mip_each_row(NamespaceRelationId, empty_schema, NULL);
	CommandCounterIncrement();
}
