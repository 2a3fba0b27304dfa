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
 * Before a statement of the transaction reads or writes, and before its end, for none may
 * have come farther than to a snapshot: if it has got its XID before its snapshot, as by
 * LOCK TABLE, PostgreSQL does not find it by that. Readers would not know whose version it
 * is that they do not see; and once it is prepared its end would leave it as it is, for
 * ever.
 */
extern void mip_follow_early_writer(void);

/*
 * Before a statement of the transaction reads: all of its conflicts are recorded, and
 * kept, also if it is READ ONLY. One that PostgreSQL does not follow at all stays so.
 */
extern void mip_follow_reader(void);

/*
 * At the end of a transaction that may have finished others: that it has written is
 * known to PostgreSQL. An error (40001) if it must not commit.
 */
extern void mip_follow_write(void);

/* Are the conflicts of a top-level transaction known, and is it not doomed? */
extern bool mip_follows(TransactionId xid);

#endif							/* MIP_FOLLOW_H */
