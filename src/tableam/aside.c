/*-------------------------------------------------------------------------
 *
 * aside.c
 *	  Indexes that a replica can do without.
 *
 * What an index does with a row goes by which others are in it, and where they lie, which is not
 * the same at any two replicas: distances overflow, unions become too long. Or the index is this
 * replica's own. But the row is certified, and all others have it. By unique btrees
 * rows are found and told apart; the others only help to find them. So one that fails here is
 * given up, not the replica. An exclusion constraint whose index is set aside holds no more: what
 * is written here is refused (replication/fits.c), and what comes from others has met theirs.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_index.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "tableam/aside.h"

bool
mip_index_is_needed(Relation index)
{
	return index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisunique && !mip_index_is_of_reindex(index);
}

/* From one that is of a constraint, or the identity, that goes over when it is taken in its place, and does not stay. */
bool
mip_index_is_of_reindex(Relation index)
{
	return mip_name_is_of_reindex(RelationGetRelationName(index)) && !index->rd_index->indisreplident &&
		!OidIsValid(get_index_constraint(RelationGetRelid(index)));
}

bool
mip_name_is_of_reindex(const char *name)
{
	int			length = strlen(name);

	while (length > 0 && isdigit((unsigned char) name[length - 1]))
		length--;
	return length >= 6 &&
		(strncmp(name + length - 6, "_ccnew", 6) == 0 || strncmp(name + length - 6, "_ccold", 6) == 0);
}

static void
mark(Oid indexid)
{
	Relation	indexes = table_open(IndexRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(indexid));
	Form_pg_index form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", indexid);
	form = (Form_pg_index) GETSTRUCT(tuple);
	form->indisvalid = form->indisready = form->indisclustered = false;
	CatalogTupleUpdate(indexes, &tuple->t_self, tuple);
	heap_freetuple(tuple);
	table_close(indexes, RowExclusiveLock);
}

/* Whoever has a plan with it, and is about to execute that, would not see what it does not have. */
void
mip_index_set_aside(Relation rel, Oid indexid, const char *why)
{
	LockRelationOid(RelationGetRelid(rel), AccessExclusiveLock);
	mark(indexid);
	CacheInvalidateRelcache(rel);
	CommandCounterIncrement();
	ereport(WARNING,
			(errmsg("index \"%s\" of table \"%s\" is set aside at this replica", get_rel_name(indexid),
					RelationGetRelationName(rel)),
			 errdetail("It cannot take in a row of another replica: %s", why),
			 errhint("Queries do without it. Remove such rows, then use REINDEX INDEX.")));
}
