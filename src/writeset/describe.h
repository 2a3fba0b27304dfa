/*-------------------------------------------------------------------------
 *
 * describe.h
 *	  A table as writesets describe it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_DESCRIBE_H
#define MIP_WRITESET_DESCRIBE_H

#include "executor/tuptable.h"
#include "utils/rel.h"

#include "writeset/format.h"
#include "writeset/values.h"

/* How an attribute's values are stored */
typedef struct MipwStored
{
	enum
	{
		MIPW_STORED_4,			/* by value, so many bytes */
		MIPW_STORED_8,
		MIPW_STORED_SHORT,		/* likewise, one or two */
		MIPW_STORED_FIXED,		/* by reference */
		MIPW_STORED_VARLENA,
		MIPW_STORED_OTHERWISE
	}			kind:8;
	uint8		align;			/* to so many bytes */
	int16		len;
} MipwStored;

/* How a column is written */
typedef struct MipwField
{
	int16		att;			/* which attribute, from 0 on */
	int16		width;			/* of one that is so many bytes of its datum;
								 * else 0 */
} MipwField;

typedef struct MipwTable
{
	MipwRelation relation;		/* its fingerprint is the writer's to set */
	AttrNumber *attnums;		/* of relation.columns */
	MipwCodec  *codecs;			/* likewise */
	MipwField  *fields;			/* likewise */
	MipwStored *stored;			/* of all attributes */
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
 * Write the body of a change of a row. Memory for texts is of the current context. To be
 * called between mip_values_begin() and mip_values_end().
 */
extern void mip_insert_body(MipwBody *body, MipwTable *table, TupleTableSlot *new);
extern void mip_update_body(MipwBody *body, MipwTable *table, TupleTableSlot *old,
							TupleTableSlot *new);
extern void mip_delete_body(MipwBody *body, MipwTable *table, TupleTableSlot *old);

/* `old` for U and D, `new` for I and U, else NULL */
static inline void
mip_change_body(MipwBody *body, MipwTable *table, TupleTableSlot *old, TupleTableSlot *new)
{
	if (old == NULL)
		mip_insert_body(body, table, new);
	else if (new == NULL)
		mip_delete_body(body, table, old);
	else
		mip_update_body(body, table, old, new);
}

#endif							/* MIP_WRITESET_DESCRIBE_H */
