/*-------------------------------------------------------------------------
 *
 * entry.h
 *	  Entries of the MIPT: whose, and in which state.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_ENTRY_H
#define MIP_ENTRY_H

#include "access/htup.h"
#include "nodes/pg_list.h"
#include "utils/array.h"
#include "utils/timestamp.h"

#include "family/family.h"

/* In the order of the labels of the type mip.state */
typedef enum MipState
{
	MIP_ACTIVE,
	MIP_PREPARED,
	MIP_COMMITTED,
	MIP_ABORTED
} MipState;

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
	bytea	   *places;			/* of captured changes, NULL if none, or not
								 * loaded */
	bool		acknowledged;	/* nobody will ask for the result again */
	TransactionId running;		/* whose row it is, if in progress */
	ItemPointerData tid;		/* of the row; invalid if there is none */
	HeapTuple	row;			/* as it is stored, or NULL */
} MiptEntry;

/* An entry of one without a row: active, doomed, or prepared and out of sight. */
extern MiptEntry *mipt_entry_of(const MipInstance *inst);

/* The entry of this backend's instance, as if it were in that state. */
extern MiptEntry *mipt_own_entry(MipState state);

/* A copy, in the current memory, for mipt_insert_aborted: without links and row. */
extern MiptEntry *mipt_copy_loser(const MiptEntry *entry);

/*
 * Is this a row that a transaction in progress has written, but not as an
 * instance's own? Nothing may be concluded from it. mipt_read refuses.
 */
extern bool mipt_is_foreign(const MiptEntry *entry);

/* Among a family's entries: NULL if there is none. */
extern MiptEntry *mipt_find(List *entries, int64 xinst);
extern MiptEntry *mipt_committed(List *entries);
extern bool mipt_has_prepared(List *entries);

#endif							/* MIP_ENTRY_H */
