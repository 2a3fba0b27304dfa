/*-------------------------------------------------------------------------
 *
 * seen.c
 *	  Types that a search through what types are made of has come to.
 *
 * Composite types may have each other as columns again and again, so that without
 * it a search would take a time that is exponential in their number.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "writeset/seen.h"

HTAB *
mip_seen_create(void)
{
	HASHCTL		ctl = {
		.keysize = sizeof(Oid),
		.entrysize = sizeof(Oid),
		.hcxt = CurrentMemoryContext,
	};

	return hash_create("types seen for a writeset", 32, &ctl,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

bool
mip_seen_first(HTAB *seen, Oid type)
{
	bool		found;

	(void) hash_search(seen, &type, HASH_ENTER, &found);
	return !found;
}
