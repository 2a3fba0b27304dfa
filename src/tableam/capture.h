/*-------------------------------------------------------------------------
 *
 * capture.h
 *	  Writesets: noting where a transaction changes rows of mip tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_CAPTURE_H
#define MIP_CAPTURE_H

#include "access/tableam.h"

#include "tableam/places.h"

extern void mip_capture_init(void);

/* Installs its wrappers over all others: what they see is done. */
extern void mip_tableam_capture(TableAmRoutine *routine);

/* `anyway` is asked at a transaction's first change: is it captured, whatever the setting? */
extern void mip_capture_if(bool (*anyway) (void));

/* Are the changes of this transaction captured, those that are still to come included? */
extern bool mip_captures(void);

/*
 * Until it is called again with what it has returned, nothing is captured: what
 * applies a writeset makes no changes of its own.
 */
extern bool mip_capture_pause(bool pause);

/*
 * Until it is called again with what it has returned, also behind errors, TRUNCATE of these
 * tables is not captured; what triggers of it do is.
 */
extern const List *mip_capture_pause_truncate(const List *relids);

/*
 * The table is about to become a mip table. If this transaction has changed it, not all of
 * that is captured, and no writeset can have it (MP022).
 */
extern void mip_capture_opt_in(Relation rel);

/* The table's unique indexes and exclusion constraints, by OID; in the current memory context. */
extern MipPlaceKeys *mip_capture_keys(Relation rel);

extern void mip_capture_at_start_subxact(void);
extern void mip_capture_at_eosubxact(bool commit, SubTransactionId mine,
									 SubTransactionId parent);
extern void mip_capture_at_eoxact(bool commit);

#endif							/* MIP_CAPTURE_H */
