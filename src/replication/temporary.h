/*-------------------------------------------------------------------------
 *
 * temporary.h
 *	  Temporary objects in the way of a definition.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_TEMPORARY_H
#define MIP_REPLICATION_TEMPORARY_H

/*
 * Has all other sessions ended that have a temporary schema, and waits a while for that; what those
 * that are gone have left there is dropped. From then on others fail to create anything there, as long as the definition is
 * executed (mip_applying_end()).
 */
extern void mip_temporary_clear(void);

/* Something has been created, by this session: 40001 if it has a temporary schema, and is not to. */
extern void mip_temporary_check_created(void);

#endif							/* MIP_REPLICATION_TEMPORARY_H */
