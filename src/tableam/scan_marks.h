/*-------------------------------------------------------------------------
 *
 * scan_marks.h
 *	  Marks that a plan's scans do not leave themselves at SERIALIZABLE.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SCAN_MARKS_H
#define MIP_SCAN_MARKS_H

#include "executor/execdesc.h"

/*
 * To be called when a plan has been started. At SERIALIZABLE a table of which a range
 * of TIDs is scanned, or any TID if it is no mip table, counts as read, and so does a
 * GiST index that is scanned.
 */
extern void mip_mark_scans(QueryDesc *desc);

#endif							/* MIP_SCAN_MARKS_H */
