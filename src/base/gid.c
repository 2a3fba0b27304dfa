/*-------------------------------------------------------------------------
 *
 * gid.c
 *	  Names of the instances' prepared transactions.
 *
 * They carry database, XID and XINST, so that the registry can be rebuilt
 * from pg_prepared_xact().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"

#include "base/gid.h"
#include "base/mip.h"

static void
format_gid(char *gid, Oid dbid, const char *xid, int64 xinst)
{
	snprintf(gid, GIDSIZE, "mip:%u:" INT64_FORMAT ":%s", dbid, xinst, xid);
}

/* The gid of <xid, xinst> in this database; gid has room for GIDSIZE bytes. */
void
mip_gid(char *gid, const char *xid, int64 xinst)
{
	Assert(OidIsValid(MyDatabaseId) && strlen(xid) <= MIP_XID_MAX);
	format_gid(gid, MyDatabaseId, xid, xinst);
}

bool
mip_gid_is_mip(const char *gid)
{
	return strncmp(gid, "mip:", 4) == 0;
}

/* Takes a gid apart; false if mip_gid did not make it. */
bool
mip_gid_parse(const char *gid, Oid *dbid, char *xid, int64 *xinst)
{
	char		same[GIDSIZE];
	long long	inst;
	int			at = 0;

	if (sscanf(gid, "mip:%u:%lld:%n", dbid, &inst, &at) != 2 || at == 0 ||
		strlen(gid + at) == 0 || strlen(gid + at) > MIP_XID_MAX)
		return false;
	*xinst = inst;
	strlcpy(xid, gid + at, MIP_XID_MAX + 4);
	format_gid(same, *dbid, xid, *xinst);
	return *xinst > 0 && strcmp(gid, same) == 0;
}
