/*-------------------------------------------------------------------------
 *
 * handover.h
 *	  Writing a winner's overlay into the base versions' headers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_HANDOVER_H
#define MIP_HANDOVER_H

#include "overlay.h"

/*
 * Makes the links' transaction the updater of each base version. Idempotent;
 * WAL-logged. Caller: holds the family lock exclusively, the winner is
 * prepared (or is about to commit in one phase with no prepared sibling), and
 * its siblings are doomed.
 */
extern void mip_hand_over(const bytea *links);

/* Has the hand-over of these links begun? */
extern bool mip_hand_over_begun(const bytea *links);

/* After the winner has committed: removes the replaced versions' TOAST values. */
extern void mip_remove_replaced_toast(const bytea *links);

#endif							/* MIP_HANDOVER_H */
