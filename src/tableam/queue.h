/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  Standing in line for a row version, as heap's code does.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_QUEUE_H
#define MIP_QUEUE_H

#include "storage/itemptr.h"
#include "storage/lockdefs.h"
#include "utils/rel.h"

/*
 * LockTuple for an instance without siblings. Once there are any it gives up
 * and returns false, without the lock.
 */
extern bool mip_queue(Relation rel, ItemPointer tid, LOCKMODE mode);

#endif							/* MIP_QUEUE_H */
