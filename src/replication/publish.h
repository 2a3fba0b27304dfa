/*-------------------------------------------------------------------------
 *
 * publish.h
 *	  COMMIT at a replica: the transaction is published, and waits for its verdict.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_PUBLISH_H
#define MIP_REPLICATION_PUBLISH_H

extern void mip_publish_init(void);

/* The position of this session's last commit that was replicated, or 0 */
extern uint64 mip_last_position(void);

#endif							/* MIP_REPLICATION_PUBLISH_H */
