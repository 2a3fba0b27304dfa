/*-------------------------------------------------------------------------
 *
 * build.h
 *	  A writeset in the making: changes of rows of some tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_BUILD_H
#define MIP_WRITESET_BUILD_H

#include "executor/tuptable.h"
#include "utils/rel.h"

typedef struct MipBuild MipBuild;

/* A table of it */
typedef struct MipBuildTable MipBuildTable;

/*
 * Begins one that has the changes numbered above `after`; about so many are to come, or 0 if
 * that is not known. Until its end the session's settings are those of mip_values_begin(). In
 * the current memory context, where the writeset will be, too.
 */
extern MipBuild *mip_build_begin(int64 after, int64 nchanges, int64 max_bytes);

/*
 * A table, which the caller keeps open until the end; each once. That the current user
 * may read it, he has checked.
 */
extern MipBuildTable *mip_build_table(MipBuild *build, Relation rel);

/*
 * Adds a change: 'I', 'U', 'D' or 'T', with its row before and after it. False if the
 * writeset would become longer than it may be: the change is not added, but a first one
 * always is.
 */
extern bool mip_build_change(MipBuild *build, MipBuildTable *table, char op, int64 number,
							 TupleTableSlot *old, TupleTableSlot *new);

/* The index whose key identifies its rows, or InvalidOid */
extern Oid	mip_build_identity(const MipBuildTable *table);

/* Before the relation is closed. */
extern void mip_build_close_table(MipBuildTable *table);

/* The writeset of all up to `last`. */
extern struct varlena *mip_build_end(MipBuild *build, int64 last);

#endif							/* MIP_WRITESET_BUILD_H */
