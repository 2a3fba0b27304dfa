/*-------------------------------------------------------------------------
 *
 * handover.h
 *	  Writing a winner's overlay into the base versions' headers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_HANDOVER_H
#define MIP_HANDOVER_H

/*
 * Makes the links' transaction the updater of each base version, and the
 * deleter of its out-of-line values. Idempotent; WAL-logged. Caller: holds the
 * family lock exclusively, the winner is prepared (or is about to commit in one
 * phase with no prepared sibling), and its siblings are doomed.
 */
extern void mip_hand_over(const bytea *links);

/* Has the hand-over of these links begun? */
extern bool mip_hand_over_begun(const bytea *links);

#endif							/* MIP_HANDOVER_H */
