/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  Counters of each database, in shared memory, since the server started.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_STATS_H
#define MIP_STATS_H

#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "utils/timestamp.h"

/* In the order of the columns of mip.stats */
typedef enum MipCounter
{
	MIP_COUNT_BEGUN,
	MIP_COUNT_SIBLINGS,			/* begun while another instance was alive */
	MIP_COUNT_PREPARED,
	MIP_COUNT_COMMITTED,		/* prepared before */
	MIP_COUNT_UNFLUSHED,		/* of these, without waiting for the flush */
	MIP_COUNT_ONE_PHASE,
	MIP_COUNT_ROLLED_BACK,		/* prepared before: losers, mip.rollback */
	MIP_COUNT_FAILED,			/* ended without having been prepared */
	MIP_COUNT_DOOMED,
	MIP_COUNT_REFUSED_COMMITTED,	/* MP001 */
	MIP_COUNT_REFUSED_SUPERSEDED,	/* MP002 */
	MIP_COUNT_REFUSED_EXPIRED,	/* MP007 */
	MIP_COUNT_HAND_OVERS,		/* commits with an overlay */
	MIP_COUNT_ROWS,				/* handed over by these */
	MIP_COUNT_WAITS,			/* of instances for outsiders */
	MIP_COUNT_DEADLOCKS,		/* victims of deadlock.c */
	MIP_COUNT_ACKNOWLEDGED,
	MIP_COUNT_EXPIRED,
	MIP_COUNT_PUSHES,
	MIP_COUNTERS
} MipCounter;

/* Databases that are counted apart; those beyond are not counted. */
#define MIP_STATS_DATABASES	256

typedef struct MipStats
{
	Oid			dbid;			/* invalid: free */
	pg_atomic_uint64 since;		/* of the counters: a TimestampTz */
	pg_atomic_uint64 counters[MIP_COUNTERS];
} MipStats;

extern void mip_stats_shmem_request(void);
extern void mip_stats_shmem_startup(void);

/*
 * This database's, at the first use, by which the entry is taken for as long as
 * the database exists; NULL if there is none left. See mip_count.
 */
extern MipStats *mip_stats_attach(void);
extern MipStats *mip_my_stats;

static inline void
mip_count_many(MipCounter counter, int n)
{
	MipStats   *stats = mip_my_stats ? mip_my_stats : mip_stats_attach();

	if (stats)
		pg_atomic_fetch_add_u64(&stats->counters[counter], n);
}

static inline void
mip_count(MipCounter counter)
{
	mip_count_many(counter, 1);
}

/* The databases in which something has been counted: a list of OIDs. */
extern List *mip_stats_databases(void);

/* Nobody can be connected to this database any more. */
extern void mip_stats_drop(Oid dbid);

#endif							/* MIP_STATS_H */
