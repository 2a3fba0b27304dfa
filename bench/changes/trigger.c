/*
 * trigger.c
 *	  A row trigger in C that does as little as one can that captures changes:
 *	  it keeps the tuples in memory until the transaction ends.
 *
 * bench/changes/triggers.py compiles it.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/memutils.h"
#include "utils/rel.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(remember_change);
PG_FUNCTION_INFO_V1(remembered_changes);
PG_FUNCTION_INFO_V1(remembered_bytes);

/* lives in TopTransactionContext */
static StringInfo changes = NULL;
static int64 count = 0;

static void
forget_changes(void *arg)
{
	changes = NULL;
	count = 0;
}

static void
begin_changes(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	MemoryContextCallback *forget = palloc0(sizeof(MemoryContextCallback));

	forget->func = forget_changes;
	MemoryContextRegisterResetCallback(TopTransactionContext, forget);
	changes = makeStringInfo();
	MemoryContextSwitchTo(old);
}

static void
remember_tuple(HeapTuple tuple)
{
	appendBinaryStringInfo(changes, (char *) &tuple->t_len, sizeof(tuple->t_len));
	appendBinaryStringInfo(changes, (char *) tuple->t_data, tuple->t_len);
}

Datum
remember_change(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	char		op = TRIGGER_FIRED_BY_INSERT(data->tg_event) ? 'I' :
		TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? 'U' : 'D';
	Oid			relid = RelationGetRelid(data->tg_relation);

	if (changes == NULL)
		begin_changes();
	count++;
	appendStringInfoChar(changes, op);
	appendBinaryStringInfo(changes, (char *) &relid, sizeof(relid));
	remember_tuple(data->tg_trigtuple);
	if (op == 'U')
		remember_tuple(data->tg_newtuple);
	PG_RETURN_POINTER(NULL);
}

Datum
remembered_changes(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(count);
}

Datum
remembered_bytes(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(changes ? changes->len : 0);
}
