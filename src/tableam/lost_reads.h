/*-------------------------------------------------------------------------
 *
 * lost_reads.h
 *	  What a SERIALIZABLE transaction has read, and there was no room to note.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_LOST_READS_H
#define MIP_LOST_READS_H

/* In PG_CATCH, of each statement: a read may be lost by the error under way. */
extern void mip_lost_reads_note(void);

/* Before the transaction is committed or prepared. An error (40001) if one is lost. */
extern void mip_lost_reads_check(void);

extern void mip_lost_reads_at_eoxact(void);

#endif							/* MIP_LOST_READS_H */
