/*-------------------------------------------------------------------------
 *
 * overlay.c
 *	  The overlay's book-keeping. Nothing here touches a page.
 *
 * Two hashes in TopTransactionContext: base version -> entry, and version ->
 * base for each version that descends from a base through our own updates.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "family/current.h"
#include "tableam/overlay.h"

typedef struct MipDescendant
{
	MipOverlayKey key;			/* of the version */
	MipOverlayKey base;
	TransactionId xmin;			/* of the version: a place may be used again */
} MipDescendant;

static HTAB *overlay;
static HTAB *descendants;

static void (*before_first) (void);

/* All entries, the newest subtransaction's first. */
static dlist_head entries;

static MipOverlayKey
overlay_key(Relation rel, ItemPointer tid)
{
	MipOverlayKey key;

	key.relid = RelationGetRelid(rel);
	key.block = ItemPointerGetBlockNumber(tid);
	key.offset = ItemPointerGetOffsetNumber(tid);
	return key;
}

static HTAB *
create_hash(const char *name, Size entrysize)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(MipOverlayKey);
	ctl.entrysize = entrysize;
	ctl.hcxt = TopTransactionContext;
	return hash_create(name, 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

void
mip_overlay_before_first(void (*function) (void))
{
	before_first = function;
}

bool
mip_overlay_exists(void)
{
	return overlay != NULL;
}

MipOverlayEntry *
mip_overlay_find(Relation rel, ItemPointer base)
{
	MipOverlayKey key;

	if (overlay == NULL)
		return NULL;
	key = overlay_key(rel, base);
	return hash_search(overlay, &key, HASH_FIND, NULL);
}

static void
add_descendant(MipOverlayKey version, MipOverlayKey base)
{
	MipDescendant *d = hash_search(descendants, &version, HASH_ENTER, NULL);

	d->base = base;
	d->xmin = GetCurrentTransactionId();
}

/* NULL if the version is not known, or was a rolled back subtransaction's. */
static MipDescendant *
find_descendant(Relation rel, ItemPointer version)
{
	MipOverlayKey key;
	MipDescendant *d;

	if (overlay == NULL)
		return NULL;
	key = overlay_key(rel, version);
	d = hash_search(descendants, &key, HASH_FIND, NULL);
	return d && TransactionIdIsCurrentTransactionId(d->xmin) ? d : NULL;
}

/*
 * Remembers that `version` (NULL: nothing, a delete) replaces `base` from
 * command `cid` on.
 */
void
mip_overlay_add(Relation rel, ItemPointer base, ItemPointer version,
				CommandId cid, uint32 flags)
{
	MipOverlayEntry *entry;
	MipOverlayKey key;
	bool		found PG_USED_FOR_ASSERTS_ONLY;

	if (overlay == NULL)
	{
		descendants = create_hash("pg_mip versions", sizeof(MipDescendant));
		overlay = create_hash("pg_mip overlay", sizeof(MipOverlayEntry));
		dlist_init(&entries);
		mip_mine.inst->overlay = true;
		if (before_first)
			before_first();
	}
	key = overlay_key(rel, base);
	entry = hash_search(overlay, &key, HASH_ENTER, &found);
	Assert(!found);
	dlist_push_head(&entries, &entry->node);
	entry->link.relid = key.relid;
	entry->link.xmax = GetCurrentTransactionId();
	entry->link.base = *base;
	entry->link.cid = cid;
	entry->link.flags = flags;
	entry->subid = GetCurrentSubTransactionId();
	if (version)
	{
		entry->link.version = *version;
		add_descendant(overlay_key(rel, version), key);
	}
	else
		ItemPointerSetInvalid(&entry->link.version);
}

/*
 * Mirrors what heap does for a version deleted by our own transaction: MVCC
 * snapshots of earlier commands still see it; SnapshotAny sees everything
 * (triggers need their OLD rows).
 */
bool
mip_overlay_hides(Relation rel, ItemPointer tid, Snapshot snapshot)
{
	MipOverlayEntry *entry = mip_overlay_find(rel, tid);

	if (entry == NULL)
		return false;
	switch (snapshot->snapshot_type)
	{
		case SNAPSHOT_MVCC:
			return entry->link.cid < snapshot->curcid;
		case SNAPSHOT_SELF:
		case SNAPSHOT_DIRTY:
			return true;
		default:
			return false;
	}
}

MipOverlayEntry *
mip_overlay_base_of(Relation rel, ItemPointer version)
{
	MipDescendant *d = find_descendant(rel, version);

	return d ? hash_search(overlay, &d->base, HASH_FIND, NULL) : NULL;
}

void
mip_overlay_follow(Relation rel, ItemPointer version, ItemPointer next)
{
	MipDescendant *d = find_descendant(rel, version);

	if (d)
		add_descendant(overlay_key(rel, next), d->base);
}

/* Entries of a rolled back subtransaction vanish, others go to its parent. */
void
mip_overlay_at_eosubxact(bool commit, SubTransactionId mine,
						 SubTransactionId parent)
{
	dlist_mutable_iter iter;

	if (overlay == NULL)
		return;
	dlist_foreach_modify(iter, &entries)
	{
		MipOverlayEntry *entry = dlist_container(MipOverlayEntry, node, iter.cur);

		if (entry->subid < mine)
			break;
		if (commit)
			entry->subid = parent;
		else
		{
			dlist_delete(&entry->node);
			hash_search(overlay, &entry->key, HASH_REMOVE, NULL);
		}
	}
}

/* The hashes go with TopTransactionContext. */
void
mip_overlay_at_eoxact(void)
{
	overlay = NULL;
	descendants = NULL;
}

bytea *
mip_overlay_links(void)
{
	HASH_SEQ_STATUS seq;
	MipOverlayEntry *entry;
	bytea	   *links;
	char	   *at;
	long		n = overlay ? hash_get_num_entries(overlay) : 0;
	Size		size = VARHDRSZ + mul_size(n, sizeof(MipLink));

	if (n == 0)
		return NULL;
	if (!AllocSizeIsValid(size))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("an instance cannot overlay more than %zu row versions",
						MaxAllocSize / sizeof(MipLink))));
	links = palloc(size);
	SET_VARSIZE(links, size);
	at = VARDATA(links);
	hash_seq_init(&seq, overlay);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		memcpy(at, &entry->link, sizeof(MipLink));
		at += sizeof(MipLink);
	}
	return links;
}
