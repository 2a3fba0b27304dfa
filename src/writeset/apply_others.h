/*-------------------------------------------------------------------------
 *
 * apply_others.h
 *	  Checks that go by more than the values of a row, as by what is in tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_OTHERS_H
#define MIP_APPLY_OTHERS_H

#include "nodes/nodes.h"
#include "nodes/pg_list.h"
#include "utils/hsearch.h"
#include "utils/rel.h"

/* Do those of a domain, or of any within the type, that is not among the types `seen` (types.h)? */
extern bool mip_type_goes_by_others(Oid type, HTAB *seen);

/*
 * Does anything of these that is looked at when a row is written: what is computed for indexes
 * and bounds, and, if rows are `checked`, checks and generated columns?
 */
extern bool mip_rows_go_by_others(Relation rel, bool checked);

/* Does it make new values of its type, by the type's input function or checks? */
extern bool mip_makes_values(const Node *node);

/* A domain's checks as they are stored: to plan them would be to execute some. */
extern List *mip_domain_checks(Oid domain);

#endif							/* MIP_APPLY_OTHERS_H */
