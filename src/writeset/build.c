/*-------------------------------------------------------------------------
 *
 * build.c
 *	  A writeset in the making: changes of rows of some tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/memnodes.h"
#include "utils/memutils.h"

#include "writeset/build.h"
#include "writeset/describe.h"
#include "writeset/format.h"
#include "writeset/format_encode.h"
#include "writeset/keys.h"
#include "writeset/values.h"

struct MipBuild
{
	MipwWriter *writer;
	uint64		most;			/* bytes it may have */
	bool		in_parts;		/* what is too much is for the next one */
	char		last_op;		/* of the last change; 0: there is none yet */
	int			level;			/* of the settings */
	MemoryContext row;			/* for one change at a time */
};

struct MipBuildTable
{
	MipwTable  *table;
	MipwKeys   *keys;
	bool		written;
	uint32		number;			/* in the writeset, if it is written */
	uint64		share;			/* of a change, beside its body, at most */
};

/* What a change has beside its body, and its share of what surrounds all */
#define OVERHEAD	64

MipBuild *
mip_build_begin(int64 after, int64 nchanges, int64 max_bytes)
{
	MipBuild   *build = palloc0(sizeof(MipBuild));
	uint64		most = MaxAllocSize - VARHDRSZ;

	build->in_parts = max_bytes > 0;
	build->most = build->in_parts ? Min(most, (uint64) max_bytes) : most;
	build->writer = mipw_begin(after + 1, Min((uint64) nchanges, build->most / OVERHEAD));
	build->row = AllocSetContextCreate(CurrentMemoryContext, "pg_mip change",
									   ALLOCSET_DEFAULT_SIZES);
	build->level = mip_values_begin();
	return build;
}

MipBuildTable *
mip_build_table(MipBuild *build, Relation rel)
{
	MipBuildTable *table = palloc0(sizeof(MipBuildTable));

	table->table = mip_describe(rel);
	table->keys = mip_keys_open(rel, table->table);
	table->share = OVERHEAD + 9 * mip_keys_most(table->keys);
	return table;
}

Oid
mip_build_identity(const MipBuildTable *table)
{
	return table->table->index;
}

void
mip_build_close_table(MipBuildTable *table)
{
	mip_keys_close(table->keys);
}

/* At most; to be known before it is written */
static uint64
description_size(const MipwRelation *relation)
{
	uint64		size = OVERHEAD + strlen(relation->schema) + strlen(relation->name);

	for (int i = 0; i < relation->ncolumns; i++)
		size += 16 + strlen(relation->columns[i].name) + strlen(relation->columns[i].type);
	return size;
}

static inline bool
fits(const MipBuild *build, const MipBuildTable *table)
{
	uint64		size = mipw_draft_size(build->writer) + table->share;

	if (unlikely(!table->written))
		size += description_size(&table->table->relation);
	return size <= build->most;
}

/* Tables that are truncated together are so in one part. */
static bool
may_be_larger(const MipBuild *build, char op)
{
	return build->in_parts && (build->last_op == 0 || (op == 'T' && build->last_op == 'T'));
}

/* If there is none, is there without repeated keys, or must there be? */
static pg_noinline bool
make_room(MipBuild *build, const MipBuildTable *table, char op)
{
	if (may_be_larger(build, op))
		return true;
	mipw_settle_keys(build->writer);
	if (fits(build, table))
		return true;
	if (!build->in_parts)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the writeset is longer than 1 GB"),
				 errhint("Ask for parts of it: give max_bytes.")));
	return false;
}

static pg_noinline void
write_relation(MipBuild *build, MipBuildTable *table)
{
	table->number = mipw_write_relation(build->writer, &table->table->relation);
	table->written = true;
}

/* Most changes need no memory. */
static inline void
reset(MemoryContext context)
{
	if (!context->isReset || context->firstchild)
		MemoryContextReset(context);
}

static inline bool
write_change(MipBuild *build, MipBuildTable *table, char op, int64 number,
			 TupleTableSlot *old, TupleTableSlot *new)
{
	MipwWriter *writer = build->writer;
	uint32		relation = table->written ? table->number : writer->nrelations;
	MipwBody   *body = mipw_change_begin(writer, op, number, relation, table->table->spare);

	if (op != 'T')
		mip_change_body(body, table->table, old, new);
	if (unlikely(!fits(build, table)) && !make_room(build, table, op))
	{
		mipw_change_cancel(writer);
		return false;
	}
	if (unlikely(!table->written))
		write_relation(build, table);
	mipw_change_end(writer, op, number);
	mipw_keys_of(writer, relation);
	mip_keys_write(table->keys, writer, op, old, new);
	build->last_op = op;
	return true;
}

bool
mip_build_change(MipBuild *build, MipBuildTable *table, char op, int64 number,
				 TupleTableSlot *old, TupleTableSlot *new)
{
	MemoryContext caller = MemoryContextSwitchTo(build->row);
	bool		written = write_change(build, table, op, number, old, new);

	MemoryContextSwitchTo(caller);
	reset(build->row);
	return written;
}

/* This database, wherever it is served */
static uint64
database_id(void)
{
	uint64		id[2] = {GetSystemIdentifier(), MyDatabaseId};

	return Max(mipw_fnv(MIPW_FNV, id, sizeof(id)), 1);
}

struct varlena *
mip_build_end(MipBuild *build, int64 last)
{
	struct varlena *writeset;

	mip_values_end(build->level);
	writeset = mipw_end(build->writer, last, database_id(), GetDatabaseEncoding());
	MemoryContextDelete(build->row);
	pfree(build);
	return writeset;
}
