/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  Flushing all WAL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_control.h"

#include "base/flush.h"

/*
 * By a record of our own: the place where the next one would go may be behind the
 * header of a page that is not there yet.
 */
XLogRecPtr
mip_flush_wal(void)
{
	char		nothing = 0;
	XLogRecPtr	lsn;

	XLogBeginInsert();
	XLogRegisterData(&nothing, sizeof(nothing));
	lsn = XLogInsert(RM_XLOG_ID, XLOG_NOOP);
	XLogFlush(lsn);
	return lsn;
}
