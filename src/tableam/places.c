/*-------------------------------------------------------------------------
 *
 * places.c
 *	  Where a transaction has changed rows, in the order in which it has.
 *
 * The last ones are in memory, up to work_mem, those before them in a temporary
 * file. A subtransaction that rolls back has made the last ones: they are cut
 * off, and their numbers are not given again, so whoever has seen a number can
 * be told that its change is gone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/buffile.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "tableam/places.h"

StaticAssertDecl(sizeof(MipPlace) == 24, "there are many of them");

/* From here on they are of this subtransaction, up to the next mark. */
typedef struct Mark
{
	SubTransactionId subid;
	int64		position;
} Mark;

typedef struct Ordinal
{
	MipPlaceFile file;
	uint32		ordinal;
} Ordinal;

struct MipPlaces
{
	MemoryContext memory;
	ResourceOwner owner;		/* of the temporary file */
	MipPlaceFile *files;
	uint32		nfiles;
	uint32		files_room;
	HTAB	   *ordinals;		/* of files; NULL: nothing is appended */
	uint32		last_file;		/* likely to be the next one's */
	int64		count;
	int64		number;			/* given last */
	bool		truncates;
	BufFile    *spill;			/* NULL: all are in memory */
	int64		spilled;		/* how many are there */
	MipPlace   *tail;			/* the others */
	int64		room;			/* for so many */
	Mark	   *marks;
	int			nmarks;
	int			marks_room;
};

/* In TopTransactionContext. */
static MipPlaces *current;

static MipPlaces *
create(MemoryContext memory, ResourceOwner owner)
{
	MipPlaces  *places = MemoryContextAllocZero(memory, sizeof(MipPlaces));

	places->memory = memory;
	places->owner = owner;
	return places;
}

MipPlaces *
mip_places_create(void)
{
	return create(CurrentMemoryContext, CurrentResourceOwner);
}

MipPlaces *
mip_places_mine(void)
{
	if (current == NULL)
	{
		ResourceOwner owner = ResourceOwnerCreate(TopTransactionResourceOwner, "pg_mip captured changes");

		current = create(TopTransactionContext, owner);
	}
	return current;
}

int64
mip_places_count(const MipPlaces *places)
{
	return places->count;
}

int64
mip_places_last(const MipPlaces *places)
{
	return places->number;
}

bool
mip_places_truncate(const MipPlaces *places)
{
	return places->truncates;
}

int
mip_places_files(const MipPlaces *places)
{
	return places->nfiles;
}

MipPlaceFile
mip_places_file(const MipPlaces *places, int i)
{
	Assert(i >= 0 && i < places->nfiles);
	return places->files[i];
}

/* A larger array, or a first one, of elements of this size. */
static void *
grow(MemoryContext memory, void *array, Size size, int64 room)
{
	if (array == NULL)
		return MemoryContextAlloc(memory, size * room);
	return repalloc_huge(array, mul_size(size, room));
}

/* ---- tables ---- */

void
mip_places_add_file(MipPlaces *places, MipPlaceFile file)
{
	if (places->nfiles == places->files_room)
	{
		uint32		room = places->files_room ? places->files_room * 2 : 8;

		places->files = grow(places->memory, places->files, sizeof(MipPlaceFile), room);
		places->files_room = room;
	}
	places->files[places->nfiles++] = file;
}

static HTAB *
create_ordinals(MemoryContext memory)
{
	HASHCTL		ctl = {
		.keysize = sizeof(MipPlaceFile),
		.entrysize = sizeof(Ordinal),
		.hcxt = memory,
	};

	return hash_create("pg_mip captured tables", 64, &ctl,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static bool
same_file(MipPlaceFile a, MipPlaceFile b)
{
	return a.relid == b.relid && a.filenumber == b.filenumber;
}

static uint32
ordinal_of(MipPlaces *places, MipPlaceFile file)
{
	Ordinal    *entry;

	if (places->nfiles > 0 && same_file(places->files[places->last_file], file))
		return places->last_file;
	if (places->ordinals == NULL)
		places->ordinals = create_ordinals(places->memory);
	entry = hash_search(places->ordinals, &file, HASH_FIND, NULL);
	if (entry == NULL)
	{
		mip_places_add_file(places, file);
		entry = hash_search(places->ordinals, &file, HASH_ENTER, NULL);
		entry->ordinal = places->nfiles - 1;
	}
	return places->last_file = entry->ordinal;
}

/* ---- the temporary file ---- */

/* It lives as long as the transaction, whichever subtransaction makes it. */
static BufFile *
create_spill(const MipPlaces *places)
{
	MemoryContext old = MemoryContextSwitchTo(places->memory);
	ResourceOwner owner = CurrentResourceOwner;
	BufFile    *file;

	CurrentResourceOwner = places->owner;
	file = BufFileCreateTemp(false);
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(old);
	return file;
}

static void
seek(MipPlaces *places, int64 position)
{
	if (BufFileSeek(places->spill, 0, position * sizeof(MipPlace), SEEK_SET) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not seek in the temporary file of captured changes")));
}

static void
spill_tail(MipPlaces *places)
{
	if (places->spill == NULL)
		places->spill = create_spill(places);
	seek(places, places->spilled);
	BufFileWrite(places->spill, places->tail,
				 (places->count - places->spilled) * sizeof(MipPlace));
	seek(places, 0);			/* writes what is left in the buffer: only
								 * then it need not be kept here */
	places->spilled = places->count;
}

static void
make_room(MipPlaces *places)
{
	int64		room = places->room ? places->room * 2 : 64;

	if (room * sizeof(MipPlace) > work_mem * (Size) 1024)
	{
		spill_tail(places);
		return;
	}
	places->tail = grow(places->memory, places->tail, sizeof(MipPlace), room);
	places->room = room;
}

/* ---- appending, reading ---- */

static void
mark_subtransaction(MipPlaces *places)
{
	SubTransactionId subid = GetCurrentSubTransactionId();

	if (places->nmarks > 0 && places->marks[places->nmarks - 1].subid == subid)
		return;
	Assert(places->nmarks == 0 || places->marks[places->nmarks - 1].subid < subid);
	if (places->nmarks == places->marks_room)
	{
		int			room = places->marks_room ? places->marks_room * 2 : 4;

		places->marks = grow(places->memory, places->marks, sizeof(Mark), room);
		places->marks_room = room;
	}
	places->marks[places->nmarks].subid = subid;
	places->marks[places->nmarks].position = places->count;
	places->nmarks++;
}

void
mip_places_add(MipPlaces *places, const MipPlace *place)
{
	if (places->count - places->spilled == places->room)
		make_room(places);
	places->tail[places->count - places->spilled] = *place;
	places->count++;
	places->number = place->number;
	places->truncates |= place->op == MIP_PLACE_TRUNCATE;
}

static void
set_place(ItemPointerData *to, const ItemPointerData *from)
{
	if (from)
		*to = *from;
	else
		ItemPointerSetInvalid(to);
}

void
mip_places_append(MipPlaceFile file, MipPlaceOp op,
				  const ItemPointerData *old, const ItemPointerData *new)
{
	MipPlaces  *places = mip_places_mine();
	MipPlace	place;

	place.number = places->number + 1;
	place.op = op;
	place.file = ordinal_of(places, file);
	set_place(&place.old, old);
	set_place(&place.new, new);
	mark_subtransaction(places);
	mip_places_add(places, &place);
}

int
mip_places_read(MipPlaces *places, int64 position, MipPlace *into, int n)
{
	n = Min(n, places->count - position);
	if (position >= places->spilled)
	{
		memcpy(into, places->tail + (position - places->spilled), n * sizeof(MipPlace));
		return n;
	}
	n = Min(n, places->spilled - position);
	seek(places, position);
	if (BufFileRead(places->spill, into, n * sizeof(MipPlace)) != n * sizeof(MipPlace))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read the temporary file of captured changes")));
	return n;
}

int64
mip_places_above(MipPlaces *places, int64 number)
{
	int64		low = 0;
	int64		high = places->count;

	while (low < high)
	{
		int64		middle = low + (high - low) / 2;
		MipPlace	place;

		(void) mip_places_read(places, middle, &place, 1);
		if (place.number > number)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* ---- the ends of transactions ---- */

void
mip_places_at_eosubxact(bool commit, SubTransactionId mine,
						SubTransactionId parent)
{
	MipPlaces  *places = current;

	while (places && places->nmarks > 0 &&
		   places->marks[places->nmarks - 1].subid >= mine)
	{
		Mark	   *last = &places->marks[places->nmarks - 1];

		if (commit && (places->nmarks == 1 || last[-1].subid < parent))
		{
			last->subid = parent;
			return;
		}
		if (!commit)
			places->count = last->position;
		places->nmarks--;
	}
	if (places)
		places->spilled = Min(places->spilled, places->count);
}

/* Its memory goes with the memory context. */
void
mip_places_close(MipPlaces *places)
{
	if (places->spill)
		BufFileClose(places->spill);
	places->spill = NULL;
}

/*
 * Nothing may fail any more, and closing the file would once more write what may have
 * failed. So its resource owner drops it, as after an error, when that goes with the
 * transaction's.
 */
static void
drop_file(ResourceOwner owner)
{
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_BEFORE_LOCKS, false, false);
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_LOCKS, false, false);
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_AFTER_LOCKS, false, false);
	ResourceOwnerDelete(owner);
}

/* What is in memory goes with TopTransactionContext. */
void
mip_places_at_eoxact(bool commit)
{
	if (current && commit)
		drop_file(current->owner);
	current = NULL;
}
