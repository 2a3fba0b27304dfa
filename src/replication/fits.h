/*-------------------------------------------------------------------------
 *
 * fits.h
 *	  Rows that do not fit into indexes, wherever these are, are not written.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_FITS_H
#define MIP_REPLICATION_FITS_H

#include "postgres_ext.h"

extern void mip_fits_init(void);

/*
 * Errors out if a row that is there does not, stored as it is here or as it is when it has been
 * read. The index is new, its table locked.
 */
extern void mip_check_index_fits(Oid index);

#endif							/* MIP_REPLICATION_FITS_H */
