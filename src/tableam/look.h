/*-------------------------------------------------------------------------
 *
 * look.h
 *	  Somebody looks at each row before it is written.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_LOOK_H
#define MIP_LOOK_H

#include "access/tableam.h"

/* Installs its wrappers over those that there are. */
extern void mip_tableam_look(TableAmRoutine *routine);

/* `look` may error out: nothing of the row is there then, nor in any index. */
extern void mip_rows_looked_at_by(void (*look) (Relation rel, TupleTableSlot *row));

#endif							/* MIP_LOOK_H */
