/*-------------------------------------------------------------------------
 *
 * xid.c
 *	  The times that XIDs carry, and the clock that they are compared with.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "base/xid.h"

static int	clock_offset;		/* for tests: how far the clock is wrong */

PG_FUNCTION_INFO_V1(mip_xid_time_sql);

#define UNIX_EPOCH_MS \
	((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY * 1000)

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

static const char form[] = "tttttttt-tttt-7xxx-Vxxx-xxxxxxxxxxxx";

/*
 * tttttttt-tttt-7xxx-Vxxx-xxxxxxxxxxxx, V one of 8, 9, a and b, in lower case:
 * so that XIDs with a time sort by it.
 */
static bool
read_time(const char *xid, int64 *time)
{
	int64		result = 0;

	for (int i = 0; form[i] != '\0'; i++)
	{
		int			digit = hex_digit(xid[i]);

		switch (form[i])
		{
			case '-':
			case '7':
				if (xid[i] != form[i])
					return false;
				break;
			case 't':
				result = result * 16 + digit;
				/* FALLTHROUGH */
			default:
				if (digit < 0 || (form[i] == 'V' && (digit & 0xC) != 0x8))
					return false;
		}
	}
	*time = result;
	return true;
}

bool
mip_xid_time(const char *xid, int64 *time)
{
	/* the steps of a request ask for the same one again and again */
	static char last_xid[sizeof(form)];
	static int64 last_time;

	if (strlen(xid) != strlen(form))
		return false;
	if (memcmp(xid, last_xid, sizeof(form)) != 0)
	{
		if (!read_time(xid, &last_time))
		{
			last_xid[0] = '\0';
			return false;
		}
		memcpy(last_xid, xid, sizeof(form));
	}
	*time = last_time;
	return true;
}

int64
mip_time_ago(int64 seconds)
{
	return GetCurrentTimestamp() / 1000 + UNIX_EPOCH_MS +
		((int64) clock_offset - seconds) * 1000;
}

TimestampTz
mip_time_to_timestamp(int64 time)
{
	return (time - UNIX_EPOCH_MS) * 1000;
}

Datum
mip_xid_time_sql(PG_FUNCTION_ARGS)
{
	int64		time;

	if (!mip_xid_time(text_to_cstring(PG_GETARG_TEXT_PP(0)), &time))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(mip_time_to_timestamp(time));
}

void
mip_xid_init(void)
{
	DefineCustomIntVariable("mip.debug_clock_offset",
							"By how much the clock that requests expire by is wrong (tests).",
							NULL,
							&clock_offset, 0, -INT_MAX, INT_MAX,
							PGC_SUSET, GUC_UNIT_S | GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL,
							NULL, NULL, NULL);
}
