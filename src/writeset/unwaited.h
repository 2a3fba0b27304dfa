/*-------------------------------------------------------------------------
 *
 * unwaited.h
 *	  Locks of who reads what is prepared: those that nobody has to be waited for.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_UNWAITED_H
#define MIP_WRITESET_UNWAITED_H

#include "utils/rel.h"

/* AccessShareLock, until the transaction ends; 55P03 if somebody would have to be waited for */
extern void mip_lock_or_refuse(Oid relid);

/* So with all that is opened when the table's rows are read. */
extern void mip_lock_behind_or_refuse(Relation rel);

#endif							/* MIP_WRITESET_UNWAITED_H */
