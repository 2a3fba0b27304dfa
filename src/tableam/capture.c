/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  Writesets: noting where a transaction changes rows of mip tables.
 *
 * Outermost of the access method's layers: what has been done to a row is noted
 * when all others have done it, by heap's code or in the overlay. What is noted
 * is the place (places.c); values are read when somebody asks for them, for until
 * the transaction has ended they are where they were.
 *
 * A transaction is captured as a whole or not at all: its first change of a table
 * that can be captured decides. Switched off, a change costs a branch.
 *
 * Not captured are temporary tables, which are the session's own, materialized
 * views, which are computed, and what is written to the table that takes the place
 * of a rewritten one: the rows there are the same as before.
 *
 * TRUNCATE is known by the new file, in whatever way it comes about; and where
 * the table's file is as new as the transaction, by its being emptied.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/partitions.h"
#include "tableam/am.h"
#include "tableam/capture.h"
#include "tableam/places.h"

/* The setting */
static bool capture_writeset;

static enum
{
	UNDECIDED,
	CAPTURED,
	NOT_CAPTURED
}			transaction;

/* Nesting of the transaction where a writeset changes a row, or 0: nothing nests in that */
static int	paused;

/* Tables that are truncated by a writeset that is applied */
static const List *truncated_by_writeset;

static bool
never(void)
{
	return false;
}

static bool (*captured_anyway) (void) = never;

static TableAmRoutine inner;

static bool
can_be_captured(Relation rel)
{
	return rel->rd_rel->relpersistence != RELPERSISTENCE_TEMP &&
		rel->rd_rel->relkind == RELKIND_RELATION &&
		!OidIsValid(rel->rd_rel->relrewrite);
}

static bool
is_captured(Relation rel)
{
	if (paused || !can_be_captured(rel))
		return false;
	if (transaction == UNDECIDED)
		transaction = captured_anyway() || capture_writeset ? CAPTURED : NOT_CAPTURED;
	return transaction == CAPTURED;
}

/* One that is not maintained yet has kept no rows apart, and has no keys. */
static bool
is_key(Oid index, bool *valid)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	result = (form->indisunique || form->indisexclusion) && form->indisready;
	*valid = form->indisvalid;
	ReleaseSysCache(tuple);
	return result;
}

/* Only a partition's index is one of another index. */
static void
add_key(MipPlaceKeys *keys, Relation rel, Oid index, bool valid)
{
	Oid			topmost = rel->rd_rel->relispartition ? mip_partition_topmost(index) : index;
	MipPlaceKey key = {index, topmost, valid};

	keys->keys[keys->n++] = key;
}

/* The table that has the topmost of the indexes, by which a reference is named */
static Oid
table_of_topmost(Oid constraint)
{
	return IndexGetRelation(mip_partition_topmost(mip_referenced_index(constraint)), true);
}

/*
 * What they refer to is not locked by us before they are checked. The index may be
 * another one by then, as by REINDEX CONCURRENTLY; that says nothing.
 */
static void
add_references(MipPlaceKeys *keys, List *fks)
{
	ListCell   *lc;

	foreach(lc, fks)
	{
		ForeignKeyCacheInfo *fk = lfirst_node(ForeignKeyCacheInfo, lc);
		MipPlaceKey reference = {fk->conoid, table_of_topmost(fk->conoid), true};

		keys->keys[keys->n + keys->nreferences++] = reference;
	}
}

MipPlaceKeys *
mip_capture_keys(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	List	   *fks = RelationGetFKeyList(rel);
	MipPlaceKeys *keys;
	ListCell   *lc;

	if (fks)
		fks = copyObject(fks);
	keys = palloc(mip_place_keys_size(list_length(indexes) + list_length(fks)));
	keys->topmost = rel->rd_rel->relispartition ?
		mip_partition_topmost(RelationGetRelid(rel)) : InvalidOid;
	keys->identity = rel->rd_rel->relreplident == REPLICA_IDENTITY_INDEX ?
		RelationGetReplicaIndex(rel) : InvalidOid;
	keys->n = keys->nreferences = 0;
	foreach(lc, indexes)
	{
		bool		valid;

		if (is_key(lfirst_oid(lc), &valid))
			add_key(keys, rel, lfirst_oid(lc), valid);
	}
	add_references(keys, fks);
	list_free(indexes);
	list_free_deep(fks);
	return keys;
}

static void
append(Relation rel, Oid filenumber, MipPlaceOp op,
	   const ItemPointerData *old, const ItemPointerData *new)
{
	MipPlaceFile file = {RelationGetRelid(rel), filenumber};
	MemoryContext caller;

	if (!mip_places_append(file, op, old, new))
		return;
	caller = MemoryContextSwitchTo(TopTransactionContext);
	mip_places_set_keys(mip_capture_keys(rel));
	MemoryContextSwitchTo(caller);
}

static pg_noinline void
note_other(Relation rel, MipPlaceOp op, const ItemPointerData *old, const ItemPointerData *new)
{
	if (is_captured(rel))
		append(rel, mip_filenumber(&rel->MIP_RD_LOCATOR), op, old, new);
}

/* What has been noted of the same file just now needs no look at the table. */
static inline void
note(Relation rel, MipPlaceOp op, const ItemPointerData *old, const ItemPointerData *new)
{
	MipPlaceFile file = {RelationGetRelid(rel), mip_filenumber(&rel->MIP_RD_LOCATOR)};

	if (likely(transaction == NOT_CAPTURED))
		return;
	if (paused || !mip_places_append_like_last(file, op, old, new))
		note_other(rel, op, old, new);
}

/* ---- callbacks ---- */

static void
mip_captured_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
					struct BulkInsertStateData *bistate)
{
	inner.tuple_insert(rel, slot, cid, options, bistate);
	note(rel, MIP_PLACE_INSERT, NULL, &slot->tts_tid);
}

static void
mip_captured_complete_speculative(Relation rel, TupleTableSlot *slot, uint32 token,
								  bool succeeded)
{
	inner.tuple_complete_speculative(rel, slot, token, succeeded);
	if (succeeded)
		note(rel, MIP_PLACE_INSERT, NULL, &slot->tts_tid);
}

static void
mip_captured_multi_insert(Relation rel, TupleTableSlot **slots, int nslots, CommandId cid,
						  int options, struct BulkInsertStateData *bistate)
{
	inner.multi_insert(rel, slots, nslots, cid, options, bistate);
	for (int i = 0; i < nslots; i++)
		note(rel, MIP_PLACE_INSERT, NULL, &slots[i]->tts_tid);
}

static TM_Result
mip_captured_delete(Relation rel, ItemPointer tid, CommandId cid, Snapshot snapshot,
					Snapshot crosscheck, bool wait, TM_FailureData *tmfd, bool changing_part)
{
	TM_Result	result = inner.tuple_delete(rel, tid, cid, snapshot, crosscheck, wait, tmfd,
											changing_part);

	if (result == TM_Ok)
		note(rel, MIP_PLACE_DELETE, tid, NULL);
	return result;
}

static TM_Result
mip_captured_update(Relation rel, ItemPointer otid, TupleTableSlot *slot, CommandId cid,
					Snapshot snapshot, Snapshot crosscheck, bool wait, TM_FailureData *tmfd,
					LockTupleMode *lockmode, MipUpdateIndexes *update_indexes)
{
	ItemPointerData old = *otid;	/* it may be the slot's own */
	TM_Result	result = inner.tuple_update(rel, otid, slot, cid, snapshot, crosscheck, wait,
											tmfd, lockmode, update_indexes);

	if (result == TM_Ok)
		note(rel, MIP_PLACE_UPDATE, &old, &slot->tts_tid);
	return result;
}

/* False: it is not noted. */
static bool
note_truncate(Relation rel, Oid filenumber)
{
	if (list_member_oid(truncated_by_writeset, RelationGetRelid(rel)) || !is_captured(rel))
		return false;
	append(rel, filenumber, MIP_PLACE_TRUNCATE, NULL, NULL);
	return true;
}

/*
 * Rewrites make a table of their own, new tables have no other file yet: what is
 * left is TRUNCATE.
 */
static void
mip_captured_set_new_file(Relation rel, const MipFileLocator *file, char persistence,
						  TransactionId *freezeXid, MultiXactId *minmulti)
{
	bool		truncates = mip_filenumber(&rel->MIP_RD_LOCATOR) != mip_filenumber(file);

	inner.mip_set_new_file(rel, file, persistence, freezeXid, minmulti);
	if (truncates)
		(void) note_truncate(rel, mip_filenumber(file));
}

static void
mip_captured_nontransactional_truncate(Relation rel)
{
	MipPlaceFile file = {RelationGetRelid(rel), mip_filenumber(&rel->MIP_RD_LOCATOR)};

	inner.relation_nontransactional_truncate(rel);
	if (!note_truncate(rel, file.filenumber))
		mip_places_empty(file);
}

/* Of ALTER TABLE: the table that is rewritten becomes a mip table, if it is none. */
static void
mip_captured_finish_bulk_insert(Relation rel, int options)
{
	Relation	rewritten;

	if (inner.finish_bulk_insert)
		inner.finish_bulk_insert(rel, options);
	if (transaction == NOT_CAPTURED || !OidIsValid(rel->rd_rel->relrewrite))
		return;
	rewritten = relation_open(rel->rd_rel->relrewrite, NoLock);
	if (!mip_relation_is_mip(rewritten))
		mip_capture_opt_in(rewritten);
	relation_close(rewritten, NoLock);
}

void
mip_tableam_capture(TableAmRoutine *routine)
{
	inner = *routine;
	routine->tuple_insert = mip_captured_insert;
	routine->tuple_complete_speculative = mip_captured_complete_speculative;
	routine->multi_insert = mip_captured_multi_insert;
	routine->tuple_delete = mip_captured_delete;
	routine->tuple_update = mip_captured_update;
	routine->mip_set_new_file = mip_captured_set_new_file;
	routine->finish_bulk_insert = mip_captured_finish_bulk_insert;
	routine->relation_nontransactional_truncate = mip_captured_nontransactional_truncate;
}

/* ---- tables that opt in ---- */

/* Has this transaction changed it, or might it have? */
static bool
may_have_been_changed(Relation rel)
{
	if (rel->rd_createSubid != InvalidSubTransactionId)
		return RelationGetNumberOfBlocks(rel) > 0;
	return rel->MIP_RD_FIRST_FILE_SUBID != InvalidSubTransactionId ||
		CheckRelationLockedByMe(rel, RowExclusiveLock, false);
}

/* A change that is nowhere to be read stands for those that are not captured. */
void
mip_capture_opt_in(Relation rel)
{
	ItemPointerData nowhere;

	if (!may_have_been_changed(rel) || !is_captured(rel))
		return;
	ItemPointerSet(&nowhere, 0, FirstOffsetNumber);
	append(rel, InvalidOid, MIP_PLACE_DELETE, &nowhere, NULL);
}

/* ---- the transaction ---- */

void
mip_capture_if(bool (*anyway) (void))
{
	captured_anyway = anyway;
}

bool
mip_captures(void)
{
	return transaction == UNDECIDED ? capture_writeset : transaction == CAPTURED;
}

bool
mip_capture_pause(bool pause)
{
	bool		before = paused > 0;

	paused = pause ? GetCurrentTransactionNestLevel() : 0;
	return before;
}

const List *
mip_capture_pause_truncate(const List *relids)
{
	const List *before = truncated_by_writeset;

	truncated_by_writeset = relids;
	return before;
}

void
mip_capture_at_start_subxact(void)
{
	mip_places_at_start_subxact();
}

void
mip_capture_at_eosubxact(bool commit, SubTransactionId mine, SubTransactionId parent)
{
	/* an error has ended what paused it */
	if (!commit && paused >= GetCurrentTransactionNestLevel())
		paused = 0;
	mip_places_at_eosubxact(commit, mine, parent);
}

void
mip_capture_at_eoxact(bool commit)
{
	transaction = UNDECIDED;
	paused = 0;
	truncated_by_writeset = NIL;
	mip_places_at_eoxact(commit);
}

/* ---- the setting ---- */

/*
 * What files, roles and databases say takes effect when it may; a SET that would
 * have none is an error.
 */
static bool
check_capture(bool *newval, void **extra, GucSource source)
{
	if (source != PGC_S_SESSION || transaction == UNDECIDED || *newval == mip_captures())
		return true;
	GUC_check_errcode(ERRCODE_ACTIVE_SQL_TRANSACTION);
	GUC_check_errmsg("mip.capture_writeset cannot be changed in a transaction that has changed a mip table");
	GUC_check_errhint("Set it at the beginning of the transaction.");
	return false;
}

void
mip_capture_init(void)
{
	DefineCustomBoolVariable("mip.capture_writeset",
							 "Notes which rows of mip tables transactions change, for mip.writeset.",
							 NULL,
							 &capture_writeset,
							 false,
							 PGC_USERSET, 0, check_capture, NULL, NULL);
}
