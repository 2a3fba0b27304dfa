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
#include "miscadmin.h"
#include "utils/guc.h"

#include "base/owner.h"

MipUser
mip_become_owner(Oid owner, bool read_only)
{
	MipUser		user = {.level = NewGUCNestLevel(),.read_only = XactReadOnly};

	GetUserIdAndSecContext(&user.id, &user.context);
	SetUserIdAndSecContext(owner, user.context | SECURITY_RESTRICTED_OPERATION);
	XactReadOnly = XactReadOnly || read_only;
	return user;
}

void
mip_become_again(MipUser user)
{
	AtEOXact_GUC(false, user.level);
	XactReadOnly = user.read_only;	/* which is a setting, too */
	SetUserIdAndSecContext(user.id, user.context);
}
