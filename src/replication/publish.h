/*-------------------------------------------------------------------------
 *
 * publish.h
 *	  COMMIT at a replica: the transaction is published, and waits for its verdict.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_PUBLISH_H
#define MIP_REPLICATION_PUBLISH_H

#include "utils/array.h"

extern void mip_publish_init(void);

/* The position of this session's last commit that was replicated, or 0 */
extern uint64 mip_last_position(void);

/*
 * A command that defines something: it is tried out (mip_definition_make), and published. Waits
 * until it is executed here, and returns its position; 40001 if something has been changed
 * meanwhile, again and again; 08007 if it is not known what becomes of it. Nothing has been done in
 * this transaction, nor locked.
 */
extern uint64 mip_publish_definition(const char *command);

/*
 * Where mip_needs_fence: waits until no instance of this family that has begun by now, at any
 * replica, can be committed any more, and what was committed is here. Who is interrupted may try
 * again. The other one also refuses this instance at all replicas, unless one of the
 * family is committed, or it is another role's there; sites may be NULL. The caller has looked who may.
 */
extern bool mip_needs_fence(void);
extern void mip_publish_fence(const char *xid);
extern void mip_publish_refusal(const char *xid, int64 xinst, Oid owner, ArrayType *sites);

/*
 * From a refusal to the end of its transaction errors are 08007: it has happened, whatever becomes of what the caller
 * does here. Not if it has been kept out, as the caller has found.
 */
extern void mip_refusal_kept_out(void);

#endif							/* MIP_REPLICATION_PUBLISH_H */
