/*-------------------------------------------------------------------------
 *
 * sites.h
 *	  Site sets: text arrays, sorted and without duplicates.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SITES_H
#define MIP_SITES_H

#include "pg_mip.h"
#include "utils/array.h"

/*
 * Sorts, drops duplicates; refuses NULLs, empty names and, where
 * mip.site_name is set, a non-empty set without it.
 */
extern ArrayType *mip_sites_canonical(ArrayType *sites);
extern int	mip_sites_count(ArrayType *sites);
extern uint64 mip_sites_hash(ArrayType *sites);
extern bool mip_sites_equal(ArrayType *a, ArrayType *b);

#endif							/* MIP_SITES_H */
