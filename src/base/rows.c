/*-------------------------------------------------------------------------
 *
 * rows.c
 *	  Each row of a system catalog.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"

#include "base/rows.h"

void
mip_each_row(Oid catalog, MipRowVisitor visit, void *arg)
{
	Relation	rel = table_open(catalog, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	row;

	while (HeapTupleIsValid(row = systable_getnext(scan)))
		visit(rel, row, arg);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

bool
mip_row_is_new(HeapTuple row)
{
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(row->t_data));
}
