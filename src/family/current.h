/*-------------------------------------------------------------------------
 *
 * current.h
 *	  The instance that this backend is executing.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_CURRENT_H
#define MIP_CURRENT_H

#include "utils/array.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/xid.h"
#include "family/family.h"

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
	text	   *key;			/* to be shown by who ends it, or NULL;
								 * likewise */
	MipAge		age;			/* of the request, at mip.begin */
	CommandId	first_command;	/* still the current one: nothing written */
	MipEnding	ending;
	text	   *request;		/* valid while ending; may be NULL */
	text	   *result;
	uint64		seen;			/* family->transitions of the MIPT last read */
	uint64		notes;			/* likewise, at mip.begin */
	uint64		key_note;		/* of the key's page that said that there are
								 * no rows; 0: they have been looked for */
	bool		everywhere;		/* to be serializable with those of all sites */
	bool		alone;			/* there was nobody else in that; or, once its
								 * row is entered, there still is not */
	List	   *losers;			/* active ones that a commit in one phase
								 * aborts */
} MipMine;

extern MipMine mip_mine;

static inline bool
mip_in_transaction(void)
{
	return mip_mine.inst != NULL;
}

/*
 * May siblings of my instance be alive? One read of shared memory, without a
 * lock: family.h says what it is worth.
 */
static inline bool
mip_have_siblings(void)
{
	Assert(mip_in_transaction());
	return mip_mine.family->ninstances > 1;
}

/*
 * Errors out with MP005 if this instance must not go on. Cheap; call it often,
 * and after a page has been read before what was there is used
 * [doomed-before-header].
 */
pg_noreturn extern void mip_doomed_error(void);
static inline void
mip_check_doomed(void)
{
	Assert(mip_in_transaction());
	if (unlikely(mip_mine.inst->doomed))
		mip_doomed_error();
}

/*
 * About a (sub)transaction that was in progress when the current transaction's
 * snapshots were taken, or has begun since: is it a living sibling of my instance?
 * Is it an instance, of any family? One that may have an overlay? What was prepared
 * before the server started counts as such as long as that is not known. They take
 * the registry lock, also below a buffer's [lock-order].
 */
extern bool mip_xid_is_sibling(TransactionId xid);
extern bool mip_xid_is_instance(TransactionId xid);
extern bool mip_xid_may_overlay(TransactionId xid);

#endif							/* MIP_CURRENT_H */
