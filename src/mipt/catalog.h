/*-------------------------------------------------------------------------
 *
 * catalog.h
 *	  Where the relations of the schema mip are.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_CATALOG_H
#define MIP_CATALOG_H

#include "storage/buf.h"
#include "utils/relcache.h"

typedef enum MiptRelation
{
	MIPT_TABLE,
	MIPT_PKEY,
	MIPT_TIMELESS,
	MIPT_LINKED,
	MIPT_HORIZON,
	MIP_APPLIED,
	MIP_APPLIED_PKEY,
	MIP_LOG,
	MIP_MEMBERS,
	MIPT_RELATIONS
} MiptRelation;

/* A relation of the schema mip; an error if it is not there. */
extern Oid	mipt_relid(MiptRelation which);

/*
 * The page of a relation that was noted last in this session, pinned, without opening the
 * relation; invalid if it may not be there any more. Nobody is waited for who has locked the
 * relation, so what he has not committed yet, as other rows in another file, is not seen.
 * Whoever needs to know looks later, with a lock, whether the relation still has the same note.
 */
extern Buffer mipt_noted_page(MiptRelation which);

/* What tells one noted page, and the file that it is in, from another one; 0 if there is none */
extern uint64 mipt_note(MiptRelation which);

/* Notes a page of its main fork, which the caller has pinned. */
extern void mipt_note_page(MiptRelation which, Relation rel, Buffer buffer);

/* Without the extension a schema `mip` is somebody else's, who may mean harm. */
extern bool mipt_exists(void);

#endif							/* MIP_CATALOG_H */
