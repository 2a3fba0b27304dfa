/*-------------------------------------------------------------------------
 *
 * extract.c
 *	  The writeset of a transaction, from the places of its changes.
 *
 * Until the transaction has ended no version that it has made or replaced goes, nor
 * the values that it has out of line: they are read where they are. A prepared instance may
 * end meanwhile: what is read of it then is thrown away (prepared.c). But the table may
 * have been written anew since, and then another row may be there, or none; so the
 * file is compared first.
 *
 * TRUNCATE takes the changes before it, which are not there any more, nor needed; but not
 * one of several tables that it was one of, which could not be truncated without it. It
 * does so here only: when its subtransaction rolls back they are there again. Where a part
 * ends before it, they are noted as left out: whoever goes on with that part would miss them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/relation.h"
#include "access/table.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/mip.h"
#include "family/current.h"
#include "tableam/am.h"
#include "tableam/capture.h"
#include "writeset/build.h"
#include "writeset/extract.h"
#include "writeset/pending.h"
#include "writeset/rights.h"
#include "writeset/unwaited.h"

#define READ_AT_A_TIME	256

/* Versions of a table's rows, one after the other; `slot` has the last one. */
typedef struct Reader
{
	TupleTableSlot *slot;
	BlockIdData block;			/* of its page, which is pinned; or none */
	OffsetNumber most;			/* there are so many there at least */
	Page		page;
} Reader;

/* A table that has been changed */
typedef struct Source
{
	Oid			relid;
	int64		truncated;		/* the position of its last TRUNCATE, or 0 */
	int64		left_out;		/* of the first change left out for it, or -1 */
	Relation	rel;			/* NULL: not opened yet */
	Oid			filenumber;
	BlockNumber blocks;			/* it has so many at least, while we lock it */
	MipBuildTable *table;
	MipPlaceKeys *keys;
	int			checked;		/* this file is the table's, with these keys */
	Reader		old;
	Reader		new;
} Source;

typedef struct Extraction
{
	MipPlaces  *places;
	MipBuild   *build;
	HTAB	   *sources;		/* by relid */
	Source	   *source;			/* the one looked for last, for this file */
	int			file;
	int			ready;			/* the file, if all that is still to come of
								 * it is to be read; else -1 */
	bool		own;			/* of this transaction */
	int64		position;		/* up to here, or before the one looked at */
	int64		end;			/* what code of others adds meanwhile does not
								 * count */
	int64		last;			/* the number of the one before */
	int64		run_end;		/* of the TRUNCATEs that are looked at */
	bool		run_counts;		/* some of them are not outdated */
} Extraction;

void
mip_check_after(MipPlaces *places, int64 after)
{
	int64		position = mip_places_above(places, after);
	MipPlace	place;

	if (after < 0 || after > mip_places_last(places))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the transaction has made no change number " INT64_FORMAT, after)));
	if (after == 0 ||
		(position > 0 && mip_places_read(places, position - 1, &place, 1) == 1 &&
		 place.number == after))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_MIP_ROLLED_BACK),
			 errmsg("there is no change number " INT64_FORMAT " any more", after),
			 errdetail("It has been rolled back, or a TRUNCATE has been for which changes were left out."),
			 errhint("Begin again with after => 0, or with where the extraction was at the savepoint.")));
}

/* ---- tables ---- */

static Source *
source_of(Extraction *extraction, Oid relid)
{
	bool		found;
	Source	   *source = hash_search(extraction->sources, &relid, HASH_ENTER, &found);

	if (!found)
	{
		memset(source, 0, sizeof(Source));
		source->relid = relid;
		source->left_out = -1;
		source->checked = -1;
	}
	return source;
}

/* That of the place before is likely. */
static Source *
source_of_place(Extraction *extraction, const MipPlace *place)
{
	if (extraction->source == NULL || extraction->file != place->file)
	{
		extraction->file = place->file;
		extraction->source =
			source_of(extraction, mip_places_file(extraction->places, place->file).relid);
	}
	return extraction->source;
}

static HTAB *
create_sources(void)
{
	HASHCTL		ctl = {
		.keysize = sizeof(Oid),
		.entrysize = sizeof(Source),
		.hcxt = CurrentMemoryContext,
	};

	return hash_create("pg_mip writeset", 16, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

pg_noreturn static void
mip_refuse_rewritten(Oid relid)
{
	char	   *name = get_rel_name(relid);

	ereport(ERROR,
			(errcode(ERRCODE_MIP_REWRITTEN),
			 name ? errmsg("table \"%s\" has been rewritten since it was changed", name) :
			 errmsg("a table has been dropped since it was changed"),
			 errdetail("Its changes cannot be read any more."),
			 errhint("Extract the writeset before the table is rewritten or dropped.")));
}

pg_noreturn static void
mip_refuse_switched(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_REWRITTEN),
			 errmsg("the access method of table \"%s\" has been changed by the transaction that has changed its rows",
					get_rel_name(relid)),
			 errdetail("Not all of these changes are captured."),
			 errhint("Let the table opt in before the transaction changes it; extract the writeset before it opts out.")));
}

pg_noreturn static void
mip_refuse_other_keys(const Source *source)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_REWRITTEN),
			 errmsg("the keys of table \"%s\" are other ones than when it was changed",
					RelationGetRelationName(source->rel)),
			 errdetail("Rows of those changes cannot be told apart by them, nor be compared by them."),
			 errhint("Extract the writeset before unique indexes are created for the identity, or dropped, and before partitions, of tables or indexes, are attached or detached.")));
}

static void
init_reader(Reader *reader, Relation rel)
{
	reader->slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsBufferHeapTuple);
	BlockIdSet(&reader->block, InvalidBlockNumber);
}

static void
open_source(Extraction *extraction, Source *source)
{
	Relation	rel;

	if (!extraction->own)
		mip_lock_or_refuse(source->relid);
	rel = try_relation_open(source->relid, AccessShareLock);
	if (rel == NULL)
		mip_refuse_rewritten(source->relid);
	if (!mip_relation_is_mip(rel))
		mip_refuse_switched(source->relid);
	if (!extraction->own)
		mip_lock_behind_or_refuse(rel);
	mip_check_may_read(rel, true);
	source->table = mip_build_table(extraction->build, rel);
	source->filenumber = mip_filenumber(&rel->MIP_RD_LOCATOR);
	source->keys = mip_capture_keys(rel);
	init_reader(&source->old, rel);
	init_reader(&source->new, rel);
	source->rel = rel;
}

/* The locks stay until the transaction ends, as those of any reader do. */
static void
close_sources(Extraction *extraction)
{
	HASH_SEQ_STATUS seq;
	Source	   *source;

	hash_seq_init(&seq, extraction->sources);
	while ((source = hash_seq_search(&seq)) != NULL)
	{
		if (source->rel == NULL)
			continue;
		mip_build_close_table(source->table);
		ExecDropSingleTupleTableSlot(source->old.slot);
		ExecDropSingleTupleTableSlot(source->new.slot);
		relation_close(source->rel, NoLock);
	}
}

static const MipPlaceKey *
find_key(const MipPlaceKey *keys, int n, Oid oid)
{
	for (int i = 0; i < n; i++)
		if (keys[i].oid == oid)
			return &keys[i];
	return NULL;
}

static const MipPlaceKey *
key_of(const MipPlaceKeys *keys, Oid index)
{
	return find_key(keys->keys, keys->n, index);
}

/* Do foreign keys that are still there refer to what they referred to? */
static bool
same_references(const MipPlaceKeys *now, const MipPlaceKeys *then)
{
	for (int i = 0; i < now->nreferences; i++)
	{
		const MipPlaceKey *reference = &now->keys[now->n + i];
		const MipPlaceKey *before = find_key(then->keys + then->n, then->nreferences, reference->oid);

		if (before && before->topmost != reference->topmost)
			return false;
	}
	return true;
}

static bool
has_topmost(const MipPlaceKeys *keys, Oid topmost)
{
	for (int i = 0; i < keys->n; i++)
		if (keys->keys[i].topmost == topmost)
			return true;
	return false;
}

/* An identity that is being dropped leaves the whole row. */
static bool
same_identity(const MipPlaceKeys *then, Oid identity)
{
	if (OidIsValid(identity))
		return key_of(then, identity) != NULL;
	return !OidIsValid(then->identity) || get_index_isreplident(then->identity);
}

/*
 * An index goes beside us only if others had begun to drop it before we locked the table, as
 * REINDEX CONCURRENTLY does with the one that it has replaced: it was not valid any more, and
 * is not missed. One that has become valid since is there until we drop it ourselves.
 */
static bool
may_be_gone(const Source *source, const MipPlaceKey *key)
{
	return !key->valid && !CheckRelationLockedByMe(source->rel, AccessExclusiveLock, true);
}

/*
 * It must still keep rows apart, by the same name. REINDEX CONCURRENTLY may have put another
 * index in its place, which had a name of its own before.
 */
static bool
same_key(const Source *source, const MipPlaceKeys *then, const MipPlaceKey *key)
{
	const MipPlaceKey *now = key_of(source->keys, key->oid);

	if (has_topmost(source->keys, key->topmost))
		return true;
	return now ? has_topmost(then, now->topmost) : may_be_gone(source, key);
}

/* What identifies rows now must have done so then, and what kept them apart must do so. */
static bool
same_keys(const Source *source, const MipPlaceKeys *then)
{
	Oid			identity = mip_build_identity(source->table);

	if (then->topmost != source->keys->topmost || !same_identity(then, identity))
		return false;
	for (int i = 0; i < then->n; i++)
		if (!same_key(source, then, &then->keys[i]))
			return false;
	return same_references(source->keys, then);
}

/* Is the row, at this place, to be read as the table is now? */
static void
check_table(Extraction *extraction, Source *source, const MipPlace *place)
{
	MipPlaceFile file = mip_places_file(extraction->places, place->file);
	const MipPlaceKeys *keys = mip_places_keys(extraction->places, place->file);

	if (!OidIsValid(file.filenumber))
		mip_refuse_switched(file.relid);
	if (file.filenumber != source->filenumber ||
		mip_places_emptied(extraction->places, place->file))
		mip_refuse_rewritten(file.relid);
	if (keys && !same_keys(source, keys))
		mip_refuse_other_keys(source);
	source->checked = place->file;
}

static void
look_at_source(Extraction *extraction, Source *source, const MipPlace *place)
{
	if (source->rel == NULL)
		open_source(extraction, source);
	if (place->op != MIP_PLACE_TRUNCATE)
		check_table(extraction, source, place);
}

/* ---- places ---- */

static void
note_truncations(Extraction *extraction, int64 position)
{
	MipPlace	places[READ_AT_A_TIME];
	int64		end = mip_places_truncated(extraction->places);
	int			n;

	for (; position < end; position += n)
	{
		CHECK_FOR_INTERRUPTS();
		n = mip_places_read(extraction->places, position, places, READ_AT_A_TIME);
		for (int i = 0; i < n; i++)
		{
			MipPlaceFile file = mip_places_file(extraction->places, places[i].file);

			if (places[i].op == MIP_PLACE_TRUNCATE)
				source_of(extraction, file.relid)->truncated = position + i;
		}
	}
}

/*
 * Of an instance that has been rolled back meanwhile, the pages may be gone (VACUUM). Who
 * reads behind the end of a file fails, and leaves a buffer in which that page is not
 * cleared when the file grows again.
 */
static bool
has_page(Source *source, const ItemPointerData *tid)
{
	Assert(CheckRelationLockedByMe(source->rel, AccessShareLock, true));
	if (ItemPointerGetBlockNumber(tid) >= source->blocks)
		source->blocks = RelationGetNumberOfBlocks(source->rel);
	return ItemPointerGetBlockNumber(tid) < source->blocks;
}

/* Which snapshot would see it does not matter. */
static void
find_row(Source *source, ItemPointerData tid, TupleTableSlot *slot)
{
	if (has_page(source, &tid) &&
		mip_heap()->tuple_fetch_row_version(source->rel, &tid, SnapshotAny, slot))
		return;
	if (mip_in_transaction())
		mip_check_doomed();
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("pg_mip: a row version (%u,%u) that was changed in table \"%s\" is gone",
					ItemPointerGetBlockNumber(&tid), ItemPointerGetOffsetNumber(&tid),
					RelationGetRelationName(source->rel))));
}

/*
 * Rows that we have changed one after the other are likely to be on one page, which the
 * slot has pinned since it read the one before. So nothing moves there, and versions that
 * we have made or replaced stay; no lock is needed, as in heap's scans.
 */
static pg_noinline void
read_from_page(Extraction *extraction, Reader *reader, const ItemPointerData *tid)
{
	find_row(extraction->source, *tid, reader->slot);
	if (!extraction->own)
		return;
	reader->block = tid->ip_blkid;
	reader->page = BufferGetPage(((BufferHeapTupleTableSlot *) reader->slot)->buffer);
	reader->most = PageGetMaxOffsetNumber(reader->page);
}

/* Of the tuple that is stored in the slot nothing else changes. False: it is to be looked for. */
static inline bool
read_from_same_page(Reader *reader, const ItemPointerData *tid)
{
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) reader->slot;
	OffsetNumber offset = ItemPointerGetOffsetNumber(tid);
	ItemId		item;

	if (memcmp(&tid->ip_blkid, &reader->block, sizeof(BlockIdData)) != 0 ||
		offset > reader->most)
		return false;
	item = PageGetItemId(reader->page, offset);
	if (!ItemIdIsNormal(item))
		return false;
	slot->base.tupdata.t_self = slot->base.base.tts_tid = *tid;
	slot->base.tupdata.t_data = (HeapTupleHeader) PageGetItem(reader->page, item);
	slot->base.tupdata.t_len = ItemIdGetLength(item);
	slot->base.off = 0;
	slot->base.base.tts_nvalid = 0;
	return true;
}

/* The row at a place */
static inline TupleTableSlot *
read_row(Extraction *extraction, Reader *reader, const ItemPointerData *tid)
{
	if (unlikely(!read_from_same_page(reader, tid)))
		read_from_page(extraction, reader, tid);
	return reader->slot;
}

/* TRUNCATEs that are one behind the other, from here on: are all of them outdated? */
static void
look_at_run(Extraction *extraction)
{
	MipPlace	places[READ_AT_A_TIME];
	int64		position = extraction->position;
	int			n;
	bool		more = true;

	extraction->run_counts = false;
	while (more && position < extraction->end)
	{
		CHECK_FOR_INTERRUPTS();
		n = mip_places_read(extraction->places, position, places,
							Min(READ_AT_A_TIME, extraction->end - position));
		for (int i = 0; i < n && more; i++)
		{
			MipPlaceFile file = mip_places_file(extraction->places, places[i].file);

			more = places[i].op == MIP_PLACE_TRUNCATE;
			if (more && source_of(extraction, file.relid)->truncated <= position)
				extraction->run_counts = true;
			position += more;
		}
	}
	extraction->run_end = position;
}

/* Has a TRUNCATE that is still to come taken it? */
static bool
is_outdated(Extraction *extraction, const Source *source, const MipPlace *place)
{
	if (place->op != MIP_PLACE_TRUNCATE)
		return extraction->position < source->truncated;
	if (extraction->position >= extraction->run_end)
		look_at_run(extraction);
	return !extraction->run_counts;
}

/* Apart from what each change needs. False: it is outdated. */
static pg_noinline bool
get_ready(Extraction *extraction, const MipPlace *place)
{
	Source	   *source = source_of_place(extraction, place);

	extraction->ready = -1;
	if (is_outdated(extraction, source, place))
	{
		if (source->left_out < 0)
			source->left_out = extraction->position;
		return false;
	}
	if (place->file != source->checked)
		look_at_source(extraction, source, place);
	if (place->op != MIP_PLACE_TRUNCATE)
		extraction->ready = place->file;
	return true;
}

/* False: there is no room for it. */
static inline bool
extract_place(Extraction *extraction, int64 position, const MipPlace *place)
{
	static const char ops[] = {
		[MIP_PLACE_INSERT] = 'I',
		[MIP_PLACE_UPDATE] = 'U',
		[MIP_PLACE_DELETE] = 'D',
		[MIP_PLACE_TRUNCATE] = 'T',
	};
	MipPlaceOp	op = place->op;
	Source	   *source;
	TupleTableSlot *old = NULL;
	TupleTableSlot *new = NULL;

	if (unlikely(place->file != extraction->ready || op == MIP_PLACE_TRUNCATE))
	{
		extraction->position = position;
		if (!get_ready(extraction, place))
			return true;
	}
	source = extraction->source;
	if (op == MIP_PLACE_UPDATE || op == MIP_PLACE_DELETE)
		old = read_row(extraction, &source->old, &place->old);
	if (op == MIP_PLACE_INSERT || op == MIP_PLACE_UPDATE)
		new = read_row(extraction, &source->new, &place->new);
	return mip_build_change(extraction->build, source->table, ops[op], place->number, old, new);
}

/* So many, from the first one on. Returns how many there was room for. */
static int
extract_some(Extraction *extraction, const MipPlace *places, int n)
{
	int64		position = extraction->position;
	int			i = 0;

	while (i < n && extract_place(extraction, position + i, &places[i]))
		i++;
	if (i > 0)
		extraction->last = places[i - 1].number;
	extraction->position = position + i;
	return i;
}

static void
extract_places(Extraction *extraction)
{
	MipPlace	places[READ_AT_A_TIME];
	int			n;

	do
	{
		CHECK_FOR_INTERRUPTS();
		n = mip_places_read(extraction->places, extraction->position, places,
							Min(READ_AT_A_TIME, extraction->end - extraction->position));
	} while (extract_some(extraction, places, n) == n && extraction->position < extraction->end);
}

static void
note_left_out(Extraction *extraction)
{
	HASH_SEQ_STATUS seq;
	Source	   *source;

	hash_seq_init(&seq, extraction->sources);
	while ((source = hash_seq_search(&seq)) != NULL)
		if (source->left_out >= 0 && source->truncated >= extraction->position)
			mip_places_leave_out(extraction->places, source->truncated, source->left_out);
}

struct varlena *
mip_extract(MipPlaces *places, bool own, int64 after, int64 max_bytes)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "pg_mip extraction",
												  ALLOCSET_DEFAULT_SIZES);
	Extraction	extraction = {.places = places,.own = own,.ready = -1,.last = after};
	struct varlena *writeset;

	extraction.position = mip_places_above(places, after);
	extraction.end = mip_places_count(places);
	extraction.build = mip_build_begin(after, extraction.end - extraction.position, max_bytes);
	MemoryContextSwitchTo(context);
	extraction.sources = create_sources();
	note_truncations(&extraction, extraction.position);
	extract_places(&extraction);
	if (own)
		note_left_out(&extraction);
	close_sources(&extraction);
	MemoryContextSwitchTo(caller);
	writeset = mip_build_end(extraction.build, extraction.last);
	MemoryContextDelete(context);
	return writeset;
}

/* ---- of this transaction ---- */

struct varlena *
mip_extract_own(int64 after, int64 max_bytes)
{
	struct varlena *writeset;

	if (!mip_captures())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the changes of this transaction are not captured"),
				 errhint("Set mip.capture_writeset to on at its beginning.")));
	mip_refuse_pending_triggers();
	mip_places_renumber(mip_places_mine());
	mip_check_after(mip_places_mine(), after);
	writeset = mip_extract(mip_places_mine(), true, after, max_bytes);
	/* [doomed-before-header] */
	if (mip_in_transaction())
		mip_check_doomed();
	return writeset;
}

struct varlena *
mip_extract_nothing(void)
{
	return mip_build_end(mip_build_begin(0, 0, 0), 0);
}
