/*-------------------------------------------------------------------------
 *
 * plans.h
 *	  Plans that trust the visibility map, and so cannot be used beside
 *	  siblings, or at SERIALIZABLE; and what else is to be done for plans there.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PLANS_H
#define MIP_PLANS_H

#include "executor/execdesc.h"

extern void mip_plans_init(void);

/* May what is now planned scan only an index? The planner's hook asks. */
extern bool mip_may_plan_index_only(void);

/*
 * To be called when a plan is about to run. An index-only scan of a mip table is
 * ERRCODE_T_R_SERIALIZATION_FAILURE once there is an overlay, and at SERIALIZABLE.
 * There a table of which a range of TIDs is scanned, or any TID if it is no mip table,
 * counts as read, and so does a GiST index that is scanned.
 */
extern void mip_check_scans(QueryDesc *desc);

#endif							/* MIP_PLANS_H */
