/*-------------------------------------------------------------------------
 *
 * rights.c
 *	  Whose rows may be read into a writeset, and by whom.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/rls.h"

#include "writeset/rights.h"

void
mip_check_may_read(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	AclResult	result = pg_class_aclcheck(relid, GetUserId(), ACL_SELECT);

	if (result != ACLCHECK_OK)
		aclcheck_error(result, OBJECT_TABLE, RelationGetRelationName(rel));
	if (check_enable_rls(relid, InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot read rows of table \"%s\" into a writeset: its row security applies to user \"%s\"",
						RelationGetRelationName(rel), GetUserNameFromId(GetUserId(), true)),
				 errhint("Let the table's owner, or a role with BYPASSRLS, do it.")));
}
