/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Deadlocks that pass through a prepared sibling.
 *
 * An outsider U waits for our prepared sibling T. T ends when one of the
 * family is committed, perhaps us. If we now waited for U, nobody would ever
 * move, and PostgreSQL's detector sees no cycle, since T itself waits for
 * nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "deadlock.h"
#include "instance.h"
#include "access/subtrans.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"

/*
 * Looks at the lock that backend `pid` waits for. True if a sibling is
 * involved; adds the pids of those it waits for to `pids`.
 */
static bool
waits_for_sibling(int pid, List **pids)
{
	BlockedProcsData *data = GetBlockerStatusData(pid);

	for (int i = 0; i < data->nprocs; i++)
	{
		BlockedProcData *proc = &data->procs[i];

		for (int j = 0; j < proc->num_locks; j++)
		{
			LockInstanceData *lock = &data->locks[proc->first_lock + j];

			if (lock->locktag.locktag_type == LOCKTAG_TRANSACTION &&
				mip_xid_is_sibling(lock->locktag.locktag_field1))
				return true;
			if (lock->pid != 0 && lock->holdMask != 0)
				*pids = list_append_unique_int(*pids, lock->pid);
		}
		for (int j = 0; j < proc->num_waiters; j++)
			*pids = list_append_unique_int(*pids,
										   data->waiter_pids[proc->first_waiter + j]);
	}
	return false;
}

void
mip_check_deadlock(TransactionId xid)
{
	TransactionId top;
	int			pid;
	List	   *pids;

	if (!mip_in_transaction() || !mip_have_siblings())
		return;
	if (TransactionIdPrecedes(xid, TransactionXmin))
		return;
	top = SubTransGetTopmostTransaction(xid);
	pid = BackendXidGetPid(top);
	if (pid == 0)
		return;
	pids = list_make1_int(pid);
	for (int i = 0; i < list_length(pids); i++)
	{
		if (waits_for_sibling(list_nth_int(pids, i), &pids))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected"),
					 errdetail("Transaction %u waits for an instance of the same family as this one.",
							   xid),
					 errhint("Retry the request as a new instance after the family has been decided.")));
	}
	list_free(pids);
}
