/*-------------------------------------------------------------------------
 *
 * receive.h
 *	  The log as it comes in: certifying and applying.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_RECEIVE_H
#define MIP_REPLICATION_RECEIVE_H

#include "replication/message.h"

typedef struct MipStart
{
	uint64		applied;		/* up to here it has been */
	uint64		read_after;		/* behind this the log is to be read */
} MipStart;

extern void mip_receive_init(void);

/*
 * Makes this session the applier, until it ends, or receives something that is an error.
 * 55006 if another one is; 42501 if the user is no superuser. In the replicated database.
 */
extern MipStart mip_receive_start(void);

/* 55000 if there are any here: neither they nor a database that has some can be replicated. */
extern void mip_receive_check_prepared(void);

/*
 * The log's next message, in a transaction of its own; what has become of it. MP030: this
 * is not the log that has been followed up to here, or this replica is not what the
 * others are. 22023: not the next one; 55000: this session is not the applier; 25001: its
 * transaction has received one already.
 */
extern const char *mip_receive(uint64 position, bytea *bytes);

/*
 * The same for the next ones, of which only those are taken that this replica has applied before: what
 * mip_receive() would only load. How many that were
 */
extern int	mip_receive_known(uint64 position, const Datum *messages, int n);

/* Waits until that position is here. */
extern void mip_wait_for_position(uint64 position);

#endif							/* MIP_REPLICATION_RECEIVE_H */
