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

/*
 * From here on indexes get what a new snapshot sees, as CREATE INDEX CONCURRENTLY has it: no rows that older
 * ones may see yet, so these do not use them (pg_index.indcheckxmin). Not for parallel builds.
 */
extern void mip_index_what_is_seen(bool only);

#endif							/* MIP_TABLEAM_H */
