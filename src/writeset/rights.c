/*-------------------------------------------------------------------------
 *
 * rights.c
 *	  Whose rows may be read into a writeset, and by whom.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_namespace.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"

#include "base/compat.h"
#include "base/partitions.h"
#include "writeset/rights.h"

static bool waived;

/* May he name it? By SQL he would have to. */
static bool
may_use_schema(Oid schema)
{
	return mip_schema_aclcheck(schema, GetUserId(), ACL_USAGE) == ACLCHECK_OK;
}

static bool
may_select(Oid relid)
{
	return pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

static bool
may_read(Oid relid)
{
	return may_use_schema(get_rel_namespace(relid)) && may_select(relid) &&
		check_enable_rls(relid, InvalidOid, true) != RLS_ENABLED;
}

/* Who may read a partitioned table may read its partitions. */
static bool
may_read_through_parent(Relation rel, bool changes)
{
	Oid			relid = RelationGetRelid(rel);
	ListCell   *lc;

	if (!rel->rd_rel->relispartition)
		return false;
	foreach(lc, changes ? mip_partition_ancestors(relid) : get_partition_ancestors(relid))
	{
		if (may_read(lfirst_oid(lc)))
			return true;
	}
	return false;
}

void
mip_rights_waive(bool waive)
{
	waived = waive;
}

void
mip_check_may_read(Relation rel, bool changes)
{
	Oid			relid = RelationGetRelid(rel);

	if (waived || may_read(relid) || may_read_through_parent(rel, changes))
		return;
	if (!may_use_schema(RelationGetNamespace(rel)))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA,
					   get_namespace_name(RelationGetNamespace(rel)));
	if (!may_select(relid))
		aclcheck_error(ACLCHECK_NO_PRIV, get_relkind_objtype(rel->rd_rel->relkind),
					   RelationGetRelationName(rel));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("cannot read rows of table \"%s\" into a writeset: its row security applies to user \"%s\"",
					RelationGetRelationName(rel), GetUserNameFromId(GetUserId(), true)),
			 errhint("Let the table's owner, or a role with BYPASSRLS, do it.")));
}
