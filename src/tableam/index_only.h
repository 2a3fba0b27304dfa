/*-------------------------------------------------------------------------
 *
 * index_only.h
 *	  No scan of an index only where the visibility map is not to be trusted:
 *	  beside siblings, and at SERIALIZABLE.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_INDEX_ONLY_H
#define MIP_INDEX_ONLY_H

#include "executor/execdesc.h"

/* May what is now planned scan only an index? The planner's hook asks. */
extern bool mip_may_plan_index_only(void);

/*
 * To be called before a plan is started. The query gets another one, in the current
 * memory context, where that has an index-only scan of a mip table that must not be:
 * with an index scan instead.
 */
extern void mip_scan_table_too(QueryDesc *desc);

#endif							/* MIP_INDEX_ONLY_H */
