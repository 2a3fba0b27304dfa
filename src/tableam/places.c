/*-------------------------------------------------------------------------
 *
 * places.c
 *	  Where a transaction has changed rows, in the order in which it has.
 *
 * The last ones are in memory, up to work_mem, those before them in a temporary
 * file. A subtransaction that rolls back has made the last ones: they are cut
 * off, and their numbers are not given again, so whoever has seen a number can
 * be told that its change is gone. So can who has seen one behind changes that were
 * left out for a TRUNCATE that is gone: all from the first of them on get new numbers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/buffile.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "tableam/places.h"

StaticAssertDecl(sizeof(MipPlace) == 24, "there are many of them");

/* From here on they are of this subtransaction, up to the next mark. */
typedef struct Mark
{
	SubTransactionId subid;
	int64		position;
	int			nfiles;			/* so many were there before */
} Mark;

/* For the TRUNCATE at one position somebody was not told of the change at another. */
typedef struct LeftOut
{
	int64		truncate;
	int64		first;
} LeftOut;

/* From this position on numbers are higher than those that are kept. */
typedef struct Shift
{
	int64		position;
	int64		by;
} Shift;

typedef struct ChangedFile
{
	MipPlaceFile file;
	MipPlaceKeys *keys;
	bool		emptied;
} ChangedFile;

typedef struct Ordinal
{
	MipPlaceFile file;
	int			ordinal;
	char		status;
} Ordinal;

struct MipPlaces
{
	MemoryContext memory;
	ResourceOwner owner;		/* of the temporary file; NULL: there is none
								 * yet */
	ChangedFile *files;
	int			nfiles;
	int			files_room;
	struct ordinals_hash *ordinals; /* of files that have not been emptied;
									 * NULL: there is one at most */
	MipPlaceFile last;			/* the last one's, of this subtransaction, and
								 * likely the next one's; no table: that is to
								 * be looked up */
	int			last_file;		/* its ordinal */
	int64		count;
	int64		number;			/* given last */
	int64		truncated;		/* all TRUNCATEs are before this position */
	BufFile    *spill;			/* NULL: all are in memory */
	int64		spilled;		/* how many are there */
	MipPlace   *tail;			/* the others */
	int64		room;			/* for so many */
	Mark	   *marks;
	int			nmarks;
	int			marks_room;
	LeftOut    *left_out;
	int			nleft_out;
	int			left_out_room;
	Shift	   *shifts;
	int			nshifts;
	int			shifts_room;
	int64		renumber;		/* new numbers are due from here on;
								 * NOTHING_DUE: none */
};

#define NOTHING_DUE PG_INT64_MAX

#define FEW			4
#define FEW_PLACES	64

/* Most transactions need no more, which is one piece of memory. */
typedef struct Few
{
	MipPlaces	places;
	ChangedFile files[FEW];
	Mark		marks[FEW];
	MipPlace	tail[FEW_PLACES];
} Few;

/* In TopTransactionContext. */
static MipPlaces *current;

static MipPlaces *
create(MemoryContext memory)
{
	Few		   *few = MemoryContextAlloc(memory, sizeof(Few));
	MipPlaces  *places = memset(&few->places, 0, sizeof(MipPlaces));

	places->memory = memory;
	places->files = few->files;
	places->marks = few->marks;
	places->files_room = places->marks_room = FEW;
	places->tail = few->tail;
	places->room = FEW_PLACES;
	places->renumber = NOTHING_DUE;
	return places;
}

MipPlaces *
mip_places_create(void)
{
	MipPlaces  *places = create(CurrentMemoryContext);

	places->owner = CurrentResourceOwner;
	return places;
}

MipPlaces *
mip_places_mine(void)
{
	if (current == NULL)
		current = create(TopTransactionContext);
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

int64
mip_places_truncated(const MipPlaces *places)
{
	return Min(places->truncated, places->count);
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
	return places->files[i].file;
}

const MipPlaceKeys *
mip_places_keys(const MipPlaces *places, int i)
{
	Assert(i >= 0 && i < places->nfiles);
	return places->files[i].keys;
}

bool
mip_places_emptied(const MipPlaces *places, int i)
{
	Assert(i >= 0 && i < places->nfiles);
	return places->files[i].emptied;
}

/* An array of elements of this size, with more room than there was. */
static void *
grow(MemoryContext memory, void *array, Size size, int64 had, int64 room)
{
	void	   *larger;

	if (had > FEW_PLACES)
		return repalloc_huge(array, mul_size(size, room));
	/* it may be of the first piece, or there is none */
	larger = MemoryContextAlloc(memory, size * room);
	return had > 0 ? memcpy(larger, array, size * had) : larger;
}

/* The array, with room for one more than these n. */
static void *
grow_for_one(MemoryContext memory, void *array, Size size, int n, int *room)
{
	if (n == *room)
	{
		array = grow(memory, array, size, n, n ? n * 2 : FEW);
		*room = n ? n * 2 : FEW;
	}
	return array;
}

/* ---- tables ---- */

void
mip_places_add_file(MipPlaces *places, MipPlaceFile file, MipPlaceKeys *keys)
{
	places->files = grow_for_one(places->memory, places->files, sizeof(ChangedFile),
								 places->nfiles, &places->files_room);
	places->files[places->nfiles].file = file;
	places->files[places->nfiles].emptied = false;
	places->files[places->nfiles++].keys = keys;
}

static inline bool
same_file(MipPlaceFile a, MipPlaceFile b)
{
	return a.relid == b.relid && a.filenumber == b.filenumber;
}

#define SH_PREFIX ordinals
#define SH_ELEMENT_TYPE Ordinal
#define SH_KEY_TYPE MipPlaceFile
#define SH_KEY file
#define SH_HASH_KEY(table, key) hash_combine(murmurhash32((key).relid), murmurhash32((key).filenumber))
#define SH_EQUAL(table, a, b) same_file(a, b)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Of the file, unless it has been emptied since; or -1 */
static int
find_ordinal(const MipPlaces *places, MipPlaceFile file)
{
	Ordinal    *entry;

	if (places->ordinals == NULL)
		return places->nfiles > 0 && !places->files[0].emptied &&
			same_file(places->files[0].file, file) ? 0 : -1;
	entry = ordinals_lookup(places->ordinals, file);
	return entry ? entry->ordinal : -1;
}

static void
enter_ordinal(MipPlaces *places, int ordinal)
{
	bool		found;

	ordinals_insert(places->ordinals, places->files[ordinal].file, &found)->ordinal = ordinal;
}

static int
add_ordinal(MipPlaces *places, MipPlaceFile file)
{
	int			ordinal = places->nfiles;

	if (places->ordinals == NULL && ordinal > 0)
	{
		places->ordinals = ordinals_create(places->memory, FEW, NULL);
		if (!places->files[0].emptied)
			enter_ordinal(places, 0);
	}
	mip_places_add_file(places, file, NULL);
	if (places->ordinals)
		enter_ordinal(places, ordinal);
	return ordinal;
}

/*
 * Another file comes, though it is the same; or another subtransaction; or what has been
 * made of it goes.
 */
static void
forget_last(MipPlaces *places)
{
	places->last.relid = InvalidOid;
}

static void
forget_ordinal(MipPlaces *places, MipPlaceFile file)
{
	if (places->ordinals)
		ordinals_delete(places->ordinals, file);
}

/*
 * What comes now is of another one, though it is the same. That is not undone before the file
 * goes: only who has made it in the same subtransaction empties it.
 */
void
mip_places_empty(MipPlaceFile file)
{
	int			ordinal = current ? find_ordinal(current, file) : -1;

	if (ordinal < 0)
		return;
	current->files[ordinal].emptied = true;
	forget_last(current);
	forget_ordinal(current, file);
}

void
mip_places_set_keys(MipPlaceKeys *keys)
{
	current->files[current->last_file].keys = keys;
}

/* Those that were added last: nothing may fail here. */
static void
forget_files(MipPlaces *places, int left)
{
	while (places->nfiles > left)
	{
		ChangedFile *file = &places->files[--places->nfiles];

		forget_ordinal(places, file->file);
		if (file->keys)
			pfree(file->keys);
	}
}

/* ---- the temporary file ---- */

/* It lives as long as the transaction, whichever subtransaction makes it. */
static BufFile *
create_spill(MipPlaces *places)
{
	MemoryContext old = MemoryContextSwitchTo(places->memory);
	ResourceOwner owner = CurrentResourceOwner;
	BufFile    *file;

	if (places->owner == NULL)
		places->owner = ResourceOwnerCreate(TopTransactionResourceOwner, "pg_mip captured changes");
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
	int64		room = places->room * 2;

	if (room * sizeof(MipPlace) > work_mem * (Size) 1024)
	{
		spill_tail(places);
		return;
	}
	places->tail = grow(places->memory, places->tail, sizeof(MipPlace), places->room, room);
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
	places->marks = grow_for_one(places->memory, places->marks, sizeof(Mark),
								 places->nmarks, &places->marks_room);
	places->marks[places->nmarks].subid = subid;
	places->marks[places->nmarks].position = places->count;
	places->marks[places->nmarks].nfiles = places->nfiles;
	places->nmarks++;
}

/* Looks up what the next one is of. True: that file is the first time there. */
static bool
look_up(MipPlaces *places, MipPlaceFile file)
{
	int			ordinal;

	mark_subtransaction(places);
	ordinal = find_ordinal(places, file);
	places->last_file = ordinal >= 0 ? ordinal : add_ordinal(places, file);
	places->last = file;
	return ordinal < 0;
}

static inline bool
has_room(const MipPlaces *places)
{
	return places->count - places->spilled < places->room;
}

/* Where the next one goes; it is there when it is counted. */
static inline MipPlace *
next_place(MipPlaces *places)
{
	return &places->tail[places->count - places->spilled];
}

void
mip_places_add(MipPlaces *places, const MipPlace *place)
{
	if (!has_room(places))
		make_room(places);
	*next_place(places) = *place;
	places->count++;
	if (place->op == MIP_PLACE_TRUNCATE)
		places->truncated = places->count;
	places->number = place->number;
}

static int64
shifted(const MipPlaces *places, int64 position)
{
	int64		by = 0;

	for (int i = 0; i < places->nshifts; i++)
		if (places->shifts[i].position <= position)
			by += places->shifts[i].by;
	return by;
}

static void
set_place(ItemPointerData *to, const ItemPointerData *from)
{
	if (from)
		*to = *from;
	else
		ItemPointerSetInvalid(to);
}

/* What may fail has been done. */
static inline void
put_place(MipPlaces *places, MipPlaceOp op, int64 number,
		  const ItemPointerData *old, const ItemPointerData *new)
{
	MipPlace   *place = next_place(places);

	Assert(places->marks[places->nmarks - 1].subid == GetCurrentSubTransactionId());
	place->file = places->last_file;
	place->op = op;
	place->number = number;
	set_place(&place->old, old);
	set_place(&place->new, new);
	places->count++;
	places->number++;
}

bool
mip_places_append(MipPlaceFile file, MipPlaceOp op,
				  const ItemPointerData *old, const ItemPointerData *new)
{
	MipPlaces  *places = mip_places_mine();
	bool		first = !same_file(places->last, file) && look_up(places, file);

	if (!has_room(places))
		make_room(places);
	put_place(places, op, places->number + 1 - shifted(places, places->count), old, new);
	if (op == MIP_PLACE_TRUNCATE)
		places->truncated = places->count;
	return first;
}

bool
mip_places_append_like_last(MipPlaceFile file, MipPlaceOp op,
							const ItemPointerData *old, const ItemPointerData *new)
{
	MipPlaces  *places = current;

	Assert(op != MIP_PLACE_TRUNCATE);
	if (unlikely(places == NULL || !same_file(places->last, file) || !has_room(places) ||
				 places->nshifts > 0))
		return false;
	put_place(places, op, places->number + 1, old, new);
	return true;
}

static int
read_kept(MipPlaces *places, int64 position, MipPlace *into, int n)
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

int
mip_places_read(MipPlaces *places, int64 position, MipPlace *into, int n)
{
	n = read_kept(places, position, into, n);
	for (int i = 0; places->nshifts > 0 && i < n; i++)
		into[i].number += shifted(places, position + i);
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

/* ---- changes that have been left out ---- */

void
mip_places_leave_out(MipPlaces *places, int64 truncate, int64 first)
{
	LeftOut    *left_out;

	for (int i = 0; i < places->nleft_out; i++)
	{
		left_out = &places->left_out[i];
		if (left_out->truncate == truncate)
		{
			left_out->first = Min(left_out->first, first);
			return;
		}
	}
	places->left_out = grow_for_one(places->memory, places->left_out, sizeof(LeftOut),
									places->nleft_out, &places->left_out_room);
	left_out = &places->left_out[places->nleft_out++];
	left_out->truncate = truncate;
	left_out->first = first;
}

/* Of TRUNCATEs that have been cut off: nothing may fail here. */
static void
forget_left_out(MipPlaces *places)
{
	int			kept = 0;

	for (int i = 0; i < places->nleft_out; i++)
	{
		LeftOut		left_out = places->left_out[i];

		if (left_out.truncate < places->count)
			places->left_out[kept++] = left_out;
		else if (left_out.first < places->count)
			places->renumber = Min(places->renumber, left_out.first);
	}
	places->nleft_out = kept;
	if (places->renumber >= places->count)
		places->renumber = NOTHING_DUE;
}

static void
forget_shifts(MipPlaces *places)
{
	int			kept = 0;

	for (int i = 0; i < places->nshifts; i++)
		if (places->shifts[i].position < places->count)
			places->shifts[kept++] = places->shifts[i];
	places->nshifts = kept;
}

static void
shift(MipPlaces *places, int64 position, int64 by)
{
	Shift	   *last = places->nshifts ? &places->shifts[places->nshifts - 1] : NULL;

	if (last && last->position == position)
	{
		last->by += by;
		return;
	}
	places->shifts = grow_for_one(places->memory, places->shifts, sizeof(Shift),
								  places->nshifts, &places->shifts_room);
	last = &places->shifts[places->nshifts++];
	last->position = position;
	last->by = by;
}

void
mip_places_renumber(MipPlaces *places)
{
	MipPlace	first;
	MipPlace	last;
	int64		by;

	if (places->renumber == NOTHING_DUE)
		return;
	(void) mip_places_read(places, places->renumber, &first, 1);
	(void) mip_places_read(places, places->count - 1, &last, 1);
	by = places->number + 1 - first.number;
	shift(places, places->renumber, by);
	places->number = last.number + by;
	places->renumber = NOTHING_DUE;
}

/* ---- the ends of transactions ---- */

void
mip_places_at_start_subxact(void)
{
	if (current)
		forget_last(current);
}

void
mip_places_at_eosubxact(bool commit, SubTransactionId mine,
						SubTransactionId parent)
{
	MipPlaces  *places = current;

	if (places)
		forget_last(places);
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
		{
			places->count = last->position;
			forget_files(places, last->nfiles);
		}
		places->nmarks--;
	}
	if (places == NULL || commit)
		return;
	places->spilled = Min(places->spilled, places->count);
	forget_left_out(places);
	forget_shifts(places);
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
	if (commit && current && current->owner)
		drop_file(current->owner);
	current = NULL;
}
