/*-------------------------------------------------------------------------
 *
 * verdicts.h
 *	  What has been refused since the server started: by table, and why.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_VERDICTS_H
#define MIP_REPLICATION_VERDICTS_H

#include "replication/certifier.h"

/* Of so many the names are known; then the rarest one's goes. */
#define MIP_REFUSED_TABLES	128

typedef struct MipRefused
{
	Oid			table;			/* whose change was in conflict, or InvalidOid */
	MipRefusal	refusal;
	uint64		count;			/* 0: nothing is here */
} MipRefused;

/* In shared memory: by refusal without a table, then the tables */
#define MIP_REFUSED_ENTRIES	(MIP_REFUSALS + MIP_REFUSED_TABLES)

/* That table here, in a transaction; InvalidOid if there is none. */
extern Oid	mip_refused_table(const MipwRelation *relation);

/* One more. The caller has the member's lock exclusively. */
extern void mip_refused_count(MipRefused *entries, Oid table, MipRefusal refusal);

/* As in mip.refusals */
extern const char *mip_refusal_name(MipRefusal refusal);

#endif							/* MIP_REPLICATION_VERDICTS_H */
