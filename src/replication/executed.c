/*-------------------------------------------------------------------------
 *
 * executed.c
 *	  What a definition has executed.
 *
 * It looks at rows: it builds indexes, checks constraints, computes values. Functions that do so
 * are executed by each replica for itself, and must come to the same there. So they are PostgreSQL's
 * or a superuser's, as those that are executed where rows are applied (trust.c). Nor is anything
 * written but what the definition itself says: each replica would write it by itself. What
 * the script of an extension does is left to whoever has it installed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/extension.h"
#include "tcop/utility.h"
#include "utils/regproc.h"

#include "base/compat.h"
#include "replication/executed.h"
#include "replication/trust.h"
#include "transam/statement.h"

static bool executing;
static bool trying;				/* ... where it comes from */
static bool own_statement;		/* the next one is the definition's, and not a
								 * function's */

void
mip_executed_begin(bool trial)
{
	executing = true;
	trying = trial;
}

void
mip_executed_end(void)
{
	executing = trying = own_statement = false;
}

void
mip_executed_statement(void)
{
	own_statement = true;
}

bool
mip_executes_definition(void)
{
	return executing && !creating_extension;
}

pg_noreturn static void
refuse_nested(const char *command)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate a definition for which a function executes %s", command),
			 errdetail("Each replica would do it by itself.")));
	pg_unreachable();
}

void
mip_executed_check_plan(const PlannedStmt *stmt)
{
	if (mip_executes_definition() && stmt->resultRelations != NIL)
		refuse_nested(GetCommandTagName(CreateCommandTag((Node *) stmt)));
}

void
mip_executed_check_utility(Node *stmt)
{
	bool		own = own_statement;

	own_statement = false;
	if (mip_executes_definition() && !own && (IsA(stmt, CopyStmt) || !mip_is_harmless(stmt)))
		refuse_nested(GetCommandTagName(CreateCommandTag(stmt)));
}

void
mip_executed_check_function(Oid function)
{
	if (!trying || !mip_executes_definition() || mip_is_trusted(function))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate a definition for which function %s is executed", format_procedure(function)),
			 errdetail("No superuser owns it. If it failed at one replica, or came to something else there, that one would stop, or be another one from then on."),
			 errhint("Let a superuser own the function, who answers for it.")));
}
