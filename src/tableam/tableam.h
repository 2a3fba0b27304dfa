/*-------------------------------------------------------------------------
 *
 * tableam.h
 *	  The parts of the table access method "mip".
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_TABLEAM_H
#define MIP_TABLEAM_H

#include "access/tableam.h"

/* Each installs its wrappers over heap's callbacks. */
extern void mip_tableam_read(TableAmRoutine *routine);
extern void mip_tableam_write(TableAmRoutine *routine);

#endif							/* MIP_TABLEAM_H */
