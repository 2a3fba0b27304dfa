/*-------------------------------------------------------------------------
 *
 * aside.h
 *	  Indexes that a replica can do without.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_ASIDE_H
#define MIP_ASIDE_H

#include "utils/rel.h"

/* By such ones rows are found, and told apart: unique btrees, but for those that REINDEX CONCURRENTLY has left behind. */
extern bool mip_index_is_needed(Relation index);

/* Is it one that REINDEX CONCURRENTLY builds, or has left behind? Of a replica's own, whatever it was made from. */
extern bool mip_index_is_of_reindex(Relation index);

/*
 * From the end of this transaction on the index is neither written to nor read from until it is
 * rebuilt (pg_index.indisready, indisvalid). The table gets locked with AccessExclusiveLock.
 */
extern void mip_index_set_aside(Relation rel, Oid indexid, const char *why);

/*
 * Is it a name that REINDEX CONCURRENTLY gives? Each replica has such indexes of its own, for as long as it is under way,
 * and those that it leaves behind where it fails. They are of no constraint, nor the identity, and no definition gives
 * another one such a name.
 */
extern bool mip_name_is_of_reindex(const char *name);

#endif							/* MIP_ASIDE_H */
