/*-------------------------------------------------------------------------
 *
 * trigger.h
 *	  The triggers of the schema mip's tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_TRIGGER_H
#define MIP_TRIGGER_H

#include "nodes/parsenodes.h"

/*
 * What ALTER TABLE has just done to all triggers of a table is undone for those that
 * pg_mip has there: DISABLE TRIGGER ALL and ENABLE TRIGGER ALL, as pg_restore
 * --disable-triggers has them. Who names such a trigger has his way, until somebody does
 * that to all.
 */
extern void mip_keep_triggers(const AlterTableStmt *stmt);

#endif							/* MIP_TRIGGER_H */
