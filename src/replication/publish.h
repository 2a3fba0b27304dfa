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

/*
 * A command that defines something: it is tried out (mip_definition_make), and published. Waits
 * until it is executed here, and returns its position; 40001 if something has been changed
 * meanwhile, again and again; 08007 if it is not known what becomes of it. Nothing has been done in
 * this transaction, nor locked.
 */
extern uint64 mip_publish_definition(const char *command);

#endif							/* MIP_REPLICATION_PUBLISH_H */
