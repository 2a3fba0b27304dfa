/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Whole tables: as insertions, and compared by a checksum.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_inherits.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "tableam/lost_reads.h"
#include "writeset/build.h"
#include "writeset/describe.h"
#include "writeset/rights.h"
#include "writeset/table.h"
#include "writeset/values.h"

/* ---- the rows ---- */

/* What is done with the tables */
typedef struct Visitor
{
	void		(*begin) (Relation rel, void *arg);
	void		(*row) (TupleTableSlot *slot, void *arg);
	void		(*end) (void *arg);
	void	   *arg;
} Visitor;

static void
visit_table(Relation rel, const Visitor *visitor)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, GetActiveSnapshot(), 0, NULL);

	visitor->begin(rel, visitor->arg);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		visitor->row(slot, visitor->arg);
	}
	visitor->end(visitor->arg);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

static void
refuse_kind(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("\"%s\" is not an ordinary or partitioned table",
					RelationGetRelationName(rel))));
}

/* A table, or a partition: those that are partitioned themselves have no rows. */
static void
visit_one(Oid relid, const Visitor *visitor)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (rel->rd_rel->relkind == RELKIND_RELATION)
		visit_table(rel, visitor);
	else if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		refuse_kind(rel);
	relation_close(rel, NoLock);
}

static void
visit_all(Oid relid, const Visitor *visitor)
{
	ListCell   *lc;

	if (get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE)
	{
		visit_one(relid, visitor);
		return;
	}
	foreach(lc, find_all_inheritors(relid, AccessShareLock, NULL))
		visit_one(lfirst_oid(lc), visitor);
}

/* There may be no statement that would note that a read is lost: PL/pgSQL's expressions. */
static void
visit(Oid relid, const Visitor *visitor)
{
	PG_TRY();
	{
		visit_all(relid, visitor);
	}
	PG_CATCH();
	{
		mip_lost_reads_note();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* ---- as insertions ---- */

typedef struct Copy
{
	int64		max_bytes;
	int64		number;			/* of the last row */
	bool		any;			/* in the writeset that is being made */
	MemoryContext part;			/* for that one */
	MipBuild   *build;			/* NULL: there is none */
	Relation	rel;
	MipBuildTable *table;		/* `rel` in it */
	void		(*put) (struct varlena *writeset, void *arg);
	void	   *arg;
} Copy;

static void
begin_part(Copy *copy)
{
	MemoryContext old = MemoryContextSwitchTo(copy->part);

	copy->build = mip_build_begin(copy->number, 0, copy->max_bytes);
	copy->any = false;
	MemoryContextSwitchTo(old);
}

static void
begin_table(Copy *copy)
{
	MemoryContext old = MemoryContextSwitchTo(copy->part);

	mip_check_may_read(copy->rel, false);
	copy->table = mip_build_table(copy->build, copy->rel);
	MemoryContextSwitchTo(old);
}

static void
end_part(Copy *copy)
{
	struct varlena *writeset = mip_build_end(copy->build, copy->number);

	if (copy->any)
		copy->put(writeset, copy->arg);
	pfree(writeset);
	MemoryContextReset(copy->part);
	copy->build = NULL;
}

static void
copy_begin(Relation rel, void *arg)
{
	Copy	   *copy = arg;

	if (copy->build == NULL)
		begin_part(copy);
	copy->rel = rel;
	begin_table(copy);
}

static bool
copy_one(Copy *copy, TupleTableSlot *slot)
{
	if (!mip_build_change(copy->build, copy->table, 'I', copy->number + 1, NULL, slot))
		return false;
	copy->number++;
	return copy->any = true;
}

static void
copy_row(TupleTableSlot *slot, void *arg)
{
	Copy	   *copy = arg;

	if (copy_one(copy, slot))
		return;
	mip_build_close_table(copy->table);
	end_part(copy);
	begin_part(copy);
	begin_table(copy);
	/* a first row always has room */
	(void) copy_one(copy, slot);
}

static void
copy_end(void *arg)
{
	mip_build_close_table(((Copy *) arg)->table);
}

void
mip_table_writesets(Oid relid, int64 max_bytes,
					void (*put) (struct varlena *writeset, void *arg), void *arg)
{
	Copy		copy = {.max_bytes = max_bytes,.put = put,.arg = arg};
	Visitor		visitor = {copy_begin, copy_row, copy_end, &copy};

	copy.part = AllocSetContextCreate(CurrentMemoryContext, "pg_mip copy",
									  ALLOCSET_DEFAULT_SIZES);
	visit(relid, &visitor);
	if (copy.build)
		end_part(&copy);
	MemoryContextDelete(copy.part);
}

/* ---- the checksum ---- */

/* Two hashes of 64 bits; sums of them do not depend on an order. */
typedef struct Sum
{
	uint64		low;
	uint64		high;
} Sum;

typedef struct Checksum
{
	Sum			sum;
	uint64		rows;
	MemoryContext table_memory;
	MemoryContext row_memory;
	MipwTable  *table;
	Sum		   *seeds;			/* of its columns: their names */
} Checksum;

static Sum
hash_bytes_twice(const void *bytes, size_t length, Sum seed)
{
	Sum			sum = {
		.low = hash_bytes_extended(bytes, length, seed.low),
		.high = hash_bytes_extended(bytes, length, seed.high),
	};

	return sum;
}

static void
checksum_begin(Relation rel, void *arg)
{
	Checksum   *checksum = arg;
	MemoryContext old = MemoryContextSwitchTo(checksum->table_memory);
	const MipwRelation *relation;
	const Sum	seed = {1, 2};

	mip_check_may_read(rel, false);
	checksum->table = mip_describe(rel);
	relation = &checksum->table->relation;
	checksum->seeds = palloc(sizeof(Sum) * relation->ncolumns + 1);
	for (int i = 0; i < relation->ncolumns; i++)
	{
		const char *name = relation->columns[i].name;

		checksum->seeds[i] = hash_bytes_twice(name, strlen(name), seed);
	}
	MemoryContextSwitchTo(old);
}

/* The sum of its columns' hashes, hashed, so that the values of a row belong together. */
static void
checksum_row(TupleTableSlot *slot, void *arg)
{
	Checksum   *checksum = arg;
	const MipwTable *table = checksum->table;
	MemoryContext old = MemoryContextSwitchTo(checksum->row_memory);
	const Sum	seed = {3, 4};
	Sum			row = {0};
	Sum			hash;

	slot_getallattrs(slot);
	for (int i = 0; i < table->relation.ncolumns; i++)
	{
		int			att = table->attnums[i] - 1;
		uint8		room[MIPW_WIDEST];
		MipwValue	value;

		if (slot->tts_isnull[att])
			continue;
		mip_value_encode(&table->codecs[i], slot->tts_values[att], room, &value);
		hash = hash_bytes_twice(value.data, value.length, checksum->seeds[i]);
		row.low += hash.low;
		row.high += hash.high;
	}
	hash = hash_bytes_twice(&row, sizeof(row), seed);
	checksum->sum.low += hash.low;
	checksum->sum.high += hash.high;
	checksum->rows++;
	MemoryContextSwitchTo(old);
	MemoryContextReset(checksum->row_memory);
}

static void
checksum_end(void *arg)
{
	MemoryContextReset(((Checksum *) arg)->table_memory);
}

char *
mip_table_checksum(Oid relid)
{
	Checksum	checksum = {0};
	Visitor		visitor = {checksum_begin, checksum_row, checksum_end, &checksum};
	int			level;

	checksum.table_memory = AllocSetContextCreate(CurrentMemoryContext, "pg_mip table",
												  ALLOCSET_DEFAULT_SIZES);
	checksum.row_memory = AllocSetContextCreate(CurrentMemoryContext, "pg_mip row",
												ALLOCSET_DEFAULT_SIZES);
	level = mip_values_begin();
	visit(relid, &visitor);
	mip_values_end(level);
	MemoryContextDelete(checksum.row_memory);
	MemoryContextDelete(checksum.table_memory);
	return psprintf("%llu:%016llx%016llx", (unsigned long long) checksum.rows,
					(unsigned long long) checksum.sum.high, (unsigned long long) checksum.sum.low);
}
