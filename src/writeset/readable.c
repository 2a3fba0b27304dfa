/*-------------------------------------------------------------------------
 *
 * readable.c
 *	  Can a writeset be applied, as it is, to copies of the tables that it comes from?
 *
 * A value that is there need not be one that could be read: constructors take what input
 * functions refuse, as a circle of a negative radius; nor is what an index has been given
 * always what it would be given where the value has been read. Whoever applies a writeset
 * that others have agreed upon has no choice, so it is looked at before: by the same
 * functions, with less of the stack. What has its names from elsewhere, as regclass has,
 * may be read as something else, or not at all, and is refused.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/itup.h"
#include "access/nbtree.h"
#include "access/relation.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_type_d.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/owner.h"
#include "writeset/apply_column.h"
#include "writeset/readable.h"
#include "writeset/types.h"
#include "writeset/values.h"

/* An entry of a btree has no more room: a third of a page. */
#define BTREE_ENTRY_MAX \
	(MAXALIGN_DOWN((BLCKSZ - MAXALIGN(SizeOfPageHeaderData + 3 * sizeof(ItemIdData)) - \
					MAXALIGN(sizeof(BTPageOpaqueData))) / 3) - MAXALIGN(sizeof(ItemPointerData)))

typedef struct ReadTable
{
	Relation	rel;			/* NULL: not opened yet */
	MipColumn  *columns;
	MipwValue  *values;
	TupleTableSlot *slot;
	ResultRelInfo *info;
} ReadTable;

typedef struct Reading
{
	const MipwSet *set;
	ReadTable  *tables;
	EState	   *estate;
} Reading;

/* ---- types ---- */

static bool
has_names_from_elsewhere(Oid type, HTAB *seen)
{
	switch (type)
	{
		case ACLITEMOID:
		case REGCLASSOID:
		case REGCOLLATIONOID:
		case REGCONFIGOID:
		case REGDICTIONARYOID:
		case REGNAMESPACEOID:
		case REGOPERATOROID:
		case REGOPEROID:
		case REGPROCEDUREOID:
		case REGPROCOID:
		case REGROLEOID:
		case REGTYPEOID:
			return true;
		default:
			return stack_is_too_deep();
	}
}

static void
check_types(Relation rel)
{
	HTAB	   *seen = mip_types_seen();

	if (mip_any_column_type(RelationGetDescr(rel), seen, has_names_from_elsewhere))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table \"%s\" cannot be replicated", RelationGetRelationName(rel)),
				 errdetail("A column has names of objects (regclass, and the like), which need not be there at other replicas.")));
	hash_destroy(seen);
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

static ReadTable *
open_table(Reading *reading, uint32 number)
{
	const MipwRelation *relation = &reading->set->relations[number];
	ReadTable  *table = &reading->tables[number];

	if (table->rel)
		return table;
	table->rel = relation_open(RangeVarGetRelid(makeRangeVar(relation->schema, relation->name, -1),
												NoLock, false), NoLock);
	check_types(table->rel);
	table->columns = palloc(relation->ncolumns * sizeof(MipColumn) + 1);
	table->values = palloc(relation->ncolumns * sizeof(MipwValue) + 1);
	for (int i = 0; i < relation->ncolumns; i++)
		mip_column_init(&table->columns[i], find_column(table->rel, relation->columns[i].name));
	table->slot = MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsVirtual);
	table->info = makeNode(ResultRelInfo);
	InitResultRelInfo(table->info, table->rel, 0, NULL, 0);
	ExecOpenIndices(table->info, false);
	return table;
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
		relation_close(table->rel, NoLock);
	}
}

/* ---- rows ---- */

/* What an update leaves as it is is null in the slot; which columns have values */
static Bitmapset *
read_row(const MipwSet *set, ReadTable *table, const MipwChange *change)
{
	Bitmapset  *given = NULL;

	mipw_row(change, table->values);
	ExecClearTuple(table->slot);
	memset(table->slot->tts_isnull, true, table->slot->tts_tupleDescriptor->natts);
	for (int i = 0; i < change->relation->ncolumns; i++)
	{
		const MipwValue *value = &table->values[i];
		int			attno = table->columns[i].attno;

		if (!value->there)
			continue;
		given = bms_add_member(given, attno);
		if (value->null)
			continue;
		table->slot->tts_isnull[attno - 1] = false;
		table->slot->tts_values[attno - 1] = mip_column_value(&table->columns[i], set, value);
	}
	ExecStoreVirtualTuple(table->slot);
	return given;
}

/* Is all there that it is made of? */
static bool
is_given(const IndexInfo *info, const Bitmapset *given, bool whole)
{
	if (whole)
		return true;
	if (info->ii_Expressions || info->ii_Predicate)
		return false;
	for (int i = 0; i < info->ii_NumIndexAttrs; i++)
		if (!bms_is_member(info->ii_IndexAttrNumbers[i], given))
			return false;
	return true;
}

static void
check_entry(Reading *reading, Relation index, IndexInfo *info, TupleTableSlot *slot)
{
	ExprContext *context = GetPerTupleExprContext(reading->estate);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	context->ecxt_scantuple = slot;
	if (info->ii_Predicate && info->ii_PredicateState == NULL)
		info->ii_PredicateState = ExecPrepareQual(info->ii_Predicate, reading->estate);
	if (!ExecQual(info->ii_PredicateState, context))
		return;
	FormIndexDatum(info, slot, reading->estate, values, nulls);
	if (index->rd_rel->relam != BTREE_AM_OID)
		return;
	if (MAXALIGN(IndexTupleSize(index_form_tuple(RelationGetDescr(index), values, nulls))) > BTREE_ENTRY_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a value is too long for index \"%s\" at other replicas", RelationGetRelationName(index)),
				 errdetail("There it is not stored as it is here.")));
}

static void
check_row(Reading *reading, ReadTable *table, const MipwChange *change)
{
	int			level = mip_values_begin();
	Bitmapset  *given = read_row(reading->set, table, change);

	mip_values_end(level);
	for (int i = 0; i < table->info->ri_NumIndices; i++)
	{
		IndexInfo  *info = table->info->ri_IndexRelationInfo[i];

		if (is_given(info, given, change->op == 'I'))
			check_entry(reading, table->info->ri_IndexRelationDescs[i], info, table->slot);
	}
}

static void
check_as_owner(Reading *reading, ReadTable *table, const MipwChange *change)
{
	MemoryContext caller = MemoryContextSwitchTo(GetPerTupleMemoryContext(reading->estate));
	MipUser		user = mip_become_owner(table->rel->rd_rel->relowner, true);

	check_row(reading, table, change);
	mip_become_again(user);
	MemoryContextSwitchTo(caller);
	ResetPerTupleExprContext(reading->estate);
}

/* Whoever applies it may be deeper in it than we are. */
static void
use_less_stack(void)
{
	int			all = atoi(GetConfigOption("max_stack_depth", false, false));

	(void) set_config_option("max_stack_depth", psprintf("%d", Max(all / 2, 100)), PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

static void
add_context(void *arg)
{
	errcontext("reading what has been changed as other replicas will");
}

void
mip_check_readable(const MipwSet *set)
{
	ErrorContextCallback context = {error_context_stack, add_context, NULL};
	Reading		reading = {set, palloc0(set->nrelations * sizeof(ReadTable) + 1), CreateExecutorState()};
	MipwCursor	cursor = mipw_changes(set);
	int			level = NewGUCNestLevel();
	MipwChange	change;

	error_context_stack = &context;
	use_less_stack();
	while (mipw_next(&cursor, &change))
	{
		CHECK_FOR_INTERRUPTS();
		if (change.op == 'I' || change.op == 'U')
			check_as_owner(&reading, open_table(&reading, change.nrelation), &change);
	}
	AtEOXact_GUC(false, level);
	close_tables(&reading);
	FreeExecutorState(reading.estate);
	error_context_stack = context.previous;
}
