/*-------------------------------------------------------------------------
 *
 * way.h
 *	  Local transactions in the way of what is applied.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_WAY_H
#define MIP_REPLICATION_WAY_H

#include "replication/message.h"
#include "writeset/format.h"

extern void mip_way_init(void);

extern PGDLLEXPORT void mip_way_main(Datum arg);

/*
 * From here on a writeset is being applied: who waits for his verdict, and cannot get a
 * good one any more, has it now, until it is over.
 */
extern void mip_applying_begin(const MipwSet *set);

/* The same for a definition: whoever has begun to change something before that position is to go. */
extern void mip_defining_begin(const MipMessage *message, uint64 position);
extern void mip_applying_end(void);

/*
 * The same for a request that stays, or a fence, until its position is here, whoever commits it: of
 * its family none that waits by now, or begins to, stays.
 */
extern void mip_deciding_begin(const MipMessage *message);

/*
 * Has a transaction that is about to be queued a key in common with what is being applied,
 * and it does not know of it? Or is that a definition, before which it has begun? The caller has the member's lock.
 */
extern bool mip_meets_applying(const MipMessage *message);

/* Meanwhile, whoever this process has to wait for is ended. */
extern void mip_clear_way(bool clear);

#endif							/* MIP_REPLICATION_WAY_H */
