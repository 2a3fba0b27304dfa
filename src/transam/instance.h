/*-------------------------------------------------------------------------
 *
 * instance.h
 *	  The MIP transaction of this backend: begin, prepare, commit in one phase.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_INSTANCE_H
#define MIP_INSTANCE_H

#include "nodes/pg_list.h"
#include "utils/array.h"

/*
 * Has this transaction block begun an instance? That is so also once it has
 * failed, until the client has ended the block.
 */
extern bool mip_in_block(void);

/* Called when an instance over these sites is about to look for its family. It may refuse that. */
extern void mip_begin_also(void (*function) (ArrayType *sites));

/* Returns the MIPT (list of MiptEntry), this instance in it. */
extern List *mip_instance_begin(const char *xid, int64 xinst, ArrayType *sites, const text *key,
								const text *serializable);

/*
 * Both return the MIPT as it will be once ended, and error out (MP006) where `key` is
 * not what mip_instance_begin was given.
 */
extern List *mip_instance_prepare(text *request, text *result, const text *key);
extern List *mip_instance_commit_one_phase(text *request, text *result, const text *key);

#endif							/* MIP_INSTANCE_H */
