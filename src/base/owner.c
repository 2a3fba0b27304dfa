/*-------------------------------------------------------------------------
 *
 * owner.c
 *	  Executing code of a table's owner, as when he does it himself.
 *
 * Expressions of indexes, checks of domains, operator classes: whoever has them executed has not
 * chosen them, and may be anybody, a superuser, too.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"

#include "base/compat.h"
#include "base/owner.h"
#include "base/settings.h"

bool
mip_has_temporary_schema(void)
{
	Oid			schema;
	Oid			toast;

	GetTempNamespaceState(&schema, &toast);
	return OidIsValid(schema);
}

bool
mip_may_execute_code_of(Oid owner)
{
	return mip_may_become(GetUserId(), owner) || !mip_has_temporary_schema();
}

/* An empty search_path would look for tables among the temporary ones first. */
static void
find_nothing_of_the_callers(void)
{
	mip_set_for_now("search_path", "pg_catalog, pg_temp");
}

MipUser
mip_become_owner(Oid owner, bool read_only)
{
	MipUser		user = {.level = NewGUCNestLevel(),.read_only = XactReadOnly};

	GetUserIdAndSecContext(&user.id, &user.context);
	SetUserIdAndSecContext(owner, user.context | SECURITY_RESTRICTED_OPERATION);
	XactReadOnly = XactReadOnly || read_only;
	find_nothing_of_the_callers();
	return user;
}

void
mip_become_again(MipUser user)
{
	AtEOXact_GUC(false, user.level);
	XactReadOnly = user.read_only;	/* which is a setting, too */
	SetUserIdAndSecContext(user.id, user.context);
}
