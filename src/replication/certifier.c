/*-------------------------------------------------------------------------
 *
 * certifier.c
 *	  Which transactions of a replicated site stay: a function of the log.
 *
 * A transaction stays unless one before it in the log, which stays and which it does not
 * know of, has a key in common with it, in modes that go not together (keys.h). What it
 * knows of are the positions up to its first change. Updates of a row know of each other up to
 * its snapshot: of what was applied at its member meanwhile the row's lock has kept it apart, and
 * whoever has waited for that has seen it. With references nothing does: no locks
 * are taken where they are applied, so that somebody may remove a row that has just been
 * referred to. (Where a key cannot be hashed its table's stands for it, and a reference
 * comes as K, or is in an N: so that is for these, too. spec/Replica.tla)
 *
 * A message's id is one of its keys: should it come twice it is refused the second time.
 * So is a request's XID: what it knows of are the positions up to its begin, when it looked for
 * others of its family. A fence reads an XID: no request that has begun before it comes behind.
 *
 * Of each key the last position is kept at which it came in each mode. Of the log that is
 * remembered so much as its settings say, in positions and in keys; a transaction
 * that knows of less is refused, whatever it has done. So the verdict depends on
 * that part of the log alone, and whoever has read it comes to the same one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "replication/certifier.h"

typedef struct KeyEntry
{
	uint64		hash;
	uint64		last[MIPW_K];	/* by mode - 1: the position, or 0 */
	char		status;
} KeyEntry;

#define SH_PREFIX		keys
#define SH_ELEMENT_TYPE	KeyEntry
#define SH_KEY_TYPE		uint64
#define SH_KEY			hash
#define SH_HASH_KEY(tb, key) ((uint32) ((key) ^ (key) >> 32))	/* a hash itself */
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

struct MipCertifier
{
	MipLogSettings settings;
	uint64		position;		/* decided last */
	uint64		floor;			/* what is remembered is behind it */
	uint64		changed;		/* position of the last transaction that
								 * stays, or 0 */
	uint64		defined;		/* position of the last definition that stays,
								 * or 0 */
	uint64		nkeys;			/* that came behind the floor */
	uint32	   *counts;			/* of keys, of the positions behind the floor,
								 * in a ring of `window` */
	keys_hash  *keys;
};

MipCertifier *
mip_certifier_create(const MipLogSettings *settings, uint64 behind)
{
	MipCertifier *certifier = palloc0(sizeof(MipCertifier));

	certifier->settings = *settings;
	certifier->position = certifier->floor = behind;
	certifier->counts = palloc_extended(settings->window * sizeof(uint32), MCXT_ALLOC_HUGE);
	certifier->keys = keys_create(CurrentMemoryContext, 1024, NULL);
	return certifier;
}

/* Up to where a transaction knows of others */
typedef struct Knowledge
{
	uint64		updates;		/* of the same row, if its is an update */
	uint64		all;
} Knowledge;

/* Has somebody whom this one does not know of had the key in such a mode? */
static bool
meets(const KeyEntry *entry, uint8 mode, Knowledge knowledge)
{
	for (uint8 other = MIPW_R; other <= MIPW_K; other++)
	{
		uint64		knows = mode == MIPW_N && other == MIPW_N ? knowledge.updates : knowledge.all;

		if (MIPW_CONFLICT(mode, other) && entry->last[other - 1] > knows)
			return true;
	}
	return false;
}

static uint64
key_of_id(const MipMessageId *id)
{
	return mipw_fnv(MIPW_FNV, id, sizeof(MipMessageId));
}

static bool
is_free(const MipCertifier *certifier, uint64 hash, uint8 mode, Knowledge knowledge)
{
	const KeyEntry *entry = keys_lookup(certifier->keys, hash);

	return entry == NULL || !meets(entry, mode, knowledge);
}

static uint64
key_of_family(const MipMessage *message)
{
	return mipw_fnv(MIPW_FNV, &message->family, sizeof(message->family));
}

/* Does it know all of its family? */
static bool
is_first_of_family(const MipCertifier *certifier, const MipMessage *message)
{
	Knowledge	knowledge = {message->begun, message->begun};

	return message->begun >= certifier->floor &&
		is_free(certifier, key_of_family(message), MIPW_K, knowledge);
}

/* Of the message; what it brings is looked at after that. */
static MipRefusal
refusal_of(const MipCertifier *certifier, const MipMessage *message, Knowledge knowledge)
{
	if (message->first < certifier->floor)
		return MIP_REFUSED_FORGOTTEN;
	if (message->first < certifier->defined)
		return MIP_REFUSED_DEFINITION;
	if (message->kind == MIP_MESSAGE_DEFINITION && message->first < certifier->changed)
		return MIP_REFUSED_CHANGE;
	if (message->kind == MIP_MESSAGE_REQUEST && !is_first_of_family(certifier, message))
		return MIP_REFUSED_REQUEST;
	if (!is_free(certifier, key_of_id(&message->id), MIPW_K, knowledge))
		return MIP_REFUSED_REPEATED;
	return MIP_REFUSED_NOT;
}

MipVerdict
mip_certify(const MipCertifier *certifier, const MipMessage *message, const MipwSet *set)
{
	Knowledge	knowledge = {message->snapshot, message->first};
	MipVerdict	verdict = {refusal_of(certifier, message, knowledge)};

	for (uint32 i = 0; set && i < set->nkeys && verdict.refusal == MIP_REFUSED_NOT; i++)
	{
		if (is_free(certifier, mipw_hash(set, i), mipw_mode(set, i), knowledge))
			continue;
		verdict.refusal = MIP_REFUSED_CONFLICT;
		verdict.relation = mipw_key_relation(set, i);
	}
	return verdict;
}

static uint32 *
count_of(MipCertifier *certifier, uint64 position)
{
	return &certifier->counts[position % certifier->settings.window];
}

/* The position that is about to be added needs room in the ring. */
static void
raise_floor(MipCertifier *certifier, uint64 nkeys)
{
	const MipLogSettings *settings = &certifier->settings;

	while (certifier->floor < certifier->position &&
		   (certifier->position - certifier->floor >= settings->window ||
			certifier->nkeys + nkeys > settings->keys))
		certifier->nkeys -= *count_of(certifier, ++certifier->floor);
}

/* Now and then: so much for each position as for one that is added */
static void
sweep(MipCertifier *certifier)
{
	keys_iterator iterator;
	KeyEntry   *entry;

	if (certifier->keys->members < 1024 || certifier->keys->members < 2 * certifier->nkeys)
		return;
	keys_start_iterate(certifier->keys, &iterator);
	while ((entry = keys_iterate(certifier->keys, &iterator)) != NULL)
	{
		if (Max(Max(entry->last[0], entry->last[1]), entry->last[2]) <= certifier->floor)
			keys_delete_item(certifier->keys, entry);
	}
}

/* It came at the position that is being added. */
static void
note(MipCertifier *certifier, uint64 hash, uint8 mode)
{
	bool		found;
	KeyEntry   *entry = keys_insert(certifier->keys, hash, &found);

	if (!found)
		memset(entry->last, 0, sizeof(entry->last));
	entry->last[mode - 1] = certifier->position;
}

void
mip_certifier_add(MipCertifier *certifier, const MipMessage *message, const MipwSet *set, bool stays)
{
	bool		writes = set && stays;
	bool		of_family = message->kind == MIP_MESSAGE_FENCE || (writes && message->kind == MIP_MESSAGE_REQUEST);
	uint32		nkeys = (writes ? set->nkeys + 1 : 0) + of_family;

	raise_floor(certifier, nkeys);
	sweep(certifier);
	certifier->position++;
	certifier->nkeys += nkeys;
	*count_of(certifier, certifier->position) = nkeys;
	if (message->kind == MIP_MESSAGE_DEFINITION && stays)
		certifier->defined = certifier->position;
	if (of_family)
		note(certifier, key_of_family(message), message->kind == MIP_MESSAGE_FENCE ? MIPW_R : MIPW_K);
	if (!writes)
		return;
	certifier->changed = certifier->position;
	note(certifier, key_of_id(&message->id), MIPW_K);
	for (uint32 i = 0; i < set->nkeys; i++)
		note(certifier, mipw_hash(set, i), mipw_mode(set, i));
}
