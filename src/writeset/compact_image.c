/*-------------------------------------------------------------------------
 *
 * compact_image.c
 *	  Compaction: identities of rows, to be compared.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "writeset/compact_image.h"

static MipwValue *
values_alloc(int n)
{
	return palloc0(n * sizeof(MipwValue) + 1);
}

MipwValue *
mip_identity_values(const MipwChange *change)
{
	MipwValue  *values = values_alloc(change->relation->nidentity);

	mipw_identity(change, values);
	return values;
}

MipwValue *
mip_row_values(const MipwChange *change)
{
	MipwValue  *values = values_alloc(change->relation->ncolumns);

	mipw_row(change, values);
	return values;
}

/* Of made bodies and images there are as many as changes: no larger than need be. */
char *
mip_exact_body(char op, const MipwRelation *relation, const MipwValue *identity,
			   const MipwValue *row, uint32 *length)
{
	StringInfoData body;
	char	   *bytes;

	initStringInfo(&body);
	mipw_body(&body, op, relation, identity, row);
	bytes = palloc(body.len + 1);
	memcpy(bytes, body.data, body.len);
	*length = body.len;
	pfree(body.data);
	return bytes;
}

MipwImage *
mip_image_of(uint64 chains, const MipwRelation *relation, const MipwValue *identity)
{
	MipwImage  *image = palloc(sizeof(MipwImage));

	image->chains = chains;
	image->bytes = mip_exact_body('D', relation, identity, NULL, &image->length);
	image->hash = hash_combine(hash_bytes((const unsigned char *) image->bytes, image->length),
							   hash_combine((uint32) (chains >> 32), (uint32) chains));
	return image;
}

MipwImage *
mip_image_before(uint64 chains, const MipwChange *change)
{
	MipwValue  *identity = mip_identity_values(change);
	MipwImage  *image = mip_image_of(chains, change->relation, identity);

	pfree(identity);
	return image;
}

void
mip_image_free(MipwImage *image)
{
	pfree((void *) image->bytes);
	pfree(image);
}

MipwImage *
mip_image_after(uint64 chains, const MipwRelation *relation, const MipwValue *before,
				const MipwValue *row)
{
	MipwValue  *after = values_alloc(relation->nidentity);
	MipwImage  *image;

	for (int i = 0; i < relation->nidentity; i++)
	{
		const MipwValue *value = &row[relation->identity[i]];

		after[i] = value->there ? *value : before[i];
	}
	image = mip_image_of(chains, relation, after);
	pfree(after);
	return image;
}
