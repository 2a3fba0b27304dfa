/*-------------------------------------------------------------------------
 *
 * build.h
 *	  Building indexes of a mip table.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_BUILD_H
#define MIP_BUILD_H

#include "access/tableam.h"

/* Installs its wrappers over heap's callbacks. */
extern void mip_tableam_build(TableAmRoutine *routine);

/*
 * From here to there indexes get what a new snapshot sees, as CREATE INDEX CONCURRENTLY has it: no rows that
 * older ones may see yet, so these do not use them (pg_index.indcheckxmin). Not for parallel
 * builds.
 */
extern void mip_builds_begin(void);
extern void mip_builds_end(void);

#endif							/* MIP_BUILD_H */
