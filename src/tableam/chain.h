/*-------------------------------------------------------------------------
 *
 * chain.h
 *	  Going along a row's versions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_CHAIN_H
#define MIP_CHAIN_H

#include "access/tableam.h"
#include "nodes/lockoptions.h"
#include "utils/rel.h"

/*
 * Takes the key share lock that this instance has on `tid` on the versions
 * that outsiders' updates have made of it, too. TM_Updated, TM_Deleted, with
 * *tmfd for `tid`: one of them has got another key, or is deleted; TM_WouldBlock:
 * SKIP LOCKED.
 */
extern TM_Result mip_lock_later_versions(Relation rel, ItemPointer tid,
										 LockWaitPolicy policy,
										 TM_FailureData *tmfd);

/*
 * The version after an updated one. TM_Ok: *tid is to be locked next;
 * TM_Deleted, TM_SelfModified: the end of the chain, as heap reports it.
 */
extern TM_Result mip_next_version(Relation rel, ItemPointer tid, CommandId cid,
								  TM_FailureData *tmfd);

#endif							/* MIP_CHAIN_H */
