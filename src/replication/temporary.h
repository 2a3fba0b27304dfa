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
 * that are gone have left there is dropped.
 */
extern void mip_temporary_clear(void);

#endif							/* MIP_REPLICATION_TEMPORARY_H */
