/*-------------------------------------------------------------------------
 *
 * trust.h
 *	  Whose code is executed where rows are applied.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_TRUST_H
#define MIP_REPLICATION_TRUST_H

#include "utils/rel.h"

extern void mip_trust_init(void);

/* Errors out (0A000) if it is that of somebody who may stop a replica by it. */
extern void mip_check_trusted(Relation rel);

/* Is the function PostgreSQL's, or a superuser's? */
extern bool mip_is_trusted(Oid function);

#endif							/* MIP_REPLICATION_TRUST_H */
