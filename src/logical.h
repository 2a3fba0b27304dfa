/*-------------------------------------------------------------------------
 *
 * logical.h
 *	  What logical decoding is to see of an instance.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_LOGICAL_H
#define MIP_LOGICAL_H

#include "executor/tuptable.h"
#include "utils/rel.h"

/*
 * For relations that are logically logged. Both are to be called under a
 * claim, when the transaction is among the base version's lockers already.
 * The first inserts the overlay's new version, like tuple_insert.
 */
extern void mip_logical_update(Relation rel, ItemPointer base,
							   TupleTableSlot *slot, CommandId cid);
extern void mip_logical_delete(Relation rel, ItemPointer base, bool changing_part);

/* logical_decode.c */
struct LogicalDecodingContext;
struct XLogRecordBuffer;
extern void mip_logical_decode(struct LogicalDecodingContext *ctx,
							   struct XLogRecordBuffer *buf);

#endif							/* MIP_LOGICAL_H */
