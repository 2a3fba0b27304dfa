/*-------------------------------------------------------------------------
 *
 * siphash.h
 *	  SipHash-2-4, a keyed hash: without the key nobody can tell its results from
 *	  random numbers, whatever others he has been shown.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SIPHASH_H
#define MIP_SIPHASH_H

#define MIP_SIPHASH_KEY 16

extern uint64 mip_siphash(const uint8 *key, const uint8 *input, size_t length);

#endif							/* MIP_SIPHASH_H */
