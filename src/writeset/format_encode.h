/*-------------------------------------------------------------------------
 *
 * format_encode.h
 *	  Writing a writeset change by change, key by key (format.h has the rest).
 *
 * For whoever has many to write: a change is made where it is to stay. How long its body is
 * comes before it and is not known yet; most are so short that one byte is enough.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_FORMAT_ENCODE_H
#define MIP_WRITESET_FORMAT_ENCODE_H

#include "writeset/format.h"
#include "writeset/format_body.h"

typedef struct MipwKey
{
	uint64		hash;
	uint8		mode;
	uint8		relation;		/* as in a writeset */
} MipwKey;

/* A change in the making, behind those that are written */
typedef struct MipwDraft
{
	MipwBody	body;
	int			start;			/* where it begins, in the changes */
	int			body_start;		/* the byte before is its length's */
} MipwDraft;

struct MipwWriter
{
	MemoryContext context;
	uint64		first;
	uint64		number;			/* of the last change */
	uint32		counts[4];		/* I, U, D, T */
	uint32		nrelations;
	StringInfoData relations;
	StringInfoData changes;		/* becomes the writeset */
	MipwDraft	draft;
	MipwKey    *keys;
	uint8		key_relation;	/* of those that are being written */
	uint64		nkeys;
	uint64		room;
	uint64		worth_settling; /* with fewer, the memory that repeated ones
								 * take does not matter */
};

/* ---- changes ---- */

/* A byte, and three numbers, of which the last one is the body's length */
#define MIPW_HEAD		(1 + 3 * MIPW_VARINT)

/* All of it but the body's length */
static inline char *
mipw_put_head(const MipwWriter *writer, char *to, char op, uint64 number, uint32 relation)
{
	uint64		skip = number - writer->number - 1;

	Assert(number > writer->number);
	*to++ = skip ? op | MIPW_SKIP : op;
	if (unlikely(skip))
		to = mipw_put_varint(to, skip - 1);
	return mipw_put_varint(to, relation);
}

static inline void
mipw_count_change(MipwWriter *writer, char op, uint64 number)
{
	writer->number = number;
	writer->counts[op == 'I' ? 0 : op == 'U' ? 1 : op == 'D' ? 2 : 3]++;
}

/*
 * The relation may still be to be written, before the change is: as the next one. `spare`:
 * mipw_body_spare() of it. The body follows.
 */
static inline MipwBody *
mipw_change_begin(MipwWriter *writer, char op, uint64 number, uint32 relation, size_t spare)
{
	MipwDraft  *draft = &writer->draft;

	Assert(relation <= writer->nrelations);
	draft->start = writer->changes.len;
	mipw_body_begin(&draft->body, &writer->changes, MIPW_HEAD + spare);
	draft->body.to = mipw_put_head(writer, draft->body.to, op, number, relation) + 1;
	draft->body_start = draft->body.to - writer->changes.data;
	return &draft->body;
}

static inline size_t
mipw_draft_length(const MipwWriter *writer)
{
	return writer->draft.body.to - (writer->changes.data + writer->draft.body_start);
}

static inline void
mipw_change_end(MipwWriter *writer, char op, uint64 number)
{
	size_t		length = mipw_draft_length(writer);
	char	   *body = writer->changes.data + writer->draft.body_start;

	if (likely(length < 0x80))
		body[-1] = length;
	else
		writer->draft.body.to = mipw_make_way(body - 1, length);
	mipw_body_end(&writer->draft.body);
	mipw_count_change(writer, op, number);
}

/* It is not written after all. */
static inline void
mipw_change_cancel(MipwWriter *writer)
{
	writer->changes.len = writer->draft.start;
}

/* How long the writeset would be now, and with the draft's body; with repeated keys, could be */
static inline uint64
mipw_draft_size(const MipwWriter *writer)
{
	return MIPW_HEADER + 9 * writer->nkeys + writer->relations.len + writer->draft.start +
		mipw_draft_length(writer) + MIPW_TRAILER;
}

/* ---- keys ---- */

/* As mipw_write_key() does it. */
static inline void
mipw_put_key(MipwWriter *writer, uint64 hash, uint8 mode)
{
	MipwKey    *key;

	if (unlikely(writer->nkeys == writer->room))
		mipw_make_room_for_keys(writer);
	key = &writer->keys[writer->nkeys++];
	key->hash = hash;
	key->mode = mode;
	key->relation = writer->key_relation;
}

#endif							/* MIP_WRITESET_FORMAT_ENCODE_H */
