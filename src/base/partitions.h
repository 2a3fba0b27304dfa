/*-------------------------------------------------------------------------
 *
 * partitions.h
 *	  What a table or an index is a partition of; what a foreign key refers to.
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

/* The index that a foreign key refers to; the caller has its table locked. */
extern Oid	mip_referenced_index(Oid constraint);

#endif							/* MIP_PARTITIONS_H */
