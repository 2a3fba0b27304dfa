/*-------------------------------------------------------------------------
 *
 * refusal.h
 *	  Why an instance cannot be one of this family. The registry tells it of the
 *	  living (mip_register), the MIPT of the others.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REFUSAL_H
#define MIP_REFUSAL_H

#include "base/compat.h"

pg_noreturn extern void mip_raise_stranger(const char *xid);
pg_noreturn extern void mip_raise_duplicate(const char *xid, int64 xinst);
pg_noreturn extern void mip_raise_other_sites(const char *xid);

#endif							/* MIP_REFUSAL_H */
