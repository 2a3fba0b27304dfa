/*-------------------------------------------------------------------------
 *
 * rights.h
 *	  Whose rows may be read into a writeset, and by whom.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_RIGHTS_H
#define MIP_WRITESET_RIGHTS_H

#include "utils/rel.h"

/*
 * May the current user have the values of this table's rows? 42501 if not. Not if row
 * security applies to him: what is read is not only what he would see. `changes`: those of
 * a transaction, which may have come through a table from which it is being detached.
 */
extern void mip_check_may_read(Relation rel, bool changes);

/* Until it is called again nobody is asked for rights: the server itself reads. */
extern void mip_rights_waive(bool waive);

#endif							/* MIP_WRITESET_RIGHTS_H */
