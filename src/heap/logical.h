/*-------------------------------------------------------------------------
 *
 * logical.h
 *	  What logical decoding is to see of an instance.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_LOGICAL_H
#define MIP_LOGICAL_H

#include "heap/map.h"

/*
 * For relations that are logically logged, under a claim, when the transaction
 * is among the base version's lockers already.
 */

/*
 * What is to be logged of the base version besides `new` (NULL: a delete), or
 * NULL.
 */
extern HeapTuple mip_logical_identity(Relation rel, ItemPointer base, HeapTuple new);

/* The block that stands for the base version's page; not `other`. */
extern BlockNumber mip_logical_stub(Relation rel, BlockNumber other);

/*
 * Logs that `tuple`, which has just been put on this page, replaces the version
 * at offset `base` of a page that `stub` stands for. In a critical section.
 */
extern XLogRecPtr mip_logical_log_update(Relation rel, Buffer buffer,
										 HeapTuple tuple, OffsetNumber base,
										 HeapTuple identity, BlockNumber stub,
										 const MipMapChange *map);

/* Logs that the base version is deleted. No page changes. */
extern void mip_logical_delete(Relation rel, ItemPointer base, bool changing_part);

/* logical_decode.c */
struct LogicalDecodingContext;
struct XLogRecordBuffer;
extern void mip_logical_decode(struct LogicalDecodingContext *ctx,
							   struct XLogRecordBuffer *buf);

#endif							/* MIP_LOGICAL_H */
