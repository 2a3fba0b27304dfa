/*-------------------------------------------------------------------------
 *
 * mipt.h
 *	  The MIPT of a family: one entry for each prepared, committed or (once
 *	  recorded by the step that ended it) aborted instance, which is a row of an
 *	  ordinary table, and one for each that is active.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_MIPT_H
#define MIP_MIPT_H

#include "nodes/pg_list.h"
#include "storage/lockdefs.h"

#include "mipt/entry.h"

/* What was seen of the rows before the lock was had */
typedef struct MiptLook
{
	bool		none;			/* there were none */
	uint64		writes;			/* mip_family_writes(), before that */
	uint64		note;			/* which page said so: see mipt_rows_of_new */
} MiptLook;

/*
 * Takes the family lock, unless the family is another role's, of which the
 * caller is not a member: ERRCODE_INSUFFICIENT_PRIVILEGE. Who has no business
 * with a family must not be able to keep others from it [owner-decides].
 */
extern void mipt_lock(const char *xid, LOCKMODE mode);

/* The same (ShareLock) for mip.begin, whose XID is a new one most often */
extern MiptLook mipt_lock_new(const char *xid);

/*
 * All entries of a family, ordered by XINST, active instances included, as far
 * as they are not stored out of line. Without the family lock (shared is enough)
 * they need not belong together, but what is found prepared has been, and what is
 * found committed is.
 */
extern List *mipt_peek(const char *xid);

/*
 * The same; the caller holds the family lock. Checks that he is a member of the
 * family's owner role: ERRCODE_INSUFFICIENT_PRIVILEGE if not; and that nobody else
 * is writing to the rows: ERRCODE_OBJECT_IN_USE.
 */
extern List *mipt_read_states(const char *xid);

/* The same with texts, sites and links. The caller holds the family lock. */
extern List *mipt_read(const char *xid);

/*
 * The same, without looking again at what nobody has written meanwhile. Where that rests on
 * the page alone its note is left in *look, else 0.
 */
extern List *mipt_read_again(const char *xid, MiptLook *look);

/*
 * An instance in doubt, read without the family lock: nobody has to wait for
 * who is deciding it. NULL if it is not in doubt, or not any more, or the caller
 * may not see it. `load`, or NULL, loads what is wanted of it.
 */
extern MiptEntry *mipt_read_in_doubt(const char *xid, int64 xinst,
									 void (*load) (MiptEntry *entry));

#endif							/* MIP_MIPT_H */
