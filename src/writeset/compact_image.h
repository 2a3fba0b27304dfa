/*-------------------------------------------------------------------------
 *
 * compact_image.h
 *	  Compaction: identities of rows, to be compared.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_COMPACT_IMAGE_H
#define MIP_WRITESET_COMPACT_IMAGE_H

#include "writeset/format.h"

/* Bytes as of a D; in other chains, of other relations or later ones, it is another one */
typedef struct MipwImage
{
	uint64		chains;
	uint32		hash;
	uint32		length;
	const char *bytes;
} MipwImage;

static inline bool
mip_image_equal(const MipwImage *a, const MipwImage *b)
{
	return a->chains == b->chains && a->length == b->length &&
		memcmp(a->bytes, b->bytes, a->length) == 0;
}

/* All of these are the caller's to free. */

extern MipwValue *mip_identity_values(const MipwChange *change);
extern MipwValue *mip_row_values(const MipwChange *change);
extern char *mip_exact_body(char op, const MipwRelation *relation, const MipwValue *identity,
							const MipwValue *row, uint32 *length);

extern MipwImage *mip_image_of(uint64 chains, const MipwRelation *relation,
							   const MipwValue *identity);

/* That by which a change finds its row */
extern MipwImage *mip_image_before(uint64 chains, const MipwChange *change);

/* That which the row has after a change: `before`, or NULL if it had none. */
extern MipwImage *mip_image_after(uint64 chains, const MipwRelation *relation,
								  const MipwValue *before, const MipwValue *row);
extern void mip_image_free(MipwImage *image);

#endif							/* MIP_WRITESET_COMPACT_IMAGE_H */
