/*-------------------------------------------------------------------------
 *
 * defined.h
 *	  What a definition has left: is it the same at all replicas?
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_DEFINED_H
#define MIP_REPLICATION_DEFINED_H

typedef struct MipDefinedBefore MipDefinedBefore;

/* Before one of its statements is executed */
extern MipDefinedBefore *mip_defined_before(void);

/*
 * Errors out (0A000) unless what has been executed since, in this transaction or subtransaction, leaves
 * the same at all replicas.
 */
extern void mip_check_defined(MipDefinedBefore *before);

/* Is a table older than this transaction? Else a definition has made it, and it has no rows. */
extern bool mip_was_there(Oid relid);

#endif							/* MIP_REPLICATION_DEFINED_H */
