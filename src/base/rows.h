/*-------------------------------------------------------------------------
 *
 * rows.h
 *	  Each row of a system catalog.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_ROWS_H
#define MIP_ROWS_H

#include "access/htup.h"
#include "utils/relcache.h"

typedef void (*MipRowVisitor) (Relation catalog, HeapTuple row, void *arg);

/* Calls `visit` for each that is there now. Without an index: of catalogs that are small, or rarely. */
extern void mip_each_row(Oid catalog, MipRowVisitor visit, void *arg);

/* Has this transaction, or a subtransaction of it, written it? */
extern bool mip_row_is_new(HeapTuple row);

#endif							/* MIP_ROWS_H */
