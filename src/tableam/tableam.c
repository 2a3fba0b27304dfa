/*-------------------------------------------------------------------------
 *
 * tableam.c
 *	  The table access method "mip": heap's routine with some callbacks
 *	  wrapped. On disk a mip table is a heap table.
 *
 * Outside a MIP transaction every wrapper is one branch in front of heap's
 * callback.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_am_d.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "tableam/am.h"
#include "tableam/build.h"
#include "tableam/capture.h"
#include "tableam/free_keys.h"
#include "tableam/look.h"
#include "tableam/tableam.h"

PG_FUNCTION_INFO_V1(mip_tableam_handler);

/* TOAST tables are plain heap: siblings never touch each other's chunks. */
static Oid
mip_relation_toast_am(Relation rel)
{
	return HEAP_TABLE_AM_OID;
}

static const TableAmRoutine *
mip_table_am(void)
{
	static bool ready = false;

	if (!ready)
	{
		mip_routine = *mip_heap();
		mip_routine.relation_toast_am = mip_relation_toast_am;
		mip_tableam_build(&mip_routine);
		mip_tableam_read(&mip_routine);
		mip_tableam_write(&mip_routine);
		mip_tableam_free_keys(&mip_routine);
		mip_tableam_look(&mip_routine);
		mip_tableam_capture(&mip_routine);
		ready = true;
	}
	return &mip_routine;
}

Datum
mip_tableam_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(mip_table_am());
}
