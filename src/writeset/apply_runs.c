/*-------------------------------------------------------------------------
 *
 * apply_runs.c
 *	  Where a writeset has the changes of each relation.
 *
 * Those that are one behind the other are a run; it ends before a TRUNCATE, too. There are
 * many where the changes of several tables take turns, and few otherwise.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "writeset/apply_runs.h"

/* By numbers plus one, in the order of their changes */
typedef struct Run
{
	const uint8 *begin;
	uint64		before;			/* the number of the change before it */
	uint32		following;		/* of the same relation; 0: none */
} Run;

typedef struct RunsOf
{
	uint32		first;
	uint32		last;
} RunsOf;

struct MipRuns
{
	const MipwSet *set;
	RunsOf	   *relations;		/* by their numbers */
	Run		   *runs;
	uint32		count;
	uint32		room;
};

static void
add_run(MipRuns *runs, RunsOf *of, const MipwCursor *begin)
{
	Run		   *run;

	if (runs->count == runs->room)
	{
		runs->room *= 2;
		runs->runs = repalloc_huge(runs->runs, mul_size(runs->room, sizeof(Run)));
	}
	run = &runs->runs[runs->count++];
	run->begin = begin->next;
	run->before = begin->number;
	run->following = 0;
	if (of->last == 0)
		of->first = runs->count;
	else
		runs->runs[of->last - 1].following = runs->count;
	of->last = runs->count;
}

MipRuns *
mip_runs_create(const MipwSet *set)
{
	MipRuns    *runs = palloc0(sizeof(MipRuns));
	MipwCursor	cursor = mipw_changes(set);
	MipwCursor	begin = cursor;
	const MipwRelation *relation = NULL;
	MipwChange	change;

	runs->set = set;
	runs->relations = palloc0(set->nrelations * sizeof(RunsOf) + 1);
	runs->room = 64;
	runs->runs = palloc(runs->room * sizeof(Run));
	for (; mipw_next(&cursor, &change); begin = cursor)
	{
		CHECK_FOR_INTERRUPTS();
		if (change.relation->whole && (change.relation != relation || change.op == 'T'))
			add_run(runs, &runs->relations[change.nrelation], &begin);
		relation = change.relation;
	}
	return runs;
}

static void
enter_run(const MipRuns *runs, MipRunsCursor *cursor, uint32 number)
{
	cursor->run = number;
	if (number == 0)
		return;
	cursor->changes.set = runs->set;
	cursor->changes.next = runs->runs[number - 1].begin;
	cursor->changes.number = runs->runs[number - 1].before;
}

MipRunsCursor
mip_runs_changes(MipRuns *runs, const MipwRelation *relation, uint64 from)
{
	RunsOf	   *of = &runs->relations[relation - runs->set->relations];
	MipRunsCursor cursor = {.relation = relation,.from = from};
	uint32		following;

	while (of->first != 0 && (following = runs->runs[of->first - 1].following) != 0 &&
		   runs->runs[following - 1].before < from)
		of->first = following;
	enter_run(runs, &cursor, of->first);
	return cursor;
}

bool
mip_runs_next(const MipRuns *runs, MipRunsCursor *cursor, MipwChange *change)
{
	while (cursor->run != 0)
	{
		CHECK_FOR_INTERRUPTS();
		if (!mipw_next(&cursor->changes, change) || change->relation != cursor->relation)
			enter_run(runs, cursor, runs->runs[cursor->run - 1].following);
		else if (change->number >= cursor->from)
			return change->op != 'T';
	}
	return false;
}
