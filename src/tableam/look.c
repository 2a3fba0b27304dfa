/*-------------------------------------------------------------------------
 *
 * look.c
 *	  Somebody looks at each row before it is written.
 *
 * At COMMIT it is too late for what stays though the transaction is rolled back: entries in
 * indexes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"
#include "tableam/look.h"

static TableAmRoutine inner;
static void (*look_at) (Relation rel, TupleTableSlot *row) = NULL;

static void
mip_looking_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
				   struct BulkInsertStateData *bistate)
{
	look_at(rel, slot);
	inner.tuple_insert(rel, slot, cid, options, bistate);
}

static void
mip_looking_insert_speculative(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
							   struct BulkInsertStateData *bistate, uint32 token)
{
	look_at(rel, slot);
	inner.tuple_insert_speculative(rel, slot, cid, options, bistate, token);
}

static void
mip_looking_multi_insert(Relation rel, TupleTableSlot **slots, int nslots, CommandId cid,
						 int options, struct BulkInsertStateData *bistate)
{
	for (int i = 0; i < nslots; i++)
		look_at(rel, slots[i]);
	inner.multi_insert(rel, slots, nslots, cid, options, bistate);
}

static TM_Result
mip_looking_update(Relation rel, ItemPointer otid, TupleTableSlot *slot, CommandId cid,
				   Snapshot snapshot, Snapshot crosscheck, bool wait, TM_FailureData *tmfd,
				   LockTupleMode *lockmode, MipUpdateIndexes *update_indexes)
{
	look_at(rel, slot);
	return inner.tuple_update(rel, otid, slot, cid, snapshot, crosscheck, wait, tmfd, lockmode,
							  update_indexes);
}

void
mip_tableam_look(TableAmRoutine *routine)
{
	if (look_at == NULL)
		return;
	inner = *routine;
	routine->tuple_insert = mip_looking_insert;
	routine->tuple_insert_speculative = mip_looking_insert_speculative;
	routine->multi_insert = mip_looking_multi_insert;
	routine->tuple_update = mip_looking_update;
}

void
mip_rows_looked_at_by(void (*look) (Relation rel, TupleTableSlot *row))
{
	look_at = look;
}
