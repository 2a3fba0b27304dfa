/*-------------------------------------------------------------------------
 *
 * partitions.c
 *	  What a table or an index is a partition of; what a foreign key refers to.
 *
 * get_partition_ancestors() knows nobody above what is being detached.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/partitions.h"

/* InvalidOid: nobody's, any more. */
static Oid
parent_of(Oid relid)
{
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			parent = InvalidOid;

	ScanKeyInit(&keys[0], Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	ScanKeyInit(&keys[1], Anum_pg_inherits_inhseqno, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(1));
	scan = systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true, NULL, 2, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		parent = ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent;
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);
	return parent;
}

List *
mip_partition_ancestors(Oid relid)
{
	List	   *ancestors = NIL;

	while (get_rel_relispartition(relid) && OidIsValid(relid = parent_of(relid)))
		ancestors = lappend_oid(ancestors, relid);
	return ancestors;
}

Oid
mip_partition_topmost(Oid relid)
{
	List	   *ancestors = mip_partition_ancestors(relid);
	Oid			result = ancestors ? llast_oid(ancestors) : relid;

	list_free(ancestors);
	return result;
}

Oid
mip_referenced_index(Oid constraint)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(constraint));
	Oid			result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for constraint %u", constraint);
	result = ((Form_pg_constraint) GETSTRUCT(tuple))->conindid;
	ReleaseSysCache(tuple);
	return result;
}
