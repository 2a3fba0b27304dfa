/*-------------------------------------------------------------------------
 *
 * keys.h
 *	  Keys of changes: what two writesets are compared by.
 *
 *	  K		claimed, changed or removed: of all unique indexes, old and new; by
 *			TRUNCATE, of the relation
 *	  N		the row has changed, its identity has not
 *	  R		referred to by a foreign key that has been set; by each change, of the
 *			relation, and of all that it is a partition of
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_KEYS_H
#define MIP_WRITESET_KEYS_H

#include "executor/tuptable.h"
#include "utils/rel.h"

#include "writeset/describe.h"
#include "writeset/format.h"

typedef struct MipwKeys MipwKeys;

/*
 * Locks the indexes that what follows opens (AccessShareLock, until the transaction ends),
 * unless somebody has to be waited for: then one for which that is so, else InvalidOid.
 */
extern Oid	mip_keys_lock(Relation rel);

/*
 * In the current memory context, for as long as the relation stays open; mip_describe()
 * has described it.
 */
extern MipwKeys *mip_keys_open(Relation rel, MipwTable *table);
extern void mip_keys_close(MipwKeys *keys);

/*
 * Writes the keys of a change: rows as for mip_change_body(), which has written its body
 * just before, under the same settings.
 * What it needs for the row it takes from the current memory context.
 */
extern void mip_keys_write(MipwKeys *keys, MipwWriter *writer, char op,
						   TupleTableSlot *old, TupleTableSlot *new);

/* How many that may be, at most */
extern int	mip_keys_most(const MipwKeys *keys);

#endif							/* MIP_WRITESET_KEYS_H */
