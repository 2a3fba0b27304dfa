/*-------------------------------------------------------------------------
 *
 * function_call.c
 *	  The protocol's function call.
 *
 * It is no statement, so no hook is run at its end, which would see what locks the
 * function keeps, or that a winner has come. Hence an instance calls nothing by it
 * but what libpq does, the functions of large objects. And whoever is to be followed
 * (across.c) is so from here on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/objectaccess.h"
#include "tcop/tcopprot.h"
#include "utils/fmgroids.h"

#include "base/mip.h"
#include "family/current.h"
#include "transam/across.h"
#include "transam/statement.h"
#include "interface/function_call.h"

static object_access_hook_type prev_object_access;

static bool
is_for_large_objects(Oid function)
{
	switch (function)
	{
		case F_LO_OPEN:
		case F_LO_CLOSE:
		case F_LOREAD:
		case F_LOWRITE:
		case F_LO_LSEEK:
		case F_LO_LSEEK64:
		case F_LO_TELL:
		case F_LO_TELL64:
		case F_LO_TRUNCATE:
		case F_LO_TRUNCATE64:
		case F_LO_CREAT:
		case F_LO_CREATE:
		case F_LO_UNLINK:
			return true;
		default:
			return false;
	}
}

static bool
is_between_statements(void)
{
	return mip_statement.depth == 0 && debug_query_string == NULL;
}

/* Triggers, too, may be run between statements. */
static bool
is_called_by_protocol(void)
{
	return is_between_statements() && mip_mine.ending == MIP_RUNNING && !mip_in_trigger();
}

static void
mip_object_access(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class, object, sub, arg);
	if (access == OAT_FUNCTION_EXECUTE && is_between_statements())
		mip_across_follow();
	if (access == OAT_FUNCTION_EXECUTE && mip_in_transaction() &&
		is_called_by_protocol() && !is_for_large_objects(object))
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("the protocol's function call can only be used for large objects in a MIP transaction"),
				 errdetail("It is no statement, at whose end could be seen what locks it keeps."),
				 errhint("Call the function by SELECT.")));
}

void
mip_function_call_init(void)
{
	prev_object_access = object_access_hook;
	object_access_hook = mip_object_access;
}
