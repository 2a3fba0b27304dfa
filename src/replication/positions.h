/*-------------------------------------------------------------------------
 *
 * positions.h
 *	  How far this replica has followed its log: mip.applied, mip.log.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_POSITIONS_H
#define MIP_REPLICATION_POSITIONS_H

#include "replication/message.h"

typedef struct MipPosition
{
	uint64		position;
	bool		certified;
	bool		left_out;		/* a definition that is certified, and not
								 * executed: in the history only */
	uint64		history;
	uint64		bytes;			/* of transactions and definitions in the log
								 * up to here */
} MipPosition;

/*
 * What the processes share is read from the tables, if nobody has done it since the server
 * started. In a transaction.
 */
extern void mip_positions_load(void);

/* Is it known? It is as of the last position, if 0 is given and there is one. */
extern bool mip_position_find(uint64 position, MipPosition *found);

/* Becomes known when the transaction commits, which does not wait for the flush, unless something is left out. */
extern void mip_position_write(const MipPosition *position);

/* Forgets those up to this one. */
extern void mip_positions_prune(uint64 upto);

/*
 * That member has applied the log up to that position; or, if that is 0, is none any more.
 * In a transaction that receives it.
 */
extern void mip_members_write(const char *member, uint64 applied);

/* What the slowest member has applied, as it has told; 0 if none has. */
extern uint64 mip_members_slowest(void);

/* The settings of the log, if it has been begun to follow one. */
extern bool mip_log_settings(MipLogSettings *settings);
extern void mip_log_write_settings(const MipLogSettings *settings);

#endif							/* MIP_REPLICATION_POSITIONS_H */
