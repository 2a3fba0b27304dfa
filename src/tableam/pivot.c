/*-------------------------------------------------------------------------
 *
 * pivot.c
 *	  Who fails at SERIALIZABLE because of an instance in doubt is told so.
 *
 * A transaction that is prepared cannot be made to fail any more. So whoever
 * would complete a dangerous structure with it fails himself, and so does his
 * retry, for as long as it is in doubt: also beside readers that have long
 * committed, since nothing that was concurrent with it is forgotten until then.
 * PostgreSQL's error does not say for how long. Here it gets a second line, with
 * the family's XID, which is for its owner only; it names mip.in_doubt as its table,
 * so that programs can tell it from other failures; and the family is pushed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/predicate.h"
#include "storage/predicate_internals.h"

#include "access/xact.h"
#include "base/compat.h"
#include "family/family.h"
#include "tableam/pivot.h"
#include "tableam/predicate.h"

#define HINT			"Retry the transaction after a pause. What is in doubt stands in mip.in_doubt."

static bool
is_over(const SERIALIZABLEXACT *sxact)
{
	return (sxact->flags & (SXACT_FLAG_COMMITTED | SXACT_FLAG_DOOMED)) != 0;
}

/* As OnConflict_CheckForSerializationFailure: the prepared one that makes `mine` a pivot */
static TransactionId
behind(SERIALIZABLEXACT *mine)
{
	RWConflict	conflict = NULL;

	while ((conflict = MIP_LIST_NEXT(RWConflictData, outLink, &mine->outConflicts, conflict)) != NULL)
	{
		if (conflict->sxactIn->flags & SXACT_FLAG_PREPARED)
			return is_over(conflict->sxactIn) ? InvalidTransactionId : conflict->sxactIn->topXid;
	}
	return InvalidTransactionId;
}

static bool
is_pivot_before(SERIALIZABLEXACT *sxact, const SERIALIZABLEXACT *mine)
{
	RWConflict	conflict = NULL;

	while ((conflict = MIP_LIST_NEXT(RWConflictData, inLink, &sxact->inConflicts, conflict)) != NULL)
	{
		SERIALIZABLEXACT *reader = conflict->sxactOut;

		if (reader == mine || !(is_over(reader) || (reader->flags & SXACT_FLAG_READ_ONLY)))
			return true;
	}
	return false;
}

/* As PreCommit_CheckForSerializationFailure: the prepared pivot that forbids `mine` to end */
static TransactionId
before(SERIALIZABLEXACT *mine)
{
	RWConflict	conflict = NULL;

	while ((conflict = MIP_LIST_NEXT(RWConflictData, inLink, &mine->inConflicts, conflict)) != NULL)
	{
		SERIALIZABLEXACT *pivot = conflict->sxactOut;

		if ((pivot->flags & SXACT_FLAG_PREPARED) && !is_over(pivot) && is_pivot_before(pivot, mine))
			return pivot->topXid;
	}
	return InvalidTransactionId;
}

static TransactionId
look(TransactionId (*where) (SERIALIZABLEXACT *mine))
{
	SERIALIZABLEXACT *mine = ShareSerializableXact();
	TransactionId found;

	if (mine == NULL)
		return InvalidTransactionId;
	LWLockAcquire(SerializableXactHashLock, LW_SHARED);
	found = where(mine);
	LWLockRelease(SerializableXactHashLock);
	return found;
}

/* Whom does PostgreSQL mean by its reason? It is not translated. */
static TransactionId
find_culprit(const char *reason)
{
	TransactionId xid;

	/* it holds this where the transaction in the way is over, and summarized */
	if (reason == NULL || LWLockHeldByMe(SerializableXactHashLock))
		return InvalidTransactionId;
	if (sscanf(reason, "Reason code: Canceled on conflict out to pivot %u", &xid) == 1)
		return xid;
	if (strcmp(reason, "Reason code: Canceled on conflict out to old pivot.") == 0)
		return mip_predicate_name_summaries();
	if (strcmp(reason, "Reason code: Canceled on identification as a pivot, during write.") == 0)
		return look(behind);
	return InvalidTransactionId;
}

char *
mip_pivot_name(const MipLiving *in_doubt)
{
	if (in_doubt->owner == GetUserId())
		return psprintf("Instance " INT64_FORMAT " of family \"%s\"", in_doubt->xinst, in_doubt->xid);
	return pstrdup("An instance of a request of another role");
}

/* The second line */
static char *
describe(const MipLiving *found)
{
	return psprintf("%s is in doubt: a transaction like this one may fail again until that is decided.",
					mip_pivot_name(found));
}

/* A statement that others have called passes it on to them. */
static bool
is_told(const ErrorData *error)
{
	return error->schema_name && strcmp(error->schema_name, IN_DOUBT_SCHEMA) == 0 &&
		error->table_name && strcmp(error->table_name, IN_DOUBT_TABLE) == 0;
}

void
mip_pivot_explain(MemoryContext context)
{
	MemoryContext old;
	ErrorData  *error;
	MipLiving	found;

	if (geterrcode() != ERRCODE_T_R_SERIALIZATION_FAILURE || !IsolationIsSerializable())
		return;
	old = MemoryContextSwitchTo(context);
	error = CopyErrorData();
	if (is_told(error) || !mip_press(find_culprit(error->detail), &found))
	{
		FreeErrorData(error);
		MemoryContextSwitchTo(old);
		return;
	}
	FlushErrorState();
	error->detail = psprintf("%s\n%s", error->detail, describe(&found));
	error->hint = pstrdup(HINT);
	error->schema_name = pstrdup(IN_DOUBT_SCHEMA);
	error->table_name = pstrdup(IN_DOUBT_TABLE);
	ReThrowError(error);
}

void
mip_pivot_check_end(void)
{
	MipLiving	found;

	if (!IsolationIsSerializable() || !mip_press(look(before), &found))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to read/write dependencies among transactions"),
			 errdetail_internal("Reason code: Canceled on commit attempt with conflict in from prepared pivot.\n%s",
								describe(&found)),
			 errhint(HINT),
			 err_generic_string(PG_DIAG_SCHEMA_NAME, IN_DOUBT_SCHEMA),
			 err_generic_string(PG_DIAG_TABLE_NAME, IN_DOUBT_TABLE)));
}
