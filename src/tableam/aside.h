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

/* By such ones rows are found, and told apart: unique btrees. */
extern bool mip_index_is_needed(Relation index);

/*
 * From the end of this transaction on the index is neither written to nor read from until it is
 * rebuilt (pg_index.indisready, indisvalid). The table gets locked with AccessExclusiveLock.
 */
extern void mip_index_set_aside(Relation rel, Oid indexid, const char *why);

#endif							/* MIP_ASIDE_H */
