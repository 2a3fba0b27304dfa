/*-------------------------------------------------------------------------
 *
 * everywhere.h
 *	  Which expressions come to the same at all replicas.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_EVERYWHERE_H
#define MIP_REPLICATION_EVERYWHERE_H

#include "nodes/nodes.h"

/* An expression, of the same rows; as it is stored, or has been analyzed, not planned. */
extern bool mip_same_everywhere(Node *expression);

/* The checks of domains that a value of this type is of; those that a NULL has to pass */
extern bool mip_type_same_everywhere(Oid type);
extern bool mip_null_same_everywhere(Oid type);

#endif							/* MIP_REPLICATION_EVERYWHERE_H */
