/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  Where the relations of the schema mip are.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/extension.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "base/mip.h"
#include "mipt/catalog.h"

static Oid
find_relation(const char *name)
{
	Oid			relid = get_relname_relid(name, get_namespace_oid("mip", false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("relation mip.%s does not exist", name),
				 errhint("Run CREATE EXTENSION pg_mip in this database.")));
	return relid;
}

/* Found before, until something happens to them; invalid: look again. */
static Oid	relids[MIPT_RELATIONS];

static void
forget_relids(Datum arg, Oid relid)
{
	for (int i = 0; i < MIPT_RELATIONS; i++)
	{
		if (!OidIsValid(relid) || relids[i] == relid)
			relids[i] = InvalidOid;
	}
}

Oid
mipt_relid(MiptRelation which)
{
	static const char *const names[MIPT_RELATIONS] = {
		[MIPT_TABLE] = "mipt",
		[MIPT_PKEY] = "mipt_pkey",
		[MIPT_TIMELESS] = "mipt_timeless",
		[MIPT_LINKED] = "mipt_linked",
		[MIPT_HORIZON] = "horizon",
		[MIP_APPLIED] = "applied",
		[MIP_APPLIED_PKEY] = "applied_pkey",
		[MIP_LOG] = "log",
		[MIP_MEMBERS] = "replicas",
	};
	static bool registered = false;

	Assert(IsTransactionState());
	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_relids, (Datum) 0);
		registered = true;
	}
	if (!OidIsValid(relids[which]))
		relids[which] = find_relation(names[which]);
	return relids[which];
}

bool
mipt_exists(void)
{
	return OidIsValid(get_extension_oid("pg_mip", true));
}
