/*-------------------------------------------------------------------------
 *
 * certifier.h
 *	  Which transactions of a replicated site stay: a function of the log.
 *
 * It knows no more of the server than its memory, so that it can be tested by itself.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_CERTIFIER_H
#define MIP_REPLICATION_CERTIFIER_H

#include "replication/message.h"
#include "writeset/format.h"

typedef struct MipCertifier MipCertifier;

/* Why a message's transaction, or definition, does not stay */
typedef enum MipRefusal
{
	MIP_REFUSED_NOT,			/* it stays */
	MIP_REFUSED_CONFLICT,		/* with one that it does not know of, by a key */
	MIP_REFUSED_FORGOTTEN,		/* it knows of less than is remembered */
	MIP_REFUSED_DEFINITION,		/* it began before a definition that stays */
	MIP_REFUSED_CHANGE,			/* a definition: something has been changed
								 * since */
	MIP_REFUSED_REQUEST,		/* another one of its family, or a fence */
	MIP_REFUSED_REPEATED,		/* the message has come before */
	MIP_REFUSED_SKIPPED,		/* a definition that somebody has left out */
	MIP_REFUSALS
} MipRefusal;

typedef struct MipVerdict
{
	MipRefusal	refusal;
	const MipwRelation *relation;	/* of a CONFLICT: with whose change that
									 * key came; NULL: it is not told */
} MipVerdict;

/* Behind position `behind`, of which it remembers nothing; in the current memory context. */
extern MipCertifier *mip_certifier_create(const MipLogSettings *settings, uint64 behind);

/*
 * May the transaction stay? A request's unless there is another one of its family, or a fence, that it does not know
 * of. It does unless what it has written, or claims, or refers to, has
 * been changed by one that is certified and that it does not know of; or it knows of less
 * than is remembered; or it began to change something before a definition that stays. A definition,
 * which no `set` goes with, stays if nothing at all is changed that it does not know of: then
 * it does what it did where it was tried out. The relation is the set's.
 */
extern MipVerdict mip_certify(const MipCertifier *certifier, const MipMessage *message,
							  const MipwSet *set);

/*
 * The next position is decided: `set` is what a transaction has written, NULL that of other messages.
 * What does not stay counts for nothing but its position.
 */
extern void mip_certifier_add(MipCertifier *certifier, const MipMessage *message,
							  const MipwSet *set, bool stays);

#endif							/* MIP_REPLICATION_CERTIFIER_H */
