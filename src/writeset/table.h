/*-------------------------------------------------------------------------
 *
 * table.h
 *	  Whole tables: as insertions, and compared by a checksum.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_TABLE_H
#define MIP_WRITESET_TABLE_H

/*
 * Both take the rows that the active snapshot sees, of a table, or of all partitions
 * of a partitioned one. 42501 if the current user may not read them.
 */

/*
 * Calls `put` with writesets that insert them, each of max_bytes at most; 0: one of
 * them. None if there are no rows.
 */
extern void mip_table_writesets(Oid relid, int64 max_bytes,
								void (*put) (struct varlena *writeset, void *arg), void *arg);

/* The same for the same rows, in whatever order rows and columns are. */
extern char *mip_table_checksum(Oid relid);

#endif							/* MIP_WRITESET_TABLE_H */
