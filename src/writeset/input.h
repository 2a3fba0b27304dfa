/*-------------------------------------------------------------------------
 *
 * input.h
 *	  Writesets that come in by SQL.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_INPUT_H
#define MIP_WRITESET_INPUT_H

#include "base/compat.h"
#include "writeset/format.h"

/*
 * The writeset that these bytes are; what is not one is refused with 22P03. It
 * points into `bytes`, which are not toasted. Names are in this database's encoding;
 * of the raw one as they came.
 */
extern const MipwSet *mip_writeset_open(struct varlena *bytes);
extern const MipwSet *mip_writeset_open_raw(struct varlena *bytes);

/* A text of it, in this database's encoding. */
extern char *mip_writeset_text(const MipwSet *set, const void *data, size_t length);

/* Refuses it with 22P03. */
pg_noreturn extern void mip_writeset_invalid(const char *detail);

#endif							/* MIP_WRITESET_INPUT_H */
