/*-------------------------------------------------------------------------
 *
 * format.h
 *	  A writeset as bytes: format 1, its writer and its reader.
 *
 * Integers are little-endian; a varint has seven bits a byte, the lowest first, and
 * no byte more than it needs. A string is a varint, its length, and its bytes, in
 * the encoding of the database that it comes from, without zeros.
 *
 *	  header	MIPW_HEADER bytes
 *		 0	"MIPW"
 *		 4	uint16	version, 1
 *		 6	uint8	flags, none yet: 0
 *		 7	uint8	encoding of the database, PostgreSQL's number for it
 *		 8	uint64	the database that it comes from; 0: several
 *		16	uint64	length of the whole, checksum included
 *		24	uint64	first: the number that its first change has at least
 *		32	uint64	last: changes behind it are not in here; first - 1 at least
 *		40	uint32	insertions, updates (44), deletions (48), truncations (52)
 *		56	uint32	keys
 *		60	uint32	relations
 *		64	uint32	bytes of R
 *		68	uint32	bytes of C
 *	  K			uint64[keys], each greater than the one before; uint8[keys]: the mode, and
 *				above its two bits the relation whose change it came with, counted from
 *				1; 0: it is not told
 *	  R			relations, one after the other:
 *				uint32	id: its OID where it comes from
 *				uint8	identity: 'k' some columns, 'w' the whole row
 *				string	schema, then name
 *				varint	columns; each of them: uint8 MIPW_..., string name, string
 *						type as mip_type_name() writes it
 *				uint64	fingerprint: FNV-1a of the bytes from "identity" to here
 *	  C			changes, one after the other, in their order:
 *				uint8	'I', 'U', 'D', 'T'; with MIPW_SKIP numbers are left out before it
 *				varint	how many, less one: with MIPW_SKIP only
 *				varint	relation, counted from 0
 *				varint	length of what follows:
 *				I		a row: null bitmap of all columns, values of those not null
 *				U		the old identity: null bitmap of the identity's columns, values
 *						of those not null; bitmap of the columns that are changed; null
 *						bitmap of all columns, within those; values of the others of
 *						those
 *				D		the old identity
 *				T		nothing
 *	  uint32	CRC-32C of all before it
 *
 * In bitmaps the lowest bit of the first byte comes first, and bits behind the last
 * column are 0. Values of types that mipw_width() knows are as wide as it says;
 * others are strings (bytea: any bytes): what the type's output function writes,
 * under the settings of values.c.
 *
 * format_decode.c needs nothing of a server but pg_crc32c of libpgport.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_FORMAT_H
#define MIP_WRITESET_FORMAT_H

#include "lib/stringinfo.h"
#include "port/pg_bswap.h"

#define MIPW_MAGIC		"MIPW"
#define MIPW_VERSION	1
#define MIPW_HEADER		72
#define MIPW_TRAILER	4		/* the checksum */
#define MIPW_SKIP		0x80

#define MIPW_MAX_COLUMNS	1600
#define MIPW_MAX_NAME		1024	/* of a type, quoted and with its schema,
									 * at most */

/* Flags of a column */
#define MIPW_IDENTITY	0x01	/* is of the identity */
#define MIPW_GENERATED	0x02	/* stored, and computed anew where it is
								 * applied; not of the identity */
#define MIPW_EXACT		0x04	/* equal values have equal bytes */

/*
 * Modes of a key: the stronger one is greater. K goes with none, N (the row has
 * changed, this key of it has not) with R (something refers to it), R with R.
 */
#define MIPW_R			1
#define MIPW_N			2
#define MIPW_K			3
#define MIPW_CONFLICT(a, b) ((a) + (b) >= 4)

/* Widths that are none */
#define MIPW_TEXT		0
#define MIPW_BYTES		(-1)

typedef struct MipwColumn
{
	char	   *name;
	char	   *type;
	uint8		flags;
	int			width;			/* of its type: mipw_width() */
} MipwColumn;

typedef struct MipwRelation
{
	uint32		id;
	bool		whole;			/* the identity is the whole row */
	char	   *schema;
	char	   *name;
	int			ncolumns;
	MipwColumn *columns;
	int			nidentity;
	int		   *identity;		/* its columns, ascending; of the whole row
								 * without generated ones */
	uint64		fingerprint;	/* of all but the id */
} MipwRelation;

/* ---- reading ---- */

/* A writeset that has been found to be one: everything in it is as said above. */
typedef struct MipwSet
{
	const uint8 *bytes;
	size_t		length;
	uint8		encoding;
	uint64		database;
	uint64		first;
	uint64		last;
	uint32		inserted;
	uint32		updated;
	uint32		deleted;
	uint32		truncated;
	uint32		nkeys;
	const uint8 *hashes;		/* mipw_hash() */
	const uint8 *modes;			/* mipw_mode(), mipw_key_relation() */
	uint32		nrelations;
	MipwRelation *relations;
	const uint8 *changes;		/* C */
	const uint8 *changes_end;
} MipwSet;

/* A change; the bytes are the writeset's own. */
typedef struct MipwChange
{
	char		op;				/* I, U, D, T */
	uint64		number;
	uint32		nrelation;
	const MipwRelation *relation;
	const uint8 *body;
	const uint8 *body_end;
} MipwChange;

/* Where a reader of the changes is; begin with mipw_changes(). */
typedef struct MipwCursor
{
	const MipwSet *set;
	const uint8 *next;
	uint64		number;			/* of the last one read */
} MipwCursor;

typedef struct MipwValue
{
	bool		there;			/* else the column has not been changed */
	bool		null;
	const uint8 *data;
	uint32		length;
} MipwValue;

typedef void *(*MipwAlloc) (size_t size);

/*
 * Is this a writeset? If so `set` is filled, with memory of `alloc`, which does not
 * return NULL, and NULL is returned; else what is wrong with it.
 */
extern const char *mipw_decode(const void *bytes, size_t length, MipwAlloc alloc,
							   MipwSet *set);

/* Applied by name, a column must not come twice. `room` for one name a column. */
extern bool mipw_names_are_unique(const MipwRelation *relation, char **room);

extern uint64 mipw_hash(const MipwSet *set, uint32 i);

static inline uint8
mipw_mode(const MipwSet *set, uint32 i)
{
	return set->modes[i] & 3;
}

/* That with whose change a key came, or NULL: it is not told. */
static inline const MipwRelation *
mipw_key_relation(const MipwSet *set, uint32 i)
{
	uint8		number = set->modes[i] >> 2;

	return number > 0 ? &set->relations[number - 1] : NULL;
}

/* Do two of them have keys in conflict? */
extern bool mipw_conflict(const MipwSet *a, const MipwSet *b);
extern MipwCursor mipw_changes(const MipwSet *set);

/* The next change; false if there is none any more. */
extern bool mipw_next(MipwCursor *cursor, MipwChange *change);

/*
 * Values of a change that has them: of the old identity (U, D), in the order of
 * relation->identity, and of the row (I, U), one for each column.
 */
extern void mipw_identity(const MipwChange *change, MipwValue *values);
extern void mipw_row(const MipwChange *change, MipwValue *values);

/* How wide are values of this type? MIPW_TEXT, MIPW_BYTES, or so many bytes. */
extern int	mipw_width(const char *type);

/* FNV-1a, from `hash` on; the first one is MIPW_FNV. */
#define MIPW_FNV		UINT64CONST(14695981039346656037)
extern uint64 mipw_fnv(uint64 hash, const void *bytes, size_t length);

/* ---- writing (in the server: errors are raised) ---- */

typedef struct MipwWriter MipwWriter;

/*
 * In the current memory context, where the writeset will be, too; `first`: see above. About
 * so many changes are to come, as far as that is known: there is room for them.
 */
extern MipwWriter *mipw_begin(uint64 first, uint64 nchanges);

/* Its number in here; each relation should be written once. Sets its fingerprint. */
extern uint32 mipw_write_relation(MipwWriter *writer, MipwRelation *relation);

/*
 * A body is made with mipw_body(), or as format_body.h does; numbers ascend. Who has many
 * makes them in place, as format_encode.h does.
 */
extern void mipw_write_change(MipwWriter *writer, char op, uint64 number,
							  uint32 relation, const StringInfoData *body);

/* As often as one likes: of the same hash the strongest mode is kept. */
extern void mipw_write_key(MipwWriter *writer, uint64 hash, uint8 mode);

/* Keys that are written from now on come with changes of this relation. */
extern void mipw_keys_of(MipwWriter *writer, uint32 relation);

/*
 * Parts of format_body.h and format_encode.h: room for so many bytes more; for keys; for a
 * body's length before it, of more than one byte.
 */
extern void mipw_enlarge(StringInfo buffer, size_t more);
extern void mipw_make_room_for_keys(MipwWriter *writer);
extern char *mipw_make_way(char *from, size_t length);

/* Drops repeated keys. */
extern void mipw_settle_keys(MipwWriter *writer);

/* The writeset; the writer and what belongs to it are freed. */
extern struct varlena *mipw_end(MipwWriter *writer, uint64 last, uint64 database,
								uint8 encoding);

/* Appends the body of a change. Values are as of mipw_identity() and mipw_row(). */
extern void mipw_body(StringInfo body, char op, const MipwRelation *relation,
					  const MipwValue *identity, const MipwValue *row);

/* The lowest `width` bytes of a number, 8 at most, little-endian */
static inline void
mipw_put_number(void *to, uint64 value, int width)
{
#ifdef WORDS_BIGENDIAN
	value = pg_bswap64(value);
#endif
	memcpy(to, &value, width);
}

/* And back: so many bytes */
static inline uint64
mipw_get_number(const uint8 *bytes, int width)
{
	uint64		value = 0;

	for (int i = width - 1; i >= 0; i--)
		value = value << 8 | bytes[i];
	return value;
}

#endif							/* MIP_WRITESET_FORMAT_H */
