/*-------------------------------------------------------------------------
 *
 * overlay.c
 *	  The overlay's book-keeping. Nothing here touches a page.
 *
 * Two hashes in TopTransactionContext: base version -> change (changes.c), and
 * version -> base for each version that descends from a base through our own
 * updates.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "heap/version.h"
#include "family/current.h"
#include "tableam/changes.h"
#include "tableam/overlay.h"

/* Hashed as bytes: no padding, please. */
typedef struct VersionKey
{
	Oid			relid;
	BlockNumber block;
	uint32		offset;
} VersionKey;

typedef struct Replaced
{
	VersionKey	key;			/* of the base version */
	int64		change;			/* its number */
} Replaced;

typedef struct Descendant
{
	VersionKey	key;			/* of the version */
	VersionKey	base;
	TransactionId xmin;			/* of the version: a place may be used again */
} Descendant;

static HTAB *overlay;
static HTAB *descendants;

static VersionKey
version_key(Oid relid, const ItemPointerData *tid)
{
	VersionKey	key;

	key.relid = relid;
	key.block = ItemPointerGetBlockNumber(tid);
	key.offset = ItemPointerGetOffsetNumber(tid);
	return key;
}

static HTAB *
create_hash(const char *name, Size entrysize)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(VersionKey);
	ctl.entrysize = entrysize;
	ctl.hcxt = TopTransactionContext;
	return hash_create(name, 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

bool
mip_overlay_exists(void)
{
	return overlay != NULL;
}

static const MipLink *
find_link(VersionKey base)
{
	Replaced   *replaced = hash_search(overlay, &base, HASH_FIND, NULL);

	return replaced ? &mip_changes_get(replaced->change)->link : NULL;
}

const MipLink *
mip_overlay_find(Relation rel, ItemPointer base)
{
	return overlay ? find_link(version_key(RelationGetRelid(rel), base)) : NULL;
}

static void
add_descendant(VersionKey version, VersionKey base)
{
	Descendant *d = hash_search(descendants, &version, HASH_ENTER, NULL);

	d->base = base;
	d->xmin = GetCurrentTransactionId();
}

/* NULL if the version is not known, or was a rolled back subtransaction's. */
static Descendant *
find_descendant(Relation rel, ItemPointer version)
{
	VersionKey	key;
	Descendant *d;

	if (overlay == NULL)
		return NULL;
	key = version_key(RelationGetRelid(rel), version);
	d = hash_search(descendants, &key, HASH_FIND, NULL);
	return d && TransactionIdIsCurrentTransactionId(d->xmin) ? d : NULL;
}

void
mip_overlay_announce(void)
{
	mip_mine.inst->overlay = true;
	pg_memory_barrier();
}

static void
create_overlay(void)
{
	Assert(mip_mine.inst->overlay);
	descendants = create_hash("pg_mip versions", sizeof(Descendant));
	overlay = create_hash("pg_mip overlay", sizeof(Replaced));
}

void
mip_overlay_add(Relation rel, ItemPointer base, ItemPointer version,
				CommandId cid, uint32 flags)
{
	MipLink		link = {
		.relid = RelationGetRelid(rel),
		.xmax = GetCurrentTransactionId(),
		.base = *base,
		.cid = cid,
		.flags = flags,
	};
	VersionKey	key = version_key(link.relid, base);
	int64		change;
	Replaced   *replaced;
	bool		found PG_USED_FOR_ASSERTS_ONLY;

	Assert(mip_in_transaction());
	Assert((version == NULL) == ((flags & MIP_LINK_DELETE) != 0));
	Assert(mip_is_in_xmax(rel, base) || mip_mine.inst->doomed); /* [lockers-stay] */
	if (overlay == NULL)
		create_overlay();
	if (version)
		link.version = *version;
	else
		ItemPointerSetInvalid(&link.version);
	change = mip_changes_append(&link); /* first: it may fail */
	replaced = hash_search(overlay, &key, HASH_ENTER, &found);
	Assert(!found);
	replaced->change = change;
	if (version)
		add_descendant(version_key(link.relid, version), key);
}

/*
 * Mirrors what heap does for a version deleted by our own transaction: MVCC
 * snapshots of earlier commands still see it; SnapshotAny sees everything
 * (triggers need their OLD rows).
 */
bool
mip_overlay_hides(Relation rel, ItemPointer tid, Snapshot snapshot)
{
	const MipLink *link = mip_overlay_find(rel, tid);

	if (link == NULL)
		return false;
	switch (snapshot->snapshot_type)
	{
		case SNAPSHOT_MVCC:
			return link->cid < snapshot->curcid;
		case SNAPSHOT_SELF:
		case SNAPSHOT_DIRTY:
			return true;
		default:
			return false;
	}
}

const MipLink *
mip_overlay_base_of(Relation rel, ItemPointer version)
{
	Descendant *d = find_descendant(rel, version);

	return d ? find_link(d->base) : NULL;
}

void
mip_overlay_follow(Relation rel, ItemPointer version, ItemPointer next)
{
	Descendant *d = find_descendant(rel, version);

	if (d)
		add_descendant(version_key(RelationGetRelid(rel), next), d->base);
}

static void
forget(const MipChange *change)
{
	VersionKey	key = version_key(change->link.relid, &change->link.base);

	hash_search(overlay, &key, HASH_REMOVE, NULL);
}

void
mip_overlay_at_eosubxact(bool commit, SubTransactionId mine,
						 SubTransactionId parent)
{
	mip_changes_at_eosubxact(commit, mine, parent, forget);
}

/* The hashes go with TopTransactionContext. */
void
mip_overlay_at_eoxact(void)
{
	overlay = NULL;
	descendants = NULL;
	mip_changes_at_eoxact();
}

bytea *
mip_overlay_links(void)
{
	int64		n = mip_changes_count();
	Size		size = VARHDRSZ + mul_size(n, sizeof(MipLink));
	bytea	   *links;
	char	   *at;

	Assert(GetCurrentTransactionNestLevel() == 1);
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
	for (int64 i = 0; i < n; i++, at += sizeof(MipLink))
		memcpy(at, &mip_changes_get(i)->link, sizeof(MipLink));
	return links;
}
