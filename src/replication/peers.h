/*-------------------------------------------------------------------------
 *
 * peers.h
 *	  The members of a replicated site, and how far they are.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_PEERS_H
#define MIP_REPLICATION_PEERS_H

#include "replication/message.h"

extern void mip_peers_init(void);

/*
 * For whoever takes messages to the log: what this member has to tell of itself, or that
 * another one has left; NULL if there is nothing to be told now. Flushes WAL.
 */
extern bytea *mip_peers_tell(MipMessageId *id);

/* Another member is not one any more, and is to tell of itself if it is to be one again. */
extern void mip_peers_leave(const char *member);

/* What such a message says */
typedef struct MipNews
{
	char		member[NAMEDATALEN];
	uint64		applied;		/* 0: it has left */
} MipNews;

extern bool mip_is_news(const MipMessage *message);

/* In the transaction that receives it; to be told to all processes when that has committed. */
extern MipNews mip_peers_receive(const MipMessage *message);
extern void mip_peers_received(const MipNews *news);

/* The position up to which no member needs the log any more, nor one that is joining. */
extern uint64 mip_peers_trim(void);

/* Waits a little if a member is behind by mip.flow_control; 53400 if by twice as much. */
extern void mip_peers_slow_down(void);

#endif							/* MIP_REPLICATION_PEERS_H */
