/*-------------------------------------------------------------------------
 *
 * extract.h
 *	  The writeset of a transaction, from the places of its changes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_EXTRACT_H
#define MIP_WRITESET_EXTRACT_H

#include "tableam/places.h"

/*
 * Changes numbered above `after`, as many of them as have room in max_bytes, if that is
 * not 0. `own`: they are of this transaction, which has the tables locked. MP022 if one
 * cannot be read any more, or its table has other keys, or not all of that is captured;
 * 55P03 if somebody else's table cannot be locked at once.
 */
extern struct varlena *mip_extract(MipPlaces *places, bool own, int64 after, int64 max_bytes);

/*
 * May an extraction go on behind change number `after`? MP023 if that has been rolled back;
 * 22023 if there has been none.
 */
extern void mip_check_after(MipPlaces *places, int64 after);

/*
 * Of this transaction, so far. 55000 if it is not captured, or if deferred triggers
 * may still add to it; MP023 if `after` is a change that has been rolled back, or one
 * behind changes that a TRUNCATE had taken which has been.
 */
extern struct varlena *mip_extract_own(int64 after, int64 max_bytes);

/* The writeset of a transaction that has changed nothing */
extern struct varlena *mip_extract_nothing(void);

#endif							/* MIP_WRITESET_EXTRACT_H */
