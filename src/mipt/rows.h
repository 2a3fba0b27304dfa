/*-------------------------------------------------------------------------
 *
 * rows.h
 *	  Entries of the MIPT as rows of the table mip.mipt.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_ROWS_H
#define MIP_ROWS_H

#include "nodes/pg_list.h"
#include "utils/array.h"

#include "mipt/entry.h"

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
	Anum_places,
	Natts_mipt = Anum_places
};

/* A family's rows, in progress or committed, without what is stored out of line. */
extern List *mipt_rows(const char *xid);

/*
 * The same, with less work where there are none because the XID sorts behind all others:
 * those with a time do, as long as nothing is newer. Nobody may have been waited for then who
 * has locked the table, to bring others: `note`, or 0, is what the key is to have still
 * (mipt_note) when he has been.
 */
extern List *mipt_rows_of_new(const char *xid, uint64 *note);

/* Texts, sites and links of a row. The caller holds the family lock. */
extern void mipt_load(MiptEntry *entry);

/* Where its changes were captured; likewise. */
extern void mipt_load_places(MiptEntry *entry);

/*
 * Either of them without the family lock. False if the instance has been rolled back,
 * and its values may be gone.
 */
extern bool mipt_load_if_there(MiptEntry *entry, void (*load) (MiptEntry *entry));

/* The site set of an entry. The caller holds the family lock. */
extern ArrayType *mipt_sites(const MiptEntry *entry);

/* Does the row of an entry have links, or places, loaded or not? */
extern bool mipt_has_links(const MiptEntry *entry);

/* Is there a row of an instance in progress? In any database, to anybody. */
extern bool mipt_is_pending(const char *xid, int64 xinst);

/*
 * Locks the table to insert into it, and its key, which is returned: to be unlocked behind
 * that, as it would be.
 */
extern Oid	mipt_lock_to_insert(void);

/*
 * What writes rows is for who holds the family lock exclusively, until the end of
 * its transaction. The first one writes the row of this backend's instance, which
 * is being ended.
 */
extern void mipt_insert_own(bytea *links, bytea *places);

/* Records that an instance was committed, by other means. */
extern void mipt_insert_committed(const char *xid, const MiptEntry *entry);

/* Records that an instance was aborted. */
extern void mipt_insert_aborted(const char *xid, const MiptEntry *entry);

/* Empties the links and places of a committed entry: they have been dealt with. */
extern void mipt_clear_links(const MiptEntry *entry);

/* Replaces an entry by one without texts, which is acknowledged. */
extern void mipt_strip(const char *xid, const MiptEntry *entry);

/* Deletes the rows of these entries; returns how many there were. */
extern int	mipt_delete(List *entries);

#endif							/* MIP_ROWS_H */
