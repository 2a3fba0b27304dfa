/*-------------------------------------------------------------------------
 *
 * partitions.h
 *	  What a table or an index is a partition of.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PARTITIONS_H
#define MIP_PARTITIONS_H

#include "nodes/pg_list.h"

/*
 * The nearest first; also while somebody detaches it concurrently, who waits for all
 * that have found it attached. REINDEX CONCURRENTLY may put another index in the place of
 * this one meanwhile: it is nobody's then.
 */
extern List *mip_partition_ancestors(Oid relid);

/* The farthest of them; itself if there is none. */
extern Oid	mip_partition_topmost(Oid relid);

#endif							/* MIP_PARTITIONS_H */
