/*-------------------------------------------------------------------------
 *
 * take.h
 *	  Messages of transactions at their COMMIT, for who takes them to the log.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_TAKE_H
#define MIP_REPLICATION_TAKE_H

#include "replication/message.h"

extern void mip_take_init(void);

/*
 * Calls `put` for those that nobody has taken yet, or whose taker may be gone, in the order
 * in which they came, up to so many bytes, but for one at least; waits so long for the first.
 * Whose message is longer than `max_message` is refused.
 */
extern void mip_take(int64 max_bytes, int timeout_ms, int64 max_message,
					 void (*put) (const MipMessageId *id, bytea *message, void *arg), void *arg);

#endif							/* MIP_REPLICATION_TAKE_H */
