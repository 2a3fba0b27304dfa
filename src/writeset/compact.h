/*-------------------------------------------------------------------------
 *
 * compact.h
 *	  Several writesets as one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_COMPACT_H
#define MIP_WRITESET_COMPACT_H

#include "writeset/format.h"

/*
 * What applying these n, in their order, comes to, with no change that another one
 * undoes or goes on with. Its keys are those of all of them. They have been opened raw.
 */
extern struct varlena *mip_writeset_compact(const MipwSet **sets, int n);

#endif							/* MIP_WRITESET_COMPACT_H */
