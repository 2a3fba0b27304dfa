/*-------------------------------------------------------------------------
 *
 * current.c
 *	  The instance that this backend is executing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"

#include "base/mip.h"
#include "family/current.h"
#include "family/family.h"
#include "family/family_internal.h"

MipMine		mip_mine;

void
mip_doomed_error(void)
{
	Assert(mip_in_transaction() && mip_mine.inst->doomed);
	mip_mine.inst->told++;
	ereport(ERROR,
			(errcode(ERRCODE_MIP_DOOMED),
			 mip_mine.inst->doomed == MIP_DOOMED_GIVEN_UP ?
			 errmsg("this instance has been given up") :
			 errmsg("this instance was ended so that a sibling could be committed"),
			 errdetail("Instance " INT64_FORMAT " of family \"%s\" cannot go on.",
					   mip_mine.xinst, mip_mine.xid),
			 errhint("Read the MIPT with mip.instances: a committed sibling's result is the result of the request. If there is none, retry as a new instance.")));
}

static TransactionId
topmost(TransactionId xid)
{
	/* what precedes every snapshot's xmin is not in progress */
	if (!TransactionIdIsNormal(xid) || TransactionIdPrecedes(xid, TransactionXmin))
		return InvalidTransactionId;
	return SubTransGetTopmostTransaction(xid);
}

/* False outside a MIP transaction. */
bool
mip_xid_is_sibling(TransactionId xid)
{
	TransactionId top;
	bool		result = false;

	if (!mip_in_transaction() || !mip_have_siblings())
		return false;
	top = topmost(xid);
	LWLockAcquire(mip_registry->lock, LW_SHARED);
	mip_foreach_instance(inst, mip_mine.family)
	{
		if (inst != mip_mine.inst && TransactionIdEquals(inst->xid, top))
			result = true;
	}
	LWLockRelease(mip_registry->lock);
	return result;
}

static bool
is_instance(TransactionId xid, bool with_overlay)
{
	TransactionId top = topmost(xid);
	bool		result = false;

	if (mip_registry == NULL)
		return false;
	/* nobody has asked yet what was prepared before the server started */
	if (!mip_registry->rebuilt && TransactionIdIsValid(top) &&
		BackendXidGetPid(top) == 0)
		return true;
	LWLockAcquire(mip_registry->lock, LW_SHARED);
	for (int slot = 0; slot < mip_registry->nslots && !result; slot++)
	{
		MipInstance *inst = &mip_registry->slots[slot];

		result = inst->family && (inst->overlay || !with_overlay) &&
			TransactionIdEquals(inst->xid, top);
	}
	LWLockRelease(mip_registry->lock);
	return result;
}

bool
mip_xid_is_instance(TransactionId xid)
{
	return is_instance(xid, false);
}

bool
mip_xid_may_overlay(TransactionId xid)
{
	return is_instance(xid, true);
}
