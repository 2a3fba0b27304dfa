/*-------------------------------------------------------------------------
 *
 * request.h
 *	  What replicas tell each other of requests: entries of the MIPT in messages.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_REQUEST_H
#define MIP_REPLICATION_REQUEST_H

#include "mipt/entry.h"
#include "replication/message.h"

typedef struct MipRequest
{
	const char *xid;
	const MiptEntry *entry;		/* NULL: of none */
} MipRequest;

/*
 * A body. `begun`: the position up to which the instance knew its family when it began;
 * 0 of a fence. `writeset`: what it has changed; NULL of a fence.
 */
extern bytea *mip_request_encode(const MipRequest *request, uint64 begun, const bytea *writeset);

/*
 * Writes the entry of a message that stays, in the transaction that applies it, which has the
 * family lock from then on: a committed one of an instance, or an aborted one of a fence that is
 * to refuse an instance, unless there is one. Instances that are active here are doomed by
 * what is committed elsewhere. Errors out while there is no such role here; MP030 if the message has no request.
 */
extern void mip_request_apply(const MipMessage *message);

#endif							/* MIP_REPLICATION_REQUEST_H */
