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

#include "tableam/lost_reads.h"

static bool lost;

/* Other shortages have the same code; they are as rare, and a retry is as right. */
void
mip_lost_reads_note(void)
{
	if (geterrcode() == ERRCODE_OUT_OF_MEMORY && IsolationIsSerializable())
		lost = true;
}

void
mip_lost_reads_check(void)
{
	if (lost)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access, as not all that has been read could be noted"),
				 errdetail("Memory was short for a statement that a savepoint has undone."),
				 errhint("The transaction might succeed if retried. You might need to increase \"max_pred_locks_per_transaction\".")));
}

void
mip_lost_reads_at_eoxact(void)
{
	lost = false;
}
