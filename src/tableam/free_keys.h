/*-------------------------------------------------------------------------
 *
 * free_keys.h
 *	  An insertion tells that its keys were free.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_FREE_KEYS_H
#define MIP_FREE_KEYS_H

#include "access/tableam.h"

/* Installs its wrappers over those that there are. */
extern void mip_tableam_free_keys(TableAmRoutine *routine);

/*
 * Has it asked whether each conflict of this SERIALIZABLE transaction counts. Nobody is
 * asked outside of savepoints.
 */
extern void mip_free_keys_count_if(bool (*everywhere) (void));

#endif							/* MIP_FREE_KEYS_H */
