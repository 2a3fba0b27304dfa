/*-------------------------------------------------------------------------
 *
 * build.c
 *	  A writeset in the making: changes of rows of some tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "writeset/build.h"
#include "writeset/describe.h"
#include "writeset/format.h"
#include "writeset/keys.h"
#include "writeset/values.h"

struct MipBuild
{
	MipwWriter *writer;
	uint64		most;			/* bytes it may have */
	bool		in_parts;		/* what is too much is for the next one */
	bool		empty;
	bool		truncates;		/* the last change is a TRUNCATE */
	int			level;			/* of the settings */
	MemoryContext row;			/* for one change at a time */
	StringInfoData body;		/* of that */
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
	build->empty = true;
	build->row = AllocSetContextCreate(CurrentMemoryContext, "pg_mip change",
									   ALLOCSET_DEFAULT_SIZES);
	initStringInfo(&build->body);
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
fits(const MipBuild *build, const MipBuildTable *table, const StringInfoData *body)
{
	uint64		size = mipw_size(build->writer) + body->len + table->share;

	if (unlikely(!table->written))
		size += description_size(&table->table->relation);
	return size <= build->most;
}

/* Tables that are truncated together are so in one part. */
static bool
may_be_larger(const MipBuild *build, char op)
{
	return build->in_parts && (build->empty || (op == 'T' && build->truncates));
}

static bool
has_room(MipBuild *build, const MipBuildTable *table, char op, const StringInfoData *body)
{
	if (fits(build, table, body) || may_be_larger(build, op))
		return true;
	mipw_settle_keys(build->writer);
	if (fits(build, table, body))
		return true;
	if (!build->in_parts)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the writeset is longer than 1 GB"),
				 errhint("Ask for parts of it: give max_bytes.")));
	return false;
}

bool
mip_build_change(MipBuild *build, MipBuildTable *table, char op, int64 number,
				 TupleTableSlot *old, TupleTableSlot *new)
{
	MemoryContext caller = MemoryContextSwitchTo(build->row);
	StringInfo	body = &build->body;
	bool		written;

	body->len = 0;
	if (op != 'T')
		mip_change_body(body, table->table, old, new);
	written = has_room(build, table, op, body);
	if (written)
	{
		if (!table->written)
			table->number = mipw_write_relation(build->writer, &table->table->relation);
		table->written = true;
		mipw_write_change(build->writer, op, number, table->number, body);
		mip_keys_write(table->keys, build->writer, op, old, new);
		build->empty = false;
		build->truncates = op == 'T';
	}
	MemoryContextSwitchTo(caller);
	MemoryContextReset(build->row);
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
	pfree(build->body.data);
	pfree(build);
	return writeset;
}
