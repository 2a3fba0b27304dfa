/*-------------------------------------------------------------------------
 *
 * am.c
 *	  Which routine is ours.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "tableam/am.h"

TableAmRoutine mip_routine;
