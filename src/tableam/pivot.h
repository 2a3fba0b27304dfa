/*-------------------------------------------------------------------------
 *
 * pivot.h
 *	  Who fails at SERIALIZABLE because of an instance in doubt is told so.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PIVOT_H
#define MIP_PIVOT_H

#include "family/family.h"

/* What errors name as their table that come again until a family is decided. */
#define IN_DOUBT_SCHEMA	"mip"
#define IN_DOUBT_TABLE	"in_doubt"

/*
 * Who it is, as those are told whom it is in the way of: whose request, is for its
 * owner only. Reads no catalogs, so an error may be under way.
 */
extern char *mip_pivot_name(const MipLiving *in_doubt);

/*
 * In PG_CATCH: if the error (40001) is one that comes again until a family is
 * decided, throws it with that family's XID, and has the family pushed. `context`
 * is that of the caller, outside PG_TRY.
 */
extern void mip_pivot_explain(MemoryContext context);

/*
 * The transaction is about to be committed or prepared. An error (40001), as
 * above, if PostgreSQL is going to refuse that because of an instance in doubt.
 */
extern void mip_pivot_check_end(void);

#endif							/* MIP_PIVOT_H */
