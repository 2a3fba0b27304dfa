/*-------------------------------------------------------------------------
 *
 * skip.h
 *	  Definitions that fail at this replica, and are left out.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_SKIP_H
#define MIP_REPLICATION_SKIP_H

/* The one that is being executed has failed; how often in a row, by now. */
extern uint32 mip_definition_failed(void);

/* It has not: from now on it cannot be left out. 55000 if it is to be, since it was begun. */
extern void mip_definition_executed(uint64 position);

/* When it comes to that position again it leaves it out. 55000 unless it has failed there. */
extern void mip_definition_skip(uint64 position);

extern bool mip_definition_is_skipped(uint64 position);

#endif							/* MIP_REPLICATION_SKIP_H */
