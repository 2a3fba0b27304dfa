/*-------------------------------------------------------------------------
 *
 * message.h
 *	  What replicas tell each other: a message of the log.
 *
 * Integers are little-endian, as in a writeset.
 *
 *		 0	"MIPR"
 *		 4	uint8	version, 1
 *		 5	uint8	kind: MIP_MESSAGE_...
 *		 6	uint16	length of the member's name
 *		 8	16 bytes	id: no two messages have the same one
 *		24	uint64	snapshot
 *		32	uint64	first
 *		40	uint64	history at snapshot
 *		48	uint64	length of the whole
 *		56	the member's name, without a zero
 *			body
 *			uint32	CRC-32C of all before it
 *
 * The body of what is of a request (request.c) begins with
 *
 *		 0	uint32	length of all that is not its writeset
 *		 4	uint64	begun
 *		12	uint64	hash of its XID
 *
 *	  snapshot	the position up to which its member had applied the log when the message
 *				was made
 *	  first		... when the transaction made its first change, or the definition was tried
 *				out; snapshot at most
 *	  begun		... when the instance looked for others of its family, likewise
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_MESSAGE_H
#define MIP_REPLICATION_MESSAGE_H

#include "base/compat.h"

#define MIP_MESSAGE_SETTINGS	'S' /* the log's first one; body:
									 * MipLogSettings */
#define MIP_MESSAGE_TRANSACTION	'T' /* body: a writeset */
#define MIP_MESSAGE_REQUEST		'Q' /* of an instance; body: see request.c,
									 * behind it a writeset */
#define MIP_MESSAGE_FENCE		'F' /* no instance of its family that does not
									 * know of it stays; body: likewise,
									 * without one */
#define MIP_MESSAGE_DEFINITION 'D'	/* body: strings, see definition.c */
#define MIP_MESSAGE_MEMBER		'M' /* its member has applied, and flushed,
									 * its snapshot; no body */
#define MIP_MESSAGE_LEAVES		'L' /* body: the name of a member that has
									 * left */

/* Longest message; who commits more is refused. */
#define MIP_MESSAGE_MAX		(64 * 1024 * 1024)

typedef struct MipMessageId
{
	uint64		start;			/* of the server that made it */
	uint64		number;
} MipMessageId;

static inline bool
mip_same_id(const MipMessageId *a, const MipMessageId *b)
{
	return a->start == b->start && a->number == b->number;
}

typedef struct MipMessage
{
	char		kind;
	MipMessageId id;
	uint64		snapshot;
	uint64		first;
	uint64		history;
	char	   *member;
	const uint8 *body;			/* points into the bytes */
	Size		length;			/* of the body */
	uint64		begun;			/* of a REQUEST */
	uint64		family;			/* hash of its XID, or a FENCE's */
	const uint8 *writeset;		/* of a TRANSACTION or REQUEST, within the
								 * body; else NULL */
	Size		writeset_length;
} MipMessage;

/*
 * What all replicas decide by, in the log so that it is the same for them; and what they
 * are copies of.
 */
typedef struct MipLogSettings
{
	uint64		window;			/* so many positions are remembered at most */
	uint64		keys;			/* and so many keys */
	uint64		system;			/* system identifier of the cluster */
} MipLogSettings;

/* Length of what is before an XID's own part of a body */
#define MIP_MESSAGE_FAMILY	20

/* The bytes; palloc'd. */
extern bytea *mip_message_encode(const MipMessage *message);

/* Into memory of the caller's: mip_message_size() bytes, without the header of a varlena */
extern Size mip_message_size(const MipMessage *message);
extern void mip_message_write(const MipMessage *message, uint8 *bytes);

/*
 * The message that these bytes are; MP030 if they are none, as behind damage on their way.
 * `bytes` is not toasted, and stays.
 */
extern MipMessage *mip_message_decode(const bytea *bytes);

/* Without looking whether they are one: they have been made here. */
extern MipMessage mip_message_of(const uint8 *bytes, Size length);

/* MP030: these bytes are none, for that reason. */
pg_noreturn extern void mip_refuse_message(const char *detail);

/* Settings as a body, and back */
extern bytea *mip_settings_message(const MipLogSettings *settings, MipMessageId id, char *member);
extern MipLogSettings mip_message_settings(const MipMessage *message);

/*
 * What is known of the log so far, with one message more at this position, and what has become of it (refused,
 * certified, left out). Source: design.
 */
extern uint64 mip_history_next(uint64 history, uint64 position, uint8 what,
							   const uint8 *bytes, Size length);

#endif							/* MIP_REPLICATION_MESSAGE_H */
