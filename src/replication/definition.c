/*-------------------------------------------------------------------------
 *
 * definition.c
 *	  Changes of definitions, which all replicas make at the same position.
 *
 * Replicas are the same up to a position, so a command does the same at all of them there, if
 * it is executed as the same user, with the settings that mean something to a
 * definition. It is tried out before it is sent, and stays only if nothing has been changed
 * since. So what it does not find at another replica then, as a role, is missing there: that
 * one waits for it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "nodes/parsenodes.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/compat.h"
#include "base/locks.h"
#include "base/owner.h"
#include "base/settings.h"
#include "base/sqlstate.h"
#include "replication/definable.h"
#include "replication/defined.h"
#include "replication/definition.h"
#include "replication/executed.h"
#include "replication/meaningful.h"
#include "replication/member.h"
#include "replication/outcome.h"
#include "replication/skip.h"
#include "replication/temporary.h"
#include "tableam/build.h"

typedef enum Attempt
{
	TRIAL,						/* where it comes from */
	FOR_GOOD,
	BY_WHAT_IS_SEEN,			/* likewise; new indexes get nothing else */
} Attempt;

typedef struct Definition
{
	const char *session_user;
	const char *role;
	const char *command;
	const char *outcome;		/* NULL: not known yet */
	List	   *settings;		/* of names and values, one after the other */
} Definition;

/* ---- as bytes: strings with their zeros ---- */

static bytea *
write_definition(const Definition *definition)
{
	StringInfoData body;
	ListCell   *lc;

	initStringInfo(&body);
	appendStringInfoSpaces(&body, VARHDRSZ);
	appendBinaryStringInfo(&body, definition->session_user, strlen(definition->session_user) + 1);
	appendBinaryStringInfo(&body, definition->role, strlen(definition->role) + 1);
	appendBinaryStringInfo(&body, definition->command, strlen(definition->command) + 1);
	appendBinaryStringInfo(&body, definition->outcome, strlen(definition->outcome) + 1);
	foreach(lc, definition->settings)
		appendBinaryStringInfo(&body, lfirst(lc), strlen(lfirst(lc)) + 1);
	SET_VARSIZE(body.data, body.len);
	return (bytea *) body.data;
}

static const char *
next_string(const char **at, const char *end)
{
	const char *string = *at;

	if (string >= end)
		elog(ERROR, "a definition ends too early");
	*at += strlen(string) + 1;
	return string;
}

static Definition
read_definition(const MipMessage *message)
{
	char	   *strings = palloc0(message->length + 1);
	const char *at = strings;
	const char *end = strings + message->length;
	Definition	definition;

	memcpy(strings, message->body, message->length);
	definition.session_user = next_string(&at, end);
	definition.role = next_string(&at, end);
	definition.command = next_string(&at, end);
	definition.outcome = next_string(&at, end);
	definition.settings = NIL;
	while (at < end)
		definition.settings = lappend(definition.settings, unconstify(char *, next_string(&at, end)));
	return definition;
}

/* ---- executing it ---- */

/* Event triggers do not fire: those that would, as at replicas, are refused. */
static void
become(const Definition *definition, Attempt what)
{
	ListCell   *lc;

	for (lc = list_head(definition->settings); lc != NULL; lc = lnext(definition->settings, lc))
	{
		const char *name = lfirst(lc);

		lc = lnext(definition->settings, lc);
		if (lc == NULL)
			elog(ERROR, "setting \"%s\" of a definition has no value", name);
		mip_set_for_now(name, lfirst(lc));
	}
	if (what != TRIAL)
		mip_set_for_now("check_function_bodies", "off");	/* as they have been,
															 * which goes by more
															 * settings */
	mip_set_for_now("session_replication_role", "replica");
	mip_set_for_now("allow_system_table_mods", "off");
	mip_set_for_now("session_authorization", definition->session_user);
	SetUserIdAndSecContext(get_role_oid(definition->role, false), 0);
}

static void
execute_statement(const RawStmt *raw, const char *command, bool checked)
{
	int			length = raw->stmt_len ? raw->stmt_len : strlen(command + raw->stmt_location);
	char	   *statement = pnstrdup(command + raw->stmt_location, length);
	MipDefinedBefore *before = NULL;
	int			result;

	if (checked)
	{
		mip_check_definable(raw, command);
		before = mip_defined_before();
	}
	mip_executed_statement();
	result = SPI_execute(statement, false, 0);
	if (result < 0)
		elog(ERROR, "a definition cannot be executed: %s", SPI_result_code_string(result));
	CommandCounterIncrement();
	if (checked)
		mip_check_defined(before);
}

static void
execute_statements(const Definition *definition, bool checked)
{
	List	   *statements = pg_parse_query(definition->command);
	ListCell   *lc;

	if (statements == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("there is no statement to be replicated")));
	foreach(lc, statements)
		execute_statement(lfirst_node(RawStmt, lc), definition->command, checked);
}

/* What would fail at the end of the transaction fails now, while it can still be undone: where it is tried out, that is. */
static void
end_deferred(void)
{
	int			result = SPI_execute("SET CONSTRAINTS ALL IMMEDIATE", false, 0);

	if (result < 0)
		elog(ERROR, "deferred constraints cannot be checked: %s", SPI_result_code_string(result));
}

/*
 * In a subtransaction, which undoes also the user and his settings if it fails. Returns the outcome, in that
 * memory.
 */
static char *
execute(const Definition *definition, Attempt what, MemoryContext memory)
{
	int			level = NewGUCNestLevel();
	Oid			user;
	int			context;
	Datum		before;
	char	   *outcome;

	GetUserIdAndSecContext(&user, &context);
	become(definition, what);
	if (what == BY_WHAT_IS_SEEN)
		mip_set_for_now("max_parallel_maintenance_workers", "0");
	SPI_connect();
	before = mip_outcome_before();
	execute_statements(definition, what == TRIAL);
	end_deferred();
	outcome = MemoryContextStrdup(memory, mip_outcome(before));
	SPI_finish();
	SetUserIdAndSecContext(user, context);
	AtEOXact_GUC(false, level); /* nor stays what it has set itself */
	return outcome;
}

/*
 * NULL, or why it cannot be executed; then, or if it is not to stay, it is undone. It is looked
 * at once, where it is tried out.
 */
static ErrorData *
attempt(Definition *definition, Attempt what)
{
	MemoryContext memory = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	mip_executed_begin(what == TRIAL);
	if (what == BY_WHAT_IS_SEEN)
		mip_builds_begin();
	PG_TRY();
	{
		char	   *outcome = execute(definition, what, memory);

		if (what == TRIAL)
			definition->outcome = outcome;
		else
			mip_check_outcome(outcome, definition->outcome);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(memory);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	mip_builds_end();
	mip_executed_end();
	if (what != TRIAL && error == NULL)
		ReleaseCurrentSubTransaction();
	else
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(memory);
	CurrentResourceOwner = owner;
	return error;
}

/* ---- where it comes from ---- */

static void
refuse_temporary(void)
{
	if (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate a change of temporary objects"),
				 errdetail("They are this session's.")));
}

/* What is said of a temporary type, function or sequence leaves no trace that tells so of all of them. */
static void
check_session(void)
{
	if (mip_has_temporary_schema())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate definitions from a session that has, or has had, temporary objects"),
				 errdetail("The command may find them here, and at no replica."),
				 errhint("Use another session.")));
}

/* Some stay until the transaction ends, as that of a sequence; nothing else is done in it. */
static void
release_locks(void)
{
	ResourceOwner owner = CurrentResourceOwner;
	List	   *relations = mip_own_written_tables();
	ListCell   *lc;

	CurrentResourceOwner = TopTransactionResourceOwner;
	foreach(lc, relations)
	{
		LOCKTAG		tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, lfirst_oid(lc));
		while (mip_lock_held_by_me(&tag, RowExclusiveLock) &&
			   LockRelease(&tag, RowExclusiveLock, false))
			;
	}
	CurrentResourceOwner = owner;
	list_free(relations);
}

bytea *
mip_definition_make(const char *command)
{
	Definition	definition = {
		.session_user = GetUserNameFromId(GetSessionUserId(), false),
		.role = GetUserNameFromId(GetUserId(), false),
		.command = command,
		.settings = mip_meaningful_settings(),
	};
	ErrorData  *error;

	check_session();
	mip_set_publishes(false);
	error = attempt(&definition, TRIAL);
	mip_set_publishes(true);	/* there may be more to come, in a pipeline */
	if (error)
		ReThrowError(error);
	refuse_temporary();
	release_locks();
	return write_definition(&definition);
}

/* ---- where it is applied ---- */

/* By what depends on a table, a child of it that has, or does not have, what it is to have, or a name */
static bool
may_be_kept_by_temporary(const ErrorData *error)
{
	switch (error->sqlerrcode)
	{
		case ERRCODE_CHECK_VIOLATION:
		case ERRCODE_DATATYPE_MISMATCH:
		case ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST:
		case ERRCODE_DUPLICATE_COLUMN:
		case ERRCODE_DUPLICATE_OBJECT:
		case ERRCODE_FEATURE_NOT_SUPPORTED:
		case ERRCODE_INVALID_TABLE_DEFINITION:
		case ERRCODE_NOT_NULL_VIOLATION:
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
		case ERRCODE_WRONG_OBJECT_TYPE:
			return true;
		default:
			return false;
	}
}

/*
 * It may fail for another reason, for as long as that is not mended, and is begun again and again:
 * sessions are ended for it the first time, the second, the fourth, the eighth, ...
 */
static bool
is_power_of_two(uint32 n)
{
	return (n & (n - 1)) == 0;
}

/* With a way for it, and without rows in indexes that only old snapshots see, which others may not have */
static ErrorData *
attempt_again(Definition *definition, const ErrorData *error, uint32 failures)
{
	if (may_be_kept_by_temporary(error) && is_power_of_two(failures))
		mip_temporary_clear();
	return attempt(definition, BY_WHAT_IS_SEEN);
}

static void
add_context(void *arg)
{
	errcontext("executing the definition of all replicas at position %llu: %s",
			   (unsigned long long) mip_member->defining, (const char *) arg);
}

void
mip_definition_execute(const MipMessage *message)
{
	Definition	definition = read_definition(message);
	ErrorContextCallback context = {error_context_stack, add_context, unconstify(char *, definition.command)};
	ErrorData  *error;

	error_context_stack = &context;
	error = attempt(&definition, FOR_GOOD);
	if (error)
	{
		uint32		failures = mip_definition_failed();

		if (!mip_may_pass(error->sqlerrcode))
			error = attempt_again(&definition, error, failures);
	}
	error_context_stack = context.previous;
	if (error)
		ReThrowError(error);
}
