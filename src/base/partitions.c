/*-------------------------------------------------------------------------
 *
 * partitions.c
 *	  What a table or an index is a partition of.
 *
 * get_partition_ancestors() knows nobody above what is being detached.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "utils/lsyscache.h"

#include "base/partitions.h"

List *
mip_partition_ancestors(Oid relid)
{
	List	   *ancestors = NIL;

	while (get_rel_relispartition(relid))
	{
		relid = get_partition_parent(relid, true);
		ancestors = lappend_oid(ancestors, relid);
	}
	return ancestors;
}
