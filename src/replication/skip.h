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

/* It is executed no more, and may not have come to its end. The caller has the member's lock exclusively. */
extern void mip_definition_undone(void);

/*
 * When it comes to that position again it leaves it out. 55000 unless it has failed there, or nobody applies and it is the
 * next one. In a transaction.
 */
extern void mip_definition_skip(uint64 position);

extern bool mip_definition_is_skipped(uint64 position);

#endif							/* MIP_REPLICATION_SKIP_H */
