/*-------------------------------------------------------------------------
 *
 * am.h
 *	  Which tables are mip tables, and the routine that ours wraps.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_AM_H
#define MIP_AM_H

#include "access/heapam.h"
#include "access/tableam.h"
#include "utils/rel.h"

/* Ours; tableam.c fills it in. */
extern TableAmRoutine mip_routine;

/* Heap's. */
static inline const TableAmRoutine *
mip_heap(void)
{
	return GetHeapamTableAmRoutine();
}

static inline bool
mip_relation_is_mip(Relation rel)
{
	return rel->rd_tableam == &mip_routine;
}

#endif							/* MIP_AM_H */
