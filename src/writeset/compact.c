/*-------------------------------------------------------------------------
 *
 * compact.c
 *	  Several writesets as one.
 *
 * Changes of one row are a chain: each finds the row by the identity that the one
 * before has left. By the image of the identity, that is: a row is found by what it
 * holds. The rules, of changes of a chain:
 *
 *	  I U		one I, of the row as it is then
 *	  U U		one U, of all columns changed by either
 *	  U D		the D, by the identity before the U
 *	  I D		nothing
 *	  T			of all before it, in this relation, nothing; but T's one behind the
 *				other stay if one of them does: they may refer to each other
 *
 * Where a change goes that is made of two. While a row is on its way some other row
 * may have the identity that it had before, or will have: each change must still find
 * its row, and no other. So
 *
 *	  - a D goes to its chain's first place: it gives an identity up early;
 *	  - an I goes to where its row took its identity: it takes none early;
 *	  - a U that leaves the identity alone goes along with its neighbour;
 *	  - two U's that change it go to the second one's place, unless another row took
 *		the identity before the first since, or could have, unnoticed: by a value that
 *		is equal and not the same (MIPW_EXACT). Then both stay.
 *
 * Rows without a key are as good as any other with the same values, so there the
 * second place always does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"

#include "base/compat.h"
#include "writeset/compact.h"
#include "writeset/compact_image.h"

/* A relation's name */
typedef struct MipwSlot
{
	const MipwRelation *relation;	/* as it was described last */
	uint32		epoch;			/* chains of others are over */
	uint32		number;
	struct MipwOp *ops;			/* all since its last TRUNCATE, the newest
								 * first */
	struct MipwOp *truncations; /* likewise, but all of them */
	struct MipwSlot *next;
} MipwSlot;

/* The slot of relations of this name */
typedef struct MipwNamed
{
	const MipwRelation *relation;
	MipwSlot   *slot;
	char		status;
} MipwNamed;

/* A relation that is in the result, and its number there */
typedef struct MipwWritten
{
	const MipwRelation *relation;
	uint32		number;
	char		status;
} MipwWritten;

/* The body of an update, which becomes part of a change; it lives as long as the writesets. */
typedef struct MipwLater
{
	struct MipwLater *before;
	const uint8 *body;
	const uint8 *body_end;
} MipwLater;

/* A change of the result */
typedef struct MipwOp
{
	char		op;
	bool		cancelled;
	bool		moves;			/* U: changes the identity */
	bool		outdated;		/* T: there is a later one */
	MipwSlot   *slot;
	const MipwRelation *relation;
	uint64		place;			/* counted over all writesets */
	uint64		left;			/* moves: where the identity was left */
	uint64		number;
	const uint8 *body;
	const uint8 *body_end;
	bool		made;			/* the body is not a writeset's */
	MipwLater  *later;			/* what is not in it yet, the last one first */
	Size		later_bytes;
	struct MipwOp *before;		/* U: the one before it in the chain */
	struct MipwOp *same;		/* open ones of the same image */
	struct MipwOp *older;		/* in its slot's list */
} MipwOp;

typedef struct MipwOpen
{
	const MipwImage *image;
	MipwOp	   *ops;			/* whose row has this identity now */
	uint64		taken;			/* the last place where a row took it, plus 1 */
	char		status;
} MipwOpen;

#define SH_PREFIX open
#define SH_ELEMENT_TYPE MipwOpen
#define SH_KEY_TYPE const MipwImage *
#define SH_KEY image
#define SH_HASH_KEY(table, key) ((key)->hash)
#define SH_EQUAL(table, a, b) mip_image_equal(a, b)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static uint32
hash_string(const char *string)
{
	return hash_bytes((const unsigned char *) string, strlen(string));
}

static bool
same_name(const MipwRelation *a, const MipwRelation *b)
{
	return strcmp(a->name, b->name) == 0 && strcmp(a->schema, b->schema) == 0;
}

static bool
same_relation(const MipwRelation *a, const MipwRelation *b)
{
	if (a == b)
		return true;
	if (a->fingerprint != b->fingerprint || a->whole != b->whole ||
		a->ncolumns != b->ncolumns || !same_name(a, b))
		return false;
	for (int i = 0; i < a->ncolumns; i++)
		if (a->columns[i].flags != b->columns[i].flags ||
			strcmp(a->columns[i].name, b->columns[i].name) != 0 ||
			strcmp(a->columns[i].type, b->columns[i].type) != 0)
			return false;
	return true;
}

#define SH_PREFIX named
#define SH_ELEMENT_TYPE MipwNamed
#define SH_KEY_TYPE const MipwRelation *
#define SH_KEY relation
#define SH_HASH_KEY(table, key) \
	hash_combine(hash_string((key)->schema), hash_string((key)->name))
#define SH_EQUAL(table, a, b) same_name(a, b)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#define SH_PREFIX written
#define SH_ELEMENT_TYPE MipwWritten
#define SH_KEY_TYPE const MipwRelation *
#define SH_KEY relation
#define SH_HASH_KEY(table, key) ((uint32) ((key)->fingerprint >> 32))
#define SH_EQUAL(table, a, b) same_relation(a, b)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

typedef struct MipwCompaction
{
	open_hash  *open;
	named_hash *named;
	MipwSlot   *slots;
	uint32		nslots;
	uint64		place;			/* of the change that is looked at */
} MipwCompaction;

/* ---- relations ---- */

/* The slot of a relation; chains end where it is described in another way. */
static MipwSlot *
slot_of(MipwCompaction *c, const MipwRelation *relation)
{
	bool		found;
	MipwNamed  *entry = named_insert(c->named, relation, &found);
	MipwSlot   *slot;

	if (!found)
	{
		slot = entry->slot = palloc0(sizeof(MipwSlot));
		slot->relation = relation;
		slot->number = c->nslots++;
		slot->next = c->slots;
		c->slots = slot;
	}
	slot = entry->slot;
	if (!same_relation(slot->relation, relation))
		slot->epoch++;
	slot->relation = relation;
	return slot;
}

/* ---- chains ---- */

static uint64
chains_of(const MipwSlot *slot)
{
	return (uint64) slot->number << 32 | slot->epoch;
}

static MipwOp *
add_op(MipwCompaction *c, MipwSlot *slot, const MipwChange *change)
{
	MipwOp	   *op = palloc0(sizeof(MipwOp));
	MipwOp	  **list = change->op == 'T' ? &slot->truncations : &slot->ops;

	op->op = change->op;
	op->slot = slot;
	op->relation = change->relation;
	op->place = op->left = c->place;
	op->number = change->number;
	op->body = change->body;
	op->body_end = change->body_end;
	op->older = *list;
	*list = op;
	return op;
}

/* Its row has this identity now. The image is kept, or freed. */
static void
put_open(MipwCompaction *c, MipwImage *image, MipwOp *op, bool taken)
{
	bool		found;
	MipwOpen   *entry = open_insert(c->open, image, &found);

	if (found)
		mip_image_free(image);
	else
	{
		entry->ops = NULL;
		entry->taken = 0;
	}
	op->same = entry->ops;
	entry->ops = op;
	if (taken)
		entry->taken = c->place + 1;
}

/* The chain whose row has this identity, if there is one; nobody has it any more. */
static MipwOp *
take_open(MipwCompaction *c, const MipwImage *image)
{
	MipwOpen   *entry = open_lookup(c->open, image);
	MipwOp	   *op = entry ? entry->ops : NULL;

	if (op)
		entry->ops = op->same;
	return op;
}

static void
set_body(MipwOp *op, const MipwValue *identity, const MipwValue *row)
{
	uint32		length;
	char	   *body = mip_exact_body(op->op, op->relation, identity, row, &length);

	/* values are in what it has been until now */
	if (op->made)
		pfree((void *) op->body);
	op->made = true;
	op->body = (const uint8 *) body;
	op->body_end = op->body + length;
}

static MipwChange
change_of(const MipwOp *op)
{
	MipwChange	change = {0};

	change.op = op->op;
	change.relation = op->relation;
	change.body = op->body;
	change.body_end = op->body_end;
	return change;
}

static void
drop_later(MipwOp *op)
{
	while (op->later)
	{
		MipwLater  *later = op->later;

		op->later = later->before;
		pfree(later);
	}
	op->later_bytes = 0;
}

/* Of columns that have no value yet */
static void
add_values(MipwValue *values, const MipwChange *change)
{
	MipwValue  *row = mip_row_values(change);

	for (int i = 0; i < change->relation->ncolumns; i++)
		if (!values[i].there)
			values[i] = row[i];
	pfree(row);
}

/* Makes the body of all that there is. Values are where they have been until then. */
static void
settle(MipwOp *op)
{
	MipwChange	first = change_of(op);
	MipwValue  *values;
	MipwValue  *identity = NULL;

	if (op->later == NULL)
		return;
	values = palloc0(op->relation->ncolumns * sizeof(MipwValue) + 1);
	for (MipwLater *later = op->later; later; later = later->before)
	{
		MipwChange	update = {.op = 'U',.relation = op->relation};

		update.body = later->body;
		update.body_end = later->body_end;
		add_values(values, &update);
	}
	add_values(values, &first);
	if (op->op == 'U')
		identity = mip_identity_values(&first);
	set_body(op, identity, values);
	drop_later(op);
	pfree(values);
	if (identity)
		pfree(identity);
}

/*
 * An update becomes part of the insertion or update before it. The body is made anew only
 * when as many bytes have come as it has: a long row is not copied with each small update.
 */
static void
merge(MipwOp *op, const MipwChange *change)
{
	MipwLater  *later = palloc(sizeof(MipwLater));

	later->before = op->later;
	later->body = change->body;
	later->body_end = change->body_end;
	op->later = later;
	op->later_bytes += change->body_end - change->body;
	if (op->later_bytes >= op->body_end - op->body)
		settle(op);
}

/* Has another row taken the identity that this one left, or could it have? */
static bool
may_be_taken(MipwCompaction *c, const MipwOp *op)
{
	const MipwRelation *relation = op->relation;
	MipwChange	change = change_of(op);
	MipwImage  *image;
	MipwOpen   *entry;

	if (relation->whole)
		return false;
	for (int i = 0; i < relation->nidentity; i++)
		if (!(relation->columns[relation->identity[i]].flags & MIPW_EXACT))
			return true;
	image = mip_image_before(chains_of(op->slot), &change);
	entry = open_lookup(c->open, image);
	mip_image_free(image);
	return entry && entry->taken > op->left + 1;
}

/* A change that the last one has become part of, and which changes the identity. */
static void
move(MipwCompaction *c, MipwOp *op, MipwSlot *slot, const MipwImage *new,
	 const MipwChange *last)
{
	MipwChange	change = change_of(op);
	MipwImage  *old;

	op->place = c->place;
	op->number = last->number;
	if (op->op == 'I')
		return;
	if (!op->moves)
		op->left = c->place;
	/* it may be back where it was */
	old = mip_image_before(chains_of(slot), &change);
	op->moves = !mip_image_equal(old, new);
	mip_image_free(old);
}

static void
do_insert(MipwCompaction *c, MipwSlot *slot, const MipwChange *change)
{
	MipwValue  *row = mip_row_values(change);

	put_open(c, mip_image_after(chains_of(slot), change->relation, NULL, row),
			 add_op(c, slot, change), true);
	pfree(row);
}

static void
do_update(MipwCompaction *c, MipwSlot *slot, const MipwChange *change)
{
	MipwValue  *identity = mip_identity_values(change);
	MipwValue  *row = mip_row_values(change);
	MipwImage  *old = mip_image_of(chains_of(slot), change->relation, identity);
	MipwImage  *new = mip_image_after(chains_of(slot), change->relation, identity, row);
	bool		moves = !mip_image_equal(old, new);
	MipwOp	   *op = take_open(c, old);

	if (op == NULL || (op->op == 'U' && op->moves && moves && may_be_taken(c, op)))
	{
		MipwOp	   *before = op;

		op = add_op(c, slot, change);
		op->before = before;
		op->moves = moves;
	}
	else
	{
		merge(op, change);
		if (moves)
			move(c, op, slot, new, change);
	}
	put_open(c, new, op, moves);
	mip_image_free(old);
	pfree(identity);
	pfree(row);
}

static void
do_delete(MipwCompaction *c, MipwSlot *slot, const MipwChange *change)
{
	MipwImage  *image = mip_image_before(chains_of(slot), change);
	MipwOp	   *op = take_open(c, image);

	mip_image_free(image);
	if (op == NULL)
	{
		add_op(c, slot, change);
		return;
	}
	for (; op->before; op = op->before)
		op->cancelled = true;
	if (op->op == 'I')
		op->cancelled = true;
	else
	{
		MipwChange	first = change_of(op);
		MipwValue  *identity = mip_identity_values(&first);

		op->op = 'D';
		drop_later(op);
		set_body(op, identity, NULL);
		pfree(identity);
	}
}

static void
do_truncate(MipwCompaction *c, MipwSlot *slot, const MipwChange *change)
{
	slot->ops = NULL;
	if (slot->truncations)
		slot->truncations->outdated = true;
	slot->epoch++;
	add_op(c, slot, change);
}

static void
do_changes(MipwCompaction *c, const MipwSet *set)
{
	MipwCursor	cursor = mipw_changes(set);
	MipwSlot  **slots = palloc0(set->nrelations * sizeof(MipwSlot *) + 1);
	MipwChange	change;

	for (; mipw_next(&cursor, &change); c->place++)
	{
		MipwSlot   *slot = slots[change.nrelation];

		CHECK_FOR_INTERRUPTS();
		if (slot == NULL || slot->relation != change.relation)
			slot = slots[change.nrelation] = slot_of(c, change.relation);
		if (change.op == 'I')
			do_insert(c, slot, &change);
		else if (change.op == 'U')
			do_update(c, slot, &change);
		else if (change.op == 'D')
			do_delete(c, slot, &change);
		else
			do_truncate(c, slot, &change);
	}
	pfree(slots);
}

/* ---- the result ---- */

static bool
is_truncation(const MipwOp *op)
{
	return op && op->op == 'T';
}

/* Takes out TRUNCATEs that are outdated, with all beside them. */
static void
drop_outdated(MipwOp **ops, uint64 n)
{
	uint64		end;

	for (uint64 i = 0; i < n; i = end + 1)
	{
		bool		outdated = true;

		for (end = i; end < n && is_truncation(ops[end]); end++)
			outdated = outdated && ops[end]->outdated;
		if (outdated && end > i)
			memset(&ops[i], 0, (end - i) * sizeof(MipwOp *));
	}
}

static void
put_in_place(MipwOp **ops, MipwOp *list)
{
	for (MipwOp *op = list; op; op = op->older)
		if (!op->cancelled)
		{
			Assert(ops[op->place] == NULL);
			ops[op->place] = op;
		}
}

static MipwOp **
ops_in_place(MipwCompaction *c)
{
	MipwOp	  **ops = MemoryContextAllocExtended(CurrentMemoryContext,
												 (c->place + 1) * sizeof(MipwOp *),
												 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);

	for (MipwSlot *slot = c->slots; slot; slot = slot->next)
	{
		put_in_place(ops, slot->ops);
		put_in_place(ops, slot->truncations);
	}
	drop_outdated(ops, c->place);
	return ops;
}

/* Are the numbers of each behind those of the one before? Then they are kept. */
static bool
numbers_ascend(const MipwSet **sets, int n)
{
	for (int i = 1; i < n; i++)
		if (sets[i]->first <= sets[i - 1]->last)
			return false;
	return n > 0;
}

static uint32
write_relation(written_hash *written, MipwWriter *writer, const MipwRelation *relation)
{
	bool		found;
	MipwWritten *entry = written_insert(written, relation, &found);

	if (!found)
	{
		MipwRelation copy = *relation;

		entry->number = mipw_write_relation(writer, &copy);
	}
	return entry->number;
}

/* Numbers them from `number` on, unless it is 0; returns the next one. */
static uint64
write_ops(MipwWriter *writer, MipwOp **ops, uint64 n, uint64 number)
{
	written_hash *written = written_create(CurrentMemoryContext, 16, NULL);

	for (uint64 i = 0; i < n; i++)
	{
		MipwOp	   *op = ops[i];
		StringInfoData body = {0};

		CHECK_FOR_INTERRUPTS();
		if (op == NULL)
			continue;
		settle(op);
		body.data = (char *) op->body;
		body.len = op->body_end - op->body;
		mipw_write_change(writer, op->op, number ? number++ : op->number,
						  write_relation(written, writer, op->relation), &body);
		if (op->made)
			pfree((void *) op->body);
	}
	return number;
}

struct varlena *
mip_writeset_compact(const MipwSet **sets, int n)
{
	MipwCompaction c = {
		.open = open_create(CurrentMemoryContext, 1024, NULL),
		.named = named_create(CurrentMemoryContext, 16, NULL),
	};
	bool		keep = numbers_ascend(sets, n);
	MipwWriter *writer = mipw_begin(keep ? sets[0]->first : 1, 0);
	uint64		database = n > 0 ? sets[0]->database : 0;
	uint64		number;

	for (int i = 0; i < n; i++)
	{
		if (sets[i]->encoding != sets[0]->encoding)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("writesets of databases with different encodings cannot be compacted")));
		do_changes(&c, sets[i]);
		for (uint32 j = 0; j < sets[i]->nkeys; j++)
			mipw_write_key(writer, mipw_hash(sets[i], j), mipw_mode(sets[i], j));
		if (sets[i]->database != database)
			database = 0;
	}
	number = write_ops(writer, ops_in_place(&c), c.place, keep ? 0 : 1);
	return mipw_end(writer, keep ? sets[n - 1]->last : number - 1, database,
					n > 0 ? sets[0]->encoding : GetDatabaseEncoding());
}
