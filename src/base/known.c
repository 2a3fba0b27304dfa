/*-------------------------------------------------------------------------
 *
 * known.c
 *	  What has been found out about tables, for as long as it is so.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "base/known.h"

struct MipKnownTables
{
	HTAB	   *tables;
	uint64		changes;
};

/* What is of this relation, or goes by it; or all */
static void
forget(Datum arg, Oid relid)
{
	MipKnownTables *tables = (MipKnownTables *) DatumGetPointer(arg);
	HASH_SEQ_STATUS seq;
	MipKnownTable *table;

	tables->changes++;
	hash_seq_init(&seq, tables->tables);
	while ((table = hash_seq_search(&seq)) != NULL)
	{
		if (!OidIsValid(relid) || table->relid == relid || table->by_others)
			(void) hash_search(tables->tables, &table->relid, HASH_REMOVE, NULL);
	}
}

MipKnownTables *
mip_known_create(const char *name)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(MipKnownTable)};
	MipKnownTables *tables = MemoryContextAllocZero(TopMemoryContext, sizeof(MipKnownTables));

	tables->tables = hash_create(name, 64, &ctl, HASH_ELEM | HASH_BLOBS);
	CacheRegisterRelcacheCallback(forget, PointerGetDatum(tables));
	return tables;
}

const MipKnownTable *
mip_known_find(const MipKnownTables *tables, Oid relid)
{
	return hash_search(tables->tables, &relid, HASH_FIND, NULL);
}

uint64
mip_known_changes(const MipKnownTables *tables)
{
	return tables->changes;
}

void
mip_known_remember(MipKnownTables *tables, const MipKnownTable *table, uint64 changes)
{
	if (tables->changes == changes)
		*(MipKnownTable *) hash_search(tables->tables, &table->relid, HASH_ENTER, NULL) = *table;
}

void
mip_known_forget_all(MipKnownTables *tables)
{
	forget(PointerGetDatum(tables), InvalidOid);
}
