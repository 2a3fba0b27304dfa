/*-------------------------------------------------------------------------
 *
 * fits.h
 *	  Rows that do not fit into indexes, wherever these are, are not written.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_FITS_H
#define MIP_REPLICATION_FITS_H

extern void mip_fits_init(void);

#endif							/* MIP_REPLICATION_FITS_H */
