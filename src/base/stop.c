/*-------------------------------------------------------------------------
 *
 * stop.c
 *	  For tests: failing, crashing or pausing between two steps.
 *
 * mip.debug_stop_at = 'ACTION:POINT' or 'ACTION:POINT:N' stops this session
 * when it passes that point (for the Nth time since the setting was made):
 *
 *	  error		raises an error
 *	  crash		crashes the server; WAL that is not flushed yet is lost
 *	  flush		flushes WAL, then crashes the server
 *	  wait		waits until it can have advisory lock 1
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"

#include "base/flush.h"
#include "base/stop.h"

static char *stop_at;
static int	passed;				/* how often the point was */

typedef struct StopAt
{
	char		action[16];
	char		point[32];
	int			n;
} StopAt;

static bool
parse(const char *value, StopAt *at)
{
	at->n = 1;
	return sscanf(value, "%15[a-z]:%31[a-z ]:%d", at->action, at->point, &at->n) >= 2;
}

static bool
check(char **newval, void **extra, GucSource source)
{
	StopAt		at;

	if ((*newval)[0] == '\0')
		return true;
	return parse(*newval, &at) &&
		(strcmp(at.action, "error") == 0 || strcmp(at.action, "crash") == 0 ||
		 strcmp(at.action, "flush") == 0 || strcmp(at.action, "wait") == 0);
}

static void
assign(const char *newval, void *extra)
{
	passed = 0;
}

static void
wait_for_gate(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 1, 1);
	(void) LockAcquire(&tag, ShareLock, true, false);
	LockRelease(&tag, ShareLock, true);
}

static void
stop(const char *point)
{
	StopAt		at;

	if (!parse(stop_at, &at) || strcmp(at.point, point) != 0 || ++passed != at.n)
		return;
	if (strcmp(at.action, "wait") == 0)
	{
		wait_for_gate();
		return;
	}
	if (strcmp(at.action, "flush") == 0)
		(void) mip_flush_wal();
	elog(strcmp(at.action, "error") == 0 ? ERROR : PANIC,
		 "pg_mip: stopped at \"%s\"", point);
}

void
mip_stop_point(const char *name)
{
	if (unlikely(stop_at[0] != '\0'))
		stop(name);
}

void
mip_stop_init(void)
{
	DefineCustomStringVariable("mip.debug_stop_at",
							   "Stops at a named point (tests).",
							   NULL,
							   &stop_at, "", PGC_SUSET,
							   GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL,
							   check, assign, NULL);
}
