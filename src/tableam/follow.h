/*-------------------------------------------------------------------------
 *
 * follow.h
 *	  Serializable transactions of which PostgreSQL does not record all conflicts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_FOLLOW_H
#define MIP_FOLLOW_H

/*
 * Before a statement of the transaction reads or writes: all of its conflicts are
 * recorded, and kept, also if it is READ ONLY, or has got an XID before its snapshot.
 * One that PostgreSQL does not follow at all stays so.
 */
extern void mip_follow(void);

/*
 * At the end of a transaction that may have finished others: that it has written is
 * known to PostgreSQL. An error (40001) if it must not commit.
 */
extern void mip_follow_write(void);

/* Are the conflicts of a top-level transaction known, and is it not doomed? */
extern bool mip_follows(TransactionId xid);

#endif							/* MIP_FOLLOW_H */
