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
 * That of a message. Its entry's owner is invalid if there is no role of that name, which
 * `owner` is set to. MP030 if the message has none.
 */
extern MipRequest mip_request_decode(const MipMessage *message, const char **owner);

/* Hash of an XID, as in messages */
extern uint64 mip_request_family(const char *xid);

/*
 * Writes the entry of a message that stays, in the transaction that applies it, which has the
 * family lock from then on: a committed one of an instance, or an aborted one of a fence that is
 * to refuse an instance, unless there is one. Instances that are active here are doomed by
 * what is committed elsewhere. Errors out while there is no such role here.
 */
extern void mip_request_apply(const MipMessage *message);

#endif							/* MIP_REPLICATION_REQUEST_H */
