/*-------------------------------------------------------------------------
 *
 * mipt.h
 *	  The MIPT: an ordinary heap table, one row for each prepared, committed
 *	  or (once recorded by the step that ended it) aborted instance.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_MIPT_H
#define MIP_MIPT_H

#include "access/htup.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/array.h"

#include "family/family.h"

/* In the order of the labels of the type mip.state */
typedef enum MipState
{
	MIP_ACTIVE,
	MIP_PREPARED,
	MIP_COMMITTED,
	MIP_ABORTED
} MipState;

/* Columns of mip.mipt */
enum
{
	Anum_xid = 1,
	Anum_xinst,
	Anum_request,
	Anum_result,
	Anum_sites,
	Anum_owner,
	Anum_since,
	Anum_aborted,
	Anum_links,
	Anum_acknowledged,
	Natts_mipt = Anum_acknowledged
};

typedef struct MiptEntry
{
	int64		xinst;
	MipState	state;
	text	   *request;		/* NULL if none, or not loaded; so are the
								 * others */
	text	   *result;
	ArrayType  *sites;			/* loaded, or an active instance's */
	Oid			owner;
	TimestampTz since;
	bytea	   *links;			/* overlay links, NULL if none */
	bool		acknowledged;	/* nobody will ask for the result again */
	TransactionId running;		/* whose row it is, if in progress */
	ItemPointerData tid;		/* of the row; invalid if there is none */
	HeapTuple	row;			/* as it is stored, or NULL */
} MiptEntry;

/*
 * Takes the family lock, unless the family is another role's, of which the
 * caller is not a member: ERRCODE_INSUFFICIENT_PRIVILEGE. Who has no business
 * with a family must not be able to keep others from it [owner-decides].
 */
extern void mipt_lock(const char *xid, LOCKMODE mode);

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

/* The site set of an entry. The caller holds the family lock. */
extern ArrayType *mipt_sites(const MiptEntry *entry);

/* Without the extension a schema `mip` is somebody else's, who may mean harm. */
extern bool mipt_exists(void);

/* Is there a row of an instance in progress? In any database, to anybody. */
extern bool mipt_is_pending(const char *xid, int64 xinst);

/*
 * An instance in doubt, read without the family lock: nobody has to wait for
 * who is deciding it. NULL if it is not in doubt, or not any more, or the caller
 * may not see it.
 */
extern MiptEntry *mipt_read_in_doubt(const char *xid, int64 xinst);
extern MiptEntry *mipt_find(List *entries, int64 xinst);

/* An entry of one without a row: active, doomed, or prepared and out of sight. */
extern MiptEntry *mipt_entry_of(const MipInstance *inst);

/* A copy, in the current memory, for mipt_insert_aborted: without links and row. */
extern MiptEntry *mipt_copy_loser(const MiptEntry *entry);

/*
 * Is this a row that a transaction in progress has written, but not as an
 * instance's own? Nothing may be concluded from it. mipt_read refuses.
 */
extern bool mipt_is_foreign(const MiptEntry *entry);
extern MiptEntry *mipt_committed(List *entries);
extern bool mipt_has_prepared(List *entries);

/* The entry of this backend's instance, as if it were in that state. */
extern MiptEntry *mipt_own_entry(MipState state);

/*
 * What writes rows is for who holds the family lock exclusively, until the end of
 * its transaction. The first one writes the row of this backend's instance, which
 * is being ended.
 */
extern void mipt_insert_own(bytea *links);

/* Records that an instance was aborted. */
extern void mipt_insert_aborted(const char *xid, const MiptEntry *entry);

/* Does the row of an entry have links, loaded or not? */
extern bool mipt_has_links(const MiptEntry *entry);

/* Empties the links of a committed entry: they have been dealt with. */
extern void mipt_clear_links(const MiptEntry *entry);

/* Replaces an entry by one without texts, which is acknowledged. */
extern void mipt_strip(const char *xid, const MiptEntry *entry);
extern int	mipt_delete(List *entries);

#endif							/* MIP_MIPT_H */
