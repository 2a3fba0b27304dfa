/*-------------------------------------------------------------------------
 *
 * apply_runs.h
 *	  Where a writeset has the changes of each relation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_RUNS_H
#define MIP_APPLY_RUNS_H

#include "writeset/format.h"

/* Of those relations that have no key: they are looked for by reading all changes once. */
typedef struct MipRuns MipRuns;

typedef struct MipRunsCursor
{
	MipwCursor	changes;
	uint32		run;			/* that they are in, plus one; 0: none */
	const MipwRelation *relation;
	uint64		from;
} MipRunsCursor;

/* In the current memory context */
extern MipRuns *mip_runs_create(const MipwSet *set);

/*
 * The changes of a relation numbered `from` or higher, up to its next TRUNCATE. What is
 * before them is not to be asked for any more.
 */
extern MipRunsCursor mip_runs_changes(MipRuns *runs, const MipwRelation *relation, uint64 from);
extern bool mip_runs_next(const MipRuns *runs, MipRunsCursor *cursor, MipwChange *change);

#endif							/* MIP_APPLY_RUNS_H */
