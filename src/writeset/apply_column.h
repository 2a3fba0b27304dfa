/*-------------------------------------------------------------------------
 *
 * apply_column.h
 *	  Columns of a writeset as those of a table.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_COLUMN_H
#define MIP_APPLY_COLUMN_H

#include "access/attnum.h"
#include "catalog/pg_attribute.h"

#include "writeset/values.h"

typedef struct MipColumn
{
	AttrNumber	attno;			/* 0: generated, its values are not used */
	bool		fixed;			/* is read and written under fixed settings */
	MipwCodec	codec;
} MipColumn;

/* Where a column is here: `attr`, or NULL. In the current memory context */
extern void mip_column_init(MipColumn *column, Form_pg_attribute attr);

/*
 * Are the values the same, and not only equal? To be called under fixed settings if the
 * column needs them.
 */
extern bool mip_column_same(MipColumn *column, Datum a, Datum b);

/* 0 for types that may store the same value in more than one way */
extern uint32 mip_column_hash(const MipColumn *column, Datum value);

#endif							/* MIP_APPLY_COLUMN_H */
