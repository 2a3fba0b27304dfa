/*-------------------------------------------------------------------------
 *
 * describe.h
 *	  A table as writesets describe it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_DESCRIBE_H
#define MIP_WRITESET_DESCRIBE_H

#include "utils/rel.h"

#include "writeset/format.h"
#include "writeset/values.h"

typedef struct MipwTable
{
	MipwRelation relation;		/* its fingerprint is the writer's to set */
	AttrNumber *attnums;		/* of relation.columns */
	MipwCodec  *codecs;			/* likewise */
	Oid			index;			/* that the identity is the key of, if it is
								 * one */
	AttrNumber	identity_end;	/* no attribute behind this one is of the
								 * identity */
	size_t		spare;			/* mipw_body_spare() */
	bool	   *changed;		/* which attributes the last update that
								 * mip_change_body() was given has changed;
								 * true for those that are no columns here */
} MipwTable;

/*
 * In the current memory context. Columns are those that are stored. The identity is
 * the key of the index chosen as replica identity, else the primary key, if it is not
 * deferrable, else the whole row.
 */
extern MipwTable *mip_describe(Relation rel);

/*
 * Appends the body of a change of a row: `old` for U and D, `new` for I and U, else NULL.
 * Memory for texts is of the current context. To be called between mip_values_begin() and
 * mip_values_end().
 */
extern void mip_change_body(StringInfo buffer, MipwTable *table, TupleTableSlot *old,
							TupleTableSlot *new);

#endif							/* MIP_WRITESET_DESCRIBE_H */
