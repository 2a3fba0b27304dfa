/*-------------------------------------------------------------------------
 *
 * instance.h
 *	  The MIP transaction of this backend: begin, and what happens to it at
 *	  prepare, commit and abort.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_INSTANCE_H
#define MIP_INSTANCE_H

#include "family.h"
#include "horizon.h"
#include "utils/array.h"

/* How the current transaction is about to end. */
typedef enum MipEnding
{
	MIP_RUNNING,
	MIP_PREPARING,				/* mip.prepare was called */
	MIP_ONE_PHASE				/* mip.commit_one_phase was called */
} MipEnding;

typedef struct MipMine
{
	MipInstance *inst;			/* NULL outside a MIP transaction */
	MipFamily  *family;
	char		xid[MIP_XID_MAX + 4];
	int64		xinst;
	ArrayType  *sites;			/* canonical; TopTransactionContext */
	MipAge		age;			/* of the request, at mip.begin */
	CommandId	first_command;	/* still the current one: nothing written */
	MipEnding	ending;
	text	   *request;		/* valid while ending; may be NULL */
	text	   *result;
	uint64		seen;			/* family->transitions of the MIPT last read */
	uint64		notes;			/* likewise, at mip.begin */
	bool		alone;			/* there was nobody else in that */
	List	   *losers;			/* active ones that a commit in one phase aborts */
} MipMine;

extern MipMine mip_mine;

static inline bool
mip_in_transaction(void)
{
	return mip_mine.inst != NULL;
}

/*
 * Has this transaction block begun an instance? That is so also once it has
 * failed, until the client has ended the block.
 */
extern bool mip_in_block(void);

/* May siblings of my instance be alive? One read of shared memory. */
static inline bool
mip_have_siblings(void)
{
	return mip_mine.family->ninstances > 1;
}

extern void mip_instance_init(void);

/* Errors out with MP005 if this instance must not go on. Cheap; call it often. */
pg_noreturn extern void mip_doomed_error(void);
static inline void
mip_check_doomed(void)
{
	if (unlikely(mip_mine.inst->doomed))
		mip_doomed_error();
}

extern void mip_instance_begin(const char *xid, int64 xinst, ArrayType *sites);

/* Both return the MIPT (list of MiptEntry) as it will be once ended. */
extern List *mip_instance_prepare(text *request, text *result);
extern List *mip_instance_commit_one_phase(text *request, text *result);

#endif							/* MIP_INSTANCE_H */
