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
 * There may be several, separated by commas; the nth of them waits for lock n.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"

#include "base/flush.h"
#include "base/stop.h"

#define STOPS_MAX	2

static char *stop_at;
static int	passed[STOPS_MAX];	/* how often the points were */

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

/* NULL: there are no more. */
static const char *
next_value(const char *value)
{
	const char *comma = strchr(value, ',');

	return comma ? comma + 1 : NULL;
}

static bool
check_one(const char *value)
{
	StopAt		at;

	return parse(value, &at) &&
		(strcmp(at.action, "error") == 0 || strcmp(at.action, "crash") == 0 ||
		 strcmp(at.action, "flush") == 0 || strcmp(at.action, "wait") == 0);
}

static bool
check(char **newval, void **extra, GucSource source)
{
	const char *value = (*newval)[0] == '\0' ? NULL : *newval;

	for (int i = 0; value; i++, value = next_value(value))
	{
		if (i == STOPS_MAX || !check_one(value))
			return false;
	}
	return true;
}

static void
assign(const char *newval, void *extra)
{
	memset(passed, 0, sizeof(passed));
}

static void
wait_for_gate(int key)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, key, 1);
	(void) LockAcquire(&tag, ShareLock, true, false);
	LockRelease(&tag, ShareLock, true);
}

static void
stop(const StopAt *at, int key)
{
	if (strcmp(at->action, "wait") == 0)
	{
		wait_for_gate(key);
		return;
	}
	if (strcmp(at->action, "flush") == 0)
		(void) mip_flush_wal();
	elog(strcmp(at->action, "error") == 0 ? ERROR : PANIC,
		 "pg_mip: stopped at \"%s\"", at->point);
}

static void
pass(const char *point)
{
	const char *value = stop_at;

	for (int i = 0; value; i++, value = next_value(value))
	{
		StopAt		at;

		if (parse(value, &at) && strcmp(at.point, point) == 0 && ++passed[i] == at.n)
			stop(&at, i + 1);
	}
}

void
mip_stop_point(const char *name)
{
	if (unlikely(stop_at[0] != '\0'))
		pass(name);
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
