/*-------------------------------------------------------------------------
 *
 * refusal.c
 *	  Why an instance cannot be one of this family.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/mip.h"
#include "family/refusal.h"

void
mip_raise_stranger(const char *xid)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("family \"%s\" belongs to another role", xid)));
}

void
mip_raise_duplicate(const char *xid, int64 xinst)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_DUPLICATE),
			 errmsg("instance " INT64_FORMAT " of family \"%s\" exists already", xinst, xid),
			 errhint("Every attempt needs an XINST of its own.")));
}

void
mip_raise_other_sites(const char *xid)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_SITES),
			 errmsg("instances of family \"%s\" have been begun with another set of sites", xid),
			 errhint("All instances of one XID must name the same sites.")));
}
