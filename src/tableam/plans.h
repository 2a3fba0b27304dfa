/*-------------------------------------------------------------------------
 *
 * plans.h
 *	  Plans that trust the visibility map, and so cannot be used beside
 *	  siblings, or at SERIALIZABLE.
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
 */
extern void mip_distrust_visibility_map(QueryDesc *desc);

#endif							/* MIP_PLANS_H */
