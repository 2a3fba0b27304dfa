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

static void
count(MipRefused *entry, Oid table, MipRefusal refusal, uint64 n)
{
	entry->table = table;
	entry->refusal = refusal;
	entry->count += n;
}

/* Its own; or the least one, which may be a free one */
static MipRefused *
find(MipRefused *tables, Oid table, MipRefusal refusal)
{
	MipRefused *least = tables;

	for (int i = 0; i < MIP_REFUSED_TABLES; i++)
	{
		MipRefused *entry = &tables[i];

		if (entry->count > 0 && entry->table == table && entry->refusal == refusal)
			return entry;
		if (entry->count < least->count)
			least = entry;
	}
	return least;
}

/* What it has counted for another table, which may be gone, goes on without the name. */
static MipRefused *
take(MipRefused *entries, Oid table, MipRefusal refusal)
{
	MipRefused *entry = find(entries + MIP_REFUSALS, table, refusal);

	if (entry->count > 0 && (entry->table != table || entry->refusal != refusal))
	{
		count(&entries[entry->refusal], InvalidOid, entry->refusal, entry->count);
		entry->count = 0;
	}
	return entry;
}

void
mip_refused_count(MipRefused *entries, Oid table, MipRefusal refusal)
{
	count(OidIsValid(table) ? take(entries, table, refusal) : &entries[refusal], table, refusal, 1);
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
