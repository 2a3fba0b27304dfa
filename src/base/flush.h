/*-------------------------------------------------------------------------
 *
 * flush.h
 *	  Flushing all WAL.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_FLUSH_H
#define MIP_FLUSH_H

#include "access/xlogdefs.h"

/* Returns a place behind all that is visible, and nobody else's. */
extern XLogRecPtr mip_flush_wal(void);

#endif							/* MIP_FLUSH_H */
