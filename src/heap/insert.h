/*-------------------------------------------------------------------------
 *
 * insert.h
 *	  Inserting an overlay's new version.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_INSERT_H
#define MIP_INSERT_H

#include "executor/tuptable.h"
#include "utils/rel.h"

/*
 * Inserts the version in `slot`, which replaces `base`, as command `cid`, and
 * sets the slot's TID. To be called under a claim on the base version, when the
 * transaction is among its lockers already. Index entries are the executor's.
 */
extern void mip_insert_version(Relation rel, ItemPointer base,
							   TupleTableSlot *slot, CommandId cid);

#endif							/* MIP_INSERT_H */
