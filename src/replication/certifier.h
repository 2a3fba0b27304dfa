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

/* Behind position `behind`, of which it remembers nothing; in the current memory context. */
extern MipCertifier *mip_certifier_create(const MipLogSettings *settings, uint64 behind);

/*
 * May the transaction stay? True unless what it has written, or claims, or refers to, has
 * been changed by one that is certified and that it does not know of; or it knows of less
 * than is remembered.
 */
extern bool mip_certify(const MipCertifier *certifier, const MipMessage *message,
						const MipwSet *set);

/*
 * The next position is decided: of a transaction that stays `set` is what it has written,
 * else NULL.
 */
extern void mip_certifier_add(MipCertifier *certifier, const MipMessage *message,
							  const MipwSet *set);

#endif							/* MIP_REPLICATION_CERTIFIER_H */
