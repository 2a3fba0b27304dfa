/*-------------------------------------------------------------------------
 *
 * verdicts.c
 *	  What has been refused since the server started: by table, and why.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "utils/lsyscache.h"

#include "replication/verdicts.h"

Oid
mip_refused_table(const MipwRelation *relation)
{
	Oid			schema = relation ? get_namespace_oid(relation->schema, true) : InvalidOid;

	return OidIsValid(schema) ? get_relname_relid(relation->name, schema) : InvalidOid;
}

/* The first one that is free, if it has none yet; NULL: there is none any more. */
static MipRefused *
find(MipRefused *tables, Oid table, MipRefusal refusal)
{
	for (int i = 0; i < MIP_REFUSED_TABLES; i++)
	{
		MipRefused *entry = &tables[i];

		if (entry->count == 0 || (entry->table == table && entry->refusal == refusal))
			return entry;
	}
	return NULL;
}

void
mip_refused_count(MipRefused *entries, Oid table, MipRefusal refusal)
{
	MipRefused *entry = OidIsValid(table) ? find(entries + MIP_REFUSALS, table, refusal) : NULL;

	if (entry == NULL)
	{
		entry = &entries[refusal];
		table = InvalidOid;
	}
	entry->table = table;
	entry->refusal = refusal;
	entry->count++;
}

const char *
mip_refusal_name(MipRefusal refusal)
{
	static const char *const names[] = {
		[MIP_REFUSED_CONFLICT] = "conflict",
		[MIP_REFUSED_FORGOTTEN] = "forgotten",
		[MIP_REFUSED_DEFINITION] = "definition",
		[MIP_REFUSED_CHANGE] = "change",
		[MIP_REFUSED_REQUEST] = "request",
		[MIP_REFUSED_REPEATED] = "repeated",
		[MIP_REFUSED_SKIPPED] = "skipped",
	};

	StaticAssertStmt(lengthof(names) == MIP_REFUSALS, "each has a name");
	return names[refusal];
}
