/*-------------------------------------------------------------------------
 *
 * rules.c
 *	  What the MIPT allows: who may prepare, and what the others are told.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "base/mip.h"
#include "base/stats.h"
#include "family/family_lock.h"
#include "family/refusal.h"
#include "family/sites.h"
#include "mipt/durable.h"
#include "mipt/entry.h"
#include "mipt/rules.h"

/* The JSON escape of a character: two, of UTF-16, if it has to be. */
static void
append_escape(StringInfo buf, pg_wchar c)
{
	if (c > 0xFFFF)
	{
		append_escape(buf, 0xD800 + ((c - 0x10000) >> 10));
		append_escape(buf, 0xDC00 + ((c - 0x10000) & 0x3FF));
	}
	else
		appendStringInfo(buf, "\\u%04x", (unsigned int) c);
}

/*
 * A JSON string in ASCII: a client whose encoding lacks a character of the
 * text would be told of that, and not of the commit. Bytes of no known
 * encoding become the characters of Latin-1.
 */
static void
append_json(StringInfo buf, const text *value)
{
	char	   *utf8 = text_to_cstring(value);
	int			len = strlen(utf8);
	bool		known = GetDatabaseEncoding() != PG_SQL_ASCII ||
		pg_verify_mbstr(PG_UTF8, utf8, len, true);
	StringInfoData json;
	int			step;

	if (GetDatabaseEncoding() != PG_SQL_ASCII)
		utf8 = pg_server_to_any(utf8, len, PG_UTF8);
	initStringInfo(&json);
	escape_json(&json, utf8);
	for (unsigned char *at = (unsigned char *) json.data; *at != '\0'; at += step)
	{
		step = 1;
		if (!IS_HIGHBIT_SET(*at))
			appendStringInfoCharMacro(buf, *at);
		else if (!known)
			append_escape(buf, *at);
		else
		{
			append_escape(buf, utf8_to_unicode(at));
			step = pg_utf_mblen(at);
		}
	}
	pfree(json.data);
}

static void
mipt_raise_acknowledged(const char *xid)
{
	mip_family_unlock_all();
	mip_wait_until_durable();
	mip_count(MIP_COUNT_REFUSED_EXPIRED);
	ereport(ERROR,
			(errcode(ERRCODE_MIP_EXPIRED),
			 errmsg("request \"%s\" has been committed and acknowledged", xid),
			 errdetail_internal("{\"reason\": \"acknowledged\"}"),
			 errhint("Its result is not kept any more.")));
}

/* A null result is told only if it is the request's: who reads it answers it. */
void
mipt_raise_committed(const char *xid, const MiptEntry *entry)
{
	bool		to_come = entry->state == MIP_PREPARED;
	StringInfoData detail;

	Assert(entry->state == MIP_COMMITTED || to_come);
	if (entry->acknowledged)
		mipt_raise_acknowledged(xid);
	mip_family_unlock_all();	/* not for as long as a standby is away:
								 * [lock-let-go] */
	/* [told-is-durable] */
	if (to_come)
		mip_make_durable();
	else
		mip_wait_until_durable();
	initStringInfo(&detail);
	appendStringInfo(&detail, "{\"xinst\": " INT64_FORMAT ", \"result\": ", entry->xinst);
	if (entry->result)
		append_json(&detail, entry->result);
	else
		appendStringInfoString(&detail, "null");
	appendStringInfoChar(&detail, '}');
	mip_count(MIP_COUNT_REFUSED_COMMITTED);
	ereport(ERROR,
			(errcode(ERRCODE_MIP_COMMITTED),
			 to_come ?
			 errmsg("instance " INT64_FORMAT " of this family is being committed", entry->xinst) :
			 errmsg("instance " INT64_FORMAT " of this family has been committed", entry->xinst),
			 errdetail_internal("%s", detail.data),
			 errdetail_log("The result is not logged."),
			 to_come ?
			 errhint("Call mip.commit for that instance: its result is the result of the request.") :
			 errhint("Its result is the result of the request.")));
}

static void
mipt_raise_superseded(const MiptEntry *entry)
{
	mip_count(MIP_COUNT_REFUSED_SUPERSEDED);
	ereport(ERROR,
			(errcode(ERRCODE_MIP_SUPERSEDED),
			 errmsg("instance " INT64_FORMAT " of this family is prepared here", entry->xinst),
			 errdetail_internal("{\"xinst\": " INT64_FORMAT "}", entry->xinst),
			 errhint("Decide the family from the MIPTs of all sites, or retry the request with a larger XINST.")));
}

void
mipt_check_undecided(const char *xid, List *entries)
{
	MiptEntry  *committed = mipt_committed(entries);

	if (committed)
		mipt_raise_committed(xid, committed);
}

void
mipt_check_sites(const char *xid, List *entries, ArrayType *sites)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if ((entry->state == MIP_PREPARED || entry->state == MIP_ACTIVE) &&
			entry->sites && !mip_sites_equal(entry->sites, sites))
			mip_raise_other_sites(xid);
	}
}

/*
 * The largest prepared XINST matters: a refused attempt has to go above it.
 * A one-phase commit decides the family alone, so any prepared sibling, which
 * others may have found to be the winner, is in its way. [none-below]
 */
void
mipt_check_may_end(const char *xid, List *entries, int64 xinst, bool one_phase)
{
	MiptEntry  *in_the_way = NULL;
	ListCell   *lc;

	mipt_check_undecided(xid, entries);
	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->state == MIP_PREPARED &&
			(one_phase ? entry->xinst != xinst : entry->xinst > xinst))
			in_the_way = entry;
	}
	if (in_the_way)
		mipt_raise_superseded(in_the_way);
}
