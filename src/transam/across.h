/*-------------------------------------------------------------------------
 *
 * across.h
 *	  Serializability across sites: mip.serializable.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_ACROSS_H
#define MIP_ACROSS_H

#include "utils/array.h"

extern void mip_across_init(void);
extern void mip_across_shmem_request(void);
extern void mip_across_shmem_startup(void);

/*
 * For mip.begin: is the instance, of these sites, to be serializable everywhere?
 * `promised` is what its coordinator says of all of them, or NULL. An error (MP006)
 * where this site is another one.
 */
extern bool mip_across_begin(ArrayType *sites, const text *promised);

/*
 * Before a statement reads, and better as soon as there is a snapshot: READ ONLY is no
 * reason not to be followed. An error (40001) if that comes too late.
 */
extern void mip_across_follow(void);
extern void mip_across_at_eoxact(void);

/*
 * Behind the beginning of a transaction, or what changes its mode: an error
 * (0A000) if it is to wait for a snapshot that is safe at this site alone.
 */
extern void mip_across_refuse_deferrable(void);

/* PREPARE TRANSACTION of who is no instance: likewise. */
extern void mip_across_before_prepare(void);

/* Behind SET TRANSACTION SNAPSHOT: an error (55000) if somebody has committed since. */
extern void mip_across_check_imported(void);

/*
 * The transaction reads and writes no more, and is about to be committed or
 * prepared: an error (40001) if it would not be serializable. If not, it counts as
 * prepared. Outside of an instance, and in one with its family lock held.
 */
extern void mip_across_validate(void);

#endif							/* MIP_ACROSS_H */
