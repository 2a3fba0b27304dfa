/*-------------------------------------------------------------------------
 *
 * types.h
 *	  What types are made of.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_TYPES_H
#define MIP_WRITESET_TYPES_H

#include "access/tupdesc.h"
#include "utils/hsearch.h"

/* Types that a search has come to; in the current memory context, hash_destroy() frees them. */
extern HTAB *mip_types_seen(void);

/*
 * Says whether this type is what is searched for. It is asked of each once, before what
 * the type is made of, and has to see that the stack is not too deep.
 */
typedef bool (*MipTypeVisitor) (Oid type, HTAB *seen);

/*
 * Is one of them, that has not been seen yet: the type, or what it is made of, as domains,
 * arrays, ranges and rows are; or one of the columns, or what that is made of?
 */
extern bool mip_any_type(Oid type, HTAB *seen, MipTypeVisitor visit);
extern bool mip_any_column_type(TupleDesc desc, HTAB *seen, MipTypeVisitor visit);

/* regclass and the like: an object's OID, shown as its name */
extern bool mip_names_objects(Oid type);

/* For searches: one of those, or one that has such names within its values. */
extern bool mip_visit_names_of_objects(Oid type, HTAB *seen);

#endif							/* MIP_WRITESET_TYPES_H */
