/*-------------------------------------------------------------------------
 *
 * lost_reads.c
 *	  What a SERIALIZABLE transaction has read, and there was no room to note.
 *
 * A statement that finds no room for a SIREAD lock fails. But its session takes the lock
 * for held (predicate.c sets LOCALPREDICATELOCK.held before it makes the lock): who goes
 * on behind a savepoint, and reads the same again, is not found by its writer. So he
 * cannot be let end well.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "tableam/lost_reads.h"

static bool lost;

/* Other shortages have the same code. What a setting is called is not translated. */
static bool
is_of_sireads(const ErrorData *error)
{
	return error->hint && strstr(error->hint, "max_pred_locks_per_transaction");
}

void
mip_lost_reads_note(void)
{
	MemoryContext context;
	ErrorData  *error;

	if (lost || geterrcode() != ERRCODE_OUT_OF_MEMORY || !IsolationIsSerializable())
		return;
	context = MemoryContextSwitchTo(CurTransactionContext);
	error = CopyErrorData();
	MemoryContextSwitchTo(context);
	lost = is_of_sireads(error);
	FreeErrorData(error);
}

void
mip_lost_reads_check(void)
{
	if (lost)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access, as not all that has been read could be noted"),
				 errdetail("There was no room for that in a statement that a savepoint has undone."),
				 errhint("The transaction might succeed if retried. You might need to increase \"max_pred_locks_per_transaction\".")));
}

void
mip_lost_reads_at_eoxact(void)
{
	lost = false;
}
