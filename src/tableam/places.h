/*-------------------------------------------------------------------------
 *
 * places.h
 *	  Where a transaction has changed rows, in the order in which it has.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PLACES_H
#define MIP_PLACES_H

#include "storage/itemptr.h"

typedef enum MipPlaceOp
{
	MIP_PLACE_INSERT,
	MIP_PLACE_UPDATE,
	MIP_PLACE_DELETE,
	MIP_PLACE_TRUNCATE
} MipPlaceOp;

/* One change: what is there to be read of it. 24 bytes, for there are many. */
typedef struct MipPlace
{
	int64		number;			/* of the change, from 1 on */
	ItemPointerData old;		/* of updates and deletes: the version
								 * replaced */
	ItemPointerData new;		/* of insertions and updates */
	uint32		op:2;			/* MipPlaceOp */
	uint32		file:30;		/* mip_places_file says which */
} MipPlace;

/* A table, as it was stored when it was changed. */
typedef struct MipPlaceFile
{
	Oid			relid;
	Oid			filenumber;
} MipPlaceFile;

/*
 * A unique index, or an exclusion constraint's, by OID, and the topmost one of what it is
 * a partition of, or itself; or a foreign key, and the table that has the topmost of the
 * indexes that the one it refers to is a partition of
 */
typedef struct MipPlaceKey
{
	Oid			oid;
	Oid			topmost;
	bool		valid;			/* no index that was being built, or dropped,
								 * concurrently */
} MipPlaceKey;

/* The keys that the table had when it was changed first */
typedef struct MipPlaceKeys
{
	Oid			topmost;		/* of the tables that it is a partition of, or
								 * InvalidOid */
	Oid			identity;		/* the index chosen as replica identity, or
								 * InvalidOid */
	int			n;				/* indexes */
	int			nreferences;	/* foreign keys, behind them */
	MipPlaceKey keys[FLEXIBLE_ARRAY_MEMBER];
} MipPlaceKeys;

/* Of so many */
static inline Size
mip_place_keys_size(int n)
{
	return offsetof(MipPlaceKeys, keys) + n * sizeof(MipPlaceKey);
}

typedef struct MipPlaces MipPlaces;

/* Those of this transaction. */
extern MipPlaces *mip_places_mine(void);

/*
 * Appends a change of the current subtransaction. True: it is the first one of this file,
 * whose keys are to be set now.
 */
extern bool mip_places_append(MipPlaceFile file, MipPlaceOp op,
							  const ItemPointerData *old, const ItemPointerData *new);

/*
 * Likewise, but for TRUNCATE, of the file that the last one was of. False: it is not, or
 * something is to be done first that mip_places_append() does.
 */
extern bool mip_places_append_like_last(MipPlaceFile file, MipPlaceOp op,
										const ItemPointerData *old,
										const ItemPointerData *new);

/* Of the file of the change appended last; in TopTransactionContext */
extern void mip_places_set_keys(MipPlaceKeys *keys);

/* This file has been emptied, by nothing that is appended: what was there is gone. */
extern void mip_places_empty(MipPlaceFile file);

/* How many there are. */
extern int64 mip_places_count(const MipPlaces *places);

/* The number given last, to a change that may have been rolled back since. */
extern int64 mip_places_last(const MipPlaces *places);

/* Which of them, counted from 0, is the first with a number above this one. */
extern int64 mip_places_above(MipPlaces *places, int64 number);

/* Copies up to n of them, from the one at `position` on; returns how many. */
extern int	mip_places_read(MipPlaces *places, int64 position, MipPlace *into, int n);

/*
 * Notes that changes from the one at position `first` on were left out for the TRUNCATE
 * at a position that was not reached. If that is rolled back, they are to have other numbers
 * than those told before: mip_places_renumber, which is called before numbers are told, or
 * taken, gives them.
 */
extern void mip_places_leave_out(MipPlaces *places, int64 truncate, int64 first);
extern void mip_places_renumber(MipPlaces *places);

/* All TRUNCATEs among them are before this position. */
extern int64 mip_places_truncated(const MipPlaces *places);

extern int	mip_places_files(const MipPlaces *places);
extern MipPlaceFile mip_places_file(const MipPlaces *places, int i);

/* NULL: not known, as of those that an earlier version has stored */
extern const MipPlaceKeys *mip_places_keys(const MipPlaces *places, int i);

/* Has it been emptied since? Never, if it is of those that have been stored */
extern bool mip_places_emptied(const MipPlaces *places, int i);

/*
 * A list of one's own, in the current memory and resource owner, which nothing is
 * appended to: whoever fills it gives the numbers, and says which tables there are.
 */
extern MipPlaces *mip_places_create(void);
extern void mip_places_close(MipPlaces *places);
extern void mip_places_add_file(MipPlaces *places, MipPlaceFile file, MipPlaceKeys *keys);
extern void mip_places_add(MipPlaces *places, const MipPlace *place);

extern void mip_places_at_start_subxact(void);
extern void mip_places_at_eosubxact(bool commit, SubTransactionId mine,
									SubTransactionId parent);
extern void mip_places_at_eoxact(bool commit);

#endif							/* MIP_PLACES_H */
