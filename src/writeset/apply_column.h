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
	int32		typmod;			/* of the column, or of its domain */
	FmgrInfo	fit;			/* makes a value one of this typmod, if any */
	int			fit_nargs;		/* 0: none does */
	bool		fits_input;		/* that is the input function itself */
	Oid			domain;			/* 0: is of none */
	void	   *domain_info;	/* domain_check() */
	MemoryContext memory;		/* its own */
} MipColumn;

/* Where a column is here: `attr`, or NULL. In the current memory context */
extern void mip_column_init(MipColumn *column, Form_pg_attribute attr);

/*
 * The value as the column takes it: of its length and precision, or errors out. In the
 * current memory context; to be called under fixed settings if the column needs them.
 */
extern Datum mip_column_value(MipColumn *column, const MipwSet *set, const MipwValue *value);

/* Errors out if the column's domain does not take it. Calls functions of others. */
extern void mip_column_check_domain(MipColumn *column, Datum value, bool isnull);

/*
 * Are the values the same, and not only equal? To be called under fixed settings if the
 * column needs them, in a memory context that is reset often.
 */
extern bool mip_column_same(MipColumn *column, Datum a, Datum b);

/* Of the same values the same; to be called likewise */
extern uint32 mip_column_hash(MipColumn *column, Datum value);

#endif							/* MIP_APPLY_COLUMN_H */
