/*-------------------------------------------------------------------------
 *
 * sites.h
 *	  Site sets: text arrays, sorted and without duplicates.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SITES_H
#define MIP_SITES_H

#include "utils/array.h"
#include "utils/dsa.h"

extern void mip_sites_init(void);

/*
 * Sorts, drops duplicates; refuses NULLs, empty names and, where
 * mip.site_name is set, a non-empty set without it.
 */
extern ArrayType *mip_sites_canonical(ArrayType *sites);
extern int	mip_sites_count(ArrayType *sites);
extern uint64 mip_sites_hash(ArrayType *sites);
extern bool mip_sites_equal(ArrayType *a, ArrayType *b);

/*
 * What active instances have declared, for others to see. A backend declares one
 * set at a time, and withdraws it when nobody can find it any more.
 */
#define MIP_DECLARED_SIZE	((Size) 256 * 1024) /* it grows beyond that */

extern void mip_declared_shmem_startup(int tranche);
extern dsa_pointer mip_declare_sites(const ArrayType *sites);
extern void mip_withdraw_sites(void);

/*
 * A copy, or NULL. The caller has found it in the registry, and still holds the
 * lock: who withdraws his set has left the registry before, or been prepared.
 */
extern ArrayType *mip_declared_sites(dsa_pointer declared);

#endif							/* MIP_SITES_H */
