/*-------------------------------------------------------------------------
 *
 * readable.c
 *	  Can a writeset be applied, as it is, to copies of the tables that it comes from?
 *
 * A value that is there need not be one that could be read: constructors take what input
 * functions refuse, as a circle of a negative radius; nor is what an index has been given
 * always what it would be given where the value has been read. Whoever applies a writeset
 * that others have agreed upon has no choice, so it is looked at before: by the same
 * functions, with less of the stack, and compressed as everywhere else. What has its names
 * from elsewhere, as regclass has, may be read as something else, or not at all, and is
 * refused. Of an update, indexes are given the whole row; what it has not changed may be
 * stored as here, where that was copied, or as it is when it has been read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_type_d.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/owner.h"
#include "base/settings.h"
#include "tableam/am.h"
#include "tableam/places.h"
#include "writeset/apply_column.h"
#include "writeset/apply_others.h"
#include "writeset/readable.h"
#include "writeset/room.h"
#include "writeset/types.h"
#include "writeset/values.h"

/* kB of it that PostgreSQL has by default */
#define STACK_ELSEWHERE	2048

typedef struct ReadTable
{
	Relation	rel;			/* NULL: not opened yet */
	MipColumn  *columns;
	MipwValue  *values;
	TupleTableSlot *slot;		/* what a change gives, or the whole row */
	TupleTableSlot *stored;		/* the row as it is here */
	ResultRelInfo *info;
	MipRoom   **rooms;			/* of its indexes */
	bool		needs_row;		/* to check an update */
	bool		may_be_long;	/* a row may have no room, with all out of
								 * line that can be */
} ReadTable;

typedef struct Reading
{
	const MipwSet *set;
	MipPlaces  *places;
	ReadTable  *tables;
	EState	   *estate;
	ReadTable  *current;		/* whose owner this is, for the time being */
	MipUser		caller;
	MemoryContext memory;		/* not of a change */
} Reading;

/* ---- types ---- */

/* Arrays, and the like, of xml have the output function's text: not all that is stored. */
static bool
is_xml(Oid type, HTAB *seen)
{
	return type == XMLOID || stack_is_too_deep();
}

static bool
has_xml_within(TupleDesc desc)
{
	HTAB	   *seen = mip_types_seen();
	bool		result = false;

	for (int i = 0; i < desc->natts && !result; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);

		result = !attr->attisdropped && getBaseType(attr->atttypid) != XMLOID &&
			mip_any_type(attr->atttypid, seen, is_xml);
	}
	hash_destroy(seen);
	return result;
}

static void
check_types(Relation rel)
{
	HTAB	   *seen = mip_types_seen();

	if (mip_any_column_type(RelationGetDescr(rel), seen, mip_visit_names_of_objects))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table \"%s\" cannot be replicated", RelationGetRelationName(rel)),
				 errdetail("A column has names of objects (regclass, and the like), which need not be there at other replicas.")));
	if (has_xml_within(RelationGetDescr(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table \"%s\" cannot be replicated", RelationGetRelationName(rel)),
				 errdetail("A column has xml within, whose declarations would be lost.")));
	hash_destroy(seen);
}

/* What is temporary may be found by functions of its indexes, and is not there elsewhere. */
static void
check_session(Relation rel)
{
	if (!mip_may_execute_code_of(rel->rd_rel->relowner) && mip_rows_go_by_others(rel, false))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table \"%s\" cannot be changed by a session with temporary objects", RelationGetRelationName(rel)),
				 errdetail("Its indexes, or domains within its columns, have functions, which might find them."),
				 errhint("Use DISCARD TEMP, or another session.")));
}

/* ---- tables ---- */

static Form_pg_attribute
find_column(Relation rel, const char *name)
{
	for (int i = 0; i < RelationGetNumberOfAttributes(rel); i++)
	{
		Form_pg_attribute attr = TupleDescAttr(RelationGetDescr(rel), i);

		if (!attr->attisdropped && strcmp(NameStr(attr->attname), name) == 0)
			return attr;
	}
	elog(ERROR, "table \"%s\" has no column \"%s\" any more", RelationGetRelationName(rel), name);
}

/* One that is being built, or was not built to its end, is not there elsewhere. */
static bool
is_looked_at(const ResultRelInfo *info, int i)
{
	return info->ri_IndexRelationInfo[i]->ii_ReadyForInserts;
}

static bool
is_plain(Form_pg_attribute attr)
{
	return !attr->attisdropped && attr->attlen == -1 && attr->attstorage == TYPSTORAGE_PLAIN;
}

/*
 * Behind `size` bytes of a row, what it takes with a value more, at least: one that is long is
 * somewhere else, and what points to it is there instead.
 */
static Size
with_value(Size size, Form_pg_attribute attr, Size length)
{
	if (attr->attlen != -1 || is_plain(attr))
		return att_align_nominal(size, attr->attalign) + length;
	length -= VARHDRSZ - VARHDRSZ_SHORT;
	return size + (length > MAXALIGN(TOAST_POINTER_SIZE) ? TOAST_POINTER_SIZE : length);
}

static Size
size_without_values(TupleDesc desc)
{
	return MAXALIGN(SizeofHeapTupleHeader + BITMAPLEN(desc->natts));
}

/* With the longest that stay where they are */
static bool
may_be_long(TupleDesc desc)
{
	Size		size = size_without_values(desc);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);

		if (is_plain(attr))
			return true;
		size = with_value(size, attr, attr->attlen >= 0 ? attr->attlen : MAXALIGN(TOAST_POINTER_SIZE) + VARHDRSZ - VARHDRSZ_SHORT);
	}
	return size > MaxHeapTupleSize;
}

static void
note_needs(ReadTable *table)
{
	table->may_be_long = may_be_long(RelationGetDescr(table->rel));
	table->needs_row = table->may_be_long;
	table->rooms = palloc(table->info->ri_NumIndices * sizeof(MipRoom *) + 1);
	for (int i = 0; i < table->info->ri_NumIndices; i++)
	{
		const IndexInfo *info = table->info->ri_IndexRelationInfo[i];

		if (!is_looked_at(table->info, i))
			continue;
		table->rooms[i] = mip_room_open(table->info->ri_IndexRelationDescs[i]);
		table->needs_row |= info->ii_Expressions || info->ii_Predicate || mip_room_goes_by_values(table->rooms[i]);
	}
}

/* By name, whoever may use its schema: it is of his transaction. */
static Relation
open_relation(const MipwRelation *relation)
{
	return relation_open(get_relname_relid(relation->name, get_namespace_oid(relation->schema, false)), NoLock);
}

static void
open_table(Reading *reading, uint32 number)
{
	MemoryContext caller = MemoryContextSwitchTo(reading->memory);
	const MipwRelation *relation = &reading->set->relations[number];
	ReadTable  *table = &reading->tables[number];

	table->rel = open_relation(relation);
	check_types(table->rel);
	check_session(table->rel);
	table->columns = palloc(relation->ncolumns * sizeof(MipColumn) + 1);
	table->values = palloc(relation->ncolumns * sizeof(MipwValue) + 1);
	for (int i = 0; i < relation->ncolumns; i++)
		mip_column_init(&table->columns[i], find_column(table->rel, relation->columns[i].name));
	table->slot = MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsVirtual);
	table->stored = MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsBufferHeapTuple);
	table->info = makeNode(ResultRelInfo);
	InitResultRelInfo(table->info, table->rel, 0, NULL, 0);
	ExecOpenIndices(table->info, false);
	note_needs(table);
	MemoryContextSwitchTo(caller);
}

static void
close_tables(Reading *reading)
{
	for (uint32 i = 0; i < reading->set->nrelations; i++)
	{
		ReadTable  *table = &reading->tables[i];

		if (table->rel == NULL)
			continue;
		ExecCloseIndices(table->info);
		ExecDropSingleTupleTableSlot(table->slot);
		ExecDropSingleTupleTableSlot(table->stored);
		relation_close(table->rel, NoLock);
	}
}

/* From here on it is its owner who executes something. */
static void
become_owner(Reading *reading, ReadTable *table)
{
	if (reading->current == table)
		return;
	if (reading->current)
		mip_become_again(reading->caller);
	reading->current = table;
	if (table)
		reading->caller = mip_become_owner(table->rel->rd_rel->relowner, true);
}

/* ---- rows ---- */

static Datum
read_value(const Reading *reading, ReadTable *table, int i)
{
	return mip_column_value(&table->columns[i], reading->set, &table->values[i]);
}

/* By what the row is found */
static void
read_identity(const Reading *reading, ReadTable *table, const MipwChange *change)
{
	const MipwRelation *relation = change->relation;

	if (change->op == 'I')
		return;
	mipw_identity(change, table->values);
	for (int i = 0; i < relation->nidentity; i++)
	{
		int			column = relation->identity[i];

		if (table->values[column].there && !table->values[column].null)
			(void) read_value(reading, table, column);
	}
}

/* What an update leaves as it is stays as it is in the slot. */
static void
read_row(const Reading *reading, ReadTable *table, const MipwChange *change)
{
	mipw_row(change, table->values);
	for (int i = 0; i < change->relation->ncolumns; i++)
	{
		const MipwValue *value = &table->values[i];
		int			attno = table->columns[i].attno;

		if (!value->there || attno == 0)
			continue;
		table->slot->tts_isnull[attno - 1] = value->null;
		if (!value->null)
			table->slot->tts_values[attno - 1] = read_value(reading, table, i);
	}
}

/* The row as this transaction has it, for what the change does not say of it */
static void
take_stored(const Reading *reading, ReadTable *table, const MipwChange *change)
{
	MipPlace	place;
	int			natts = RelationGetNumberOfAttributes(table->rel);

	if (mip_places_read(reading->places, mip_places_above(reading->places, change->number - 1), &place, 1) != 1 ||
		place.number != change->number ||
		!mip_heap()->tuple_fetch_row_version(table->rel, &place.new, SnapshotAny, table->stored))
		elog(ERROR, "change number %llu of table \"%s\" is not there any more",
			 (unsigned long long) change->number, RelationGetRelationName(table->rel));
	slot_getallattrs(table->stored);
	memcpy(table->slot->tts_values, table->stored->tts_values, natts * sizeof(Datum));
	memcpy(table->slot->tts_isnull, table->stored->tts_isnull, natts * sizeof(bool));
}

/* ---- is there room for it? ---- */

pg_noreturn static void
refuse_row(const ReadTable *table)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("a row is too long for table \"%s\" at other replicas", RelationGetRelationName(table->rel)),
			 errdetail("There it is not stored as it is here.")));
	pg_unreachable();
}

/* With all out of line that can be */
static void
check_length(const ReadTable *table)
{
	TupleDesc	desc = RelationGetDescr(table->rel);
	Size		size = size_without_values(desc);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);
		Size		length;

		if (table->slot->tts_isnull[i])
			continue;
		length = attr->attlen >= 0 ? attr->attlen :
			attr->attlen == -1 ? toast_raw_datum_size(table->slot->tts_values[i]) :
			strlen(DatumGetCString(table->slot->tts_values[i])) + 1;
		size = with_value(size, attr, length);
	}
	if (size > MaxHeapTupleSize)
		refuse_row(table);
}

static void
check_room(Reading *reading, ReadTable *table)
{
	if (table->may_be_long)
		check_length(table);
	for (int i = 0; i < table->info->ri_NumIndices; i++)
	{
		if (is_looked_at(table->info, i))
			mip_room_check_row(table->rooms[i], table->info->ri_IndexRelationInfo[i], table->slot, reading->estate);
	}
}

static void
check_change(Reading *reading, ReadTable *table, const MipwChange *change)
{
	bool		whole = change->op == 'I' || (change->op == 'U' && table->needs_row);
	int			level;

	ExecClearTuple(table->slot);
	memset(table->slot->tts_isnull, true, table->slot->tts_tupleDescriptor->natts);
	if (change->op == 'U' && whole)
		take_stored(reading, table, change);
	level = mip_values_begin();
	read_identity(reading, table, change);
	if (change->op != 'D')
		read_row(reading, table, change);
	mip_values_end(level);
	ExecStoreVirtualTuple(table->slot);
	if (whole)
		check_room(reading, table);
	if (whole && mip_row_expand(table->slot))
		check_room(reading, table);
	ExecClearTuple(table->stored);
}

/* An EState's contexts are where what is prepared once stays. */
static void
check_as_owner(Reading *reading, ReadTable *table, const MipwChange *change)
{
	MemoryContext caller;

	become_owner(reading, table);
	caller = MemoryContextSwitchTo(GetPerTupleMemoryContext(reading->estate));
	check_change(reading, table, change);
	MemoryContextSwitchTo(caller);
	ResetPerTupleExprContext(reading->estate);
}

void
mip_set_as_applied(void (*set) (const char *name, const char *value))
{
	set("bytea_output", "hex");
	set("extra_float_digits", "1");
	set("default_toast_compression", "pglz");
}

/* It may be deeper in the stack where it is applied, and that may be smaller. */
static void
use_less_stack(void)
{
	int			here = atoi(GetConfigOption("max_stack_depth", false, false));

	mip_set_for_now("max_stack_depth", psprintf("%d", Max(Min(here, STACK_ELSEWHERE) / 2, 100)));
}

static void
add_context(void *arg)
{
	errcontext("reading what has been changed as other replicas will");
}

void
mip_check_readable(const MipwSet *set, MipPlaces *places)
{
	ErrorContextCallback context = {error_context_stack, add_context, NULL};
	Reading		reading = {
		.set = set,
		.places = places,
		.tables = palloc0(set->nrelations * sizeof(ReadTable) + 1),
		.estate = CreateExecutorState(),
		.memory = CurrentMemoryContext,
	};
	MipwCursor	cursor = mipw_changes(set);
	int			level = NewGUCNestLevel();
	MipwChange	change;

	error_context_stack = &context;
	mip_set_as_applied(mip_set_for_now);
	use_less_stack();
	while (mipw_next(&cursor, &change))
	{
		ReadTable  *table = &reading.tables[change.nrelation];

		CHECK_FOR_INTERRUPTS();
		if (change.op == 'T')
			continue;
		if (table->rel == NULL)
		{
			become_owner(&reading, NULL);
			open_table(&reading, change.nrelation);
		}
		check_as_owner(&reading, table, &change);
	}
	become_owner(&reading, NULL);
	AtEOXact_GUC(false, level);
	close_tables(&reading);
	FreeExecutorState(reading.estate);
	error_context_stack = context.previous;
}
