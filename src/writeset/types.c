/*-------------------------------------------------------------------------
 *
 * types.c
 *	  What types are made of.
 *
 * A search ends with the first type that it is for, so those that have been seen are not,
 * or are being looked at. Rows may have each other as columns again and again: looking at
 * them each time would take a time that is exponential in their number.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "writeset/types.h"
#include "writeset/values.h"

HTAB *
mip_types_seen(void)
{
	HASHCTL		ctl = {
		.keysize = sizeof(Oid),
		.entrysize = sizeof(Oid),
		.hcxt = CurrentMemoryContext,
	};

	return hash_create("types seen for a writeset", 32, &ctl,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static bool
is_new(Oid type, HTAB *seen)
{
	bool		found;

	(void) hash_search(seen, &type, HASH_ENTER, &found);
	return !found;
}

bool
mip_any_column_type(TupleDesc desc, HTAB *seen, MipTypeVisitor visit)
{
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!att->attisdropped && mip_any_type(att->atttypid, seen, visit))
			return true;
	}
	return false;
}

static bool
any_type_of_row(Oid type, HTAB *seen, MipTypeVisitor visit)
{
	TupleDesc	desc = lookup_rowtype_tupdesc_copy(type, -1);
	bool		result = mip_any_column_type(desc, seen, visit);

	FreeTupleDesc(desc);
	return result;
}

bool
mip_any_type(Oid type, HTAB *seen, MipTypeVisitor visit)
{
	for (; OidIsValid(type) && is_new(type, seen); type = mip_inner_type(type))
	{
		CHECK_FOR_INTERRUPTS();
		if (visit(type, seen))
			return true;
		if (get_typtype(type) == TYPTYPE_COMPOSITE && any_type_of_row(type, seen, visit))
			return true;
	}
	return false;
}

bool
mip_names_objects(Oid type)
{
	switch (type)
	{
		case REGCLASSOID:
		case REGCOLLATIONOID:
		case REGCONFIGOID:
		case REGDICTIONARYOID:
		case REGNAMESPACEOID:
		case REGOPEROID:
		case REGOPERATOROID:
		case REGPROCOID:
		case REGPROCEDUREOID:
		case REGROLEOID:
		case REGTYPEOID:
			return true;
		default:
			return false;
	}
}

bool
mip_visit_names_of_objects(Oid type, HTAB *seen)
{
	return type == ACLITEMOID || mip_names_objects(type) || stack_is_too_deep();
}
