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
 * A definition, which the caller has been found to be able to execute at position `known`.
 * Waits until it is executed here, and returns its position; 40001 if it is not to be, as
 * there was another one, or rows do not fit; 08007 if that is not known. Nothing has been
 * done in this transaction, nor locked.
 */
extern uint64 mip_publish_definition(const bytea *definition, uint64 known);

#endif							/* MIP_REPLICATION_PUBLISH_H */
