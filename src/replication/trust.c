/*-------------------------------------------------------------------------
 *
 * trust.c
 *	  Whose code is executed where rows are applied.
 *
 * There is no way back for what applies the log: where a function of an index fails, or does
 * not come to what it has come to elsewhere, that replica stops, or is another one from then
 * on. And it is executed at the COMMIT of whoever changes the row. So it takes somebody who
 * answers for the server to have one executed: PostgreSQL itself, or a superuser, who owns it.
 * That it is declared IMMUTABLE he has to mean. The table's owner, in whose name
 * it is executed, must be allowed to.
 *
 * Code comes from indexes; and from domains within a column's type, whose checks are made as soon
 * as a value is read. These may go by the clock, and have to be immutable, too. A domain
 * that the column itself is of is not asked again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_index.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_range.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/known.h"
#include "replication/trust.h"
#include "writeset/apply_others.h"
#include "writeset/types.h"

/* What is looked at, and what has been found */
typedef struct Search
{
	Oid			owner;			/* of the table */
	HTAB	   *seen;			/* types */
	Oid			function;		/* that must not be executed, or 0 */
	Oid			domain;			/* whose check goes by more than the value, or
								 * 0 */
	Oid			type;			/* that casts of others make json of, or 0 */
	bool		has_rows;		/* a type is composite */
} Search;

static Search search;			/* visitors of types know nothing else */
static MipKnownTables *trusted; /* types that have rows may become other ones
								 * without the table */

/* ---- functions ---- */

static bool
is_superusers(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = superuser_arg(((Form_pg_proc) GETSTRUCT(tuple))->proowner);
	ReleaseSysCache(tuple);
	return result;
}

bool
mip_is_trusted(Oid function)
{
	return function < FirstNormalObjectId || is_superusers(function);
}

static bool
is_untrusted(Oid function, void *context)
{
	if (function < FirstNormalObjectId ||
		(mip_is_trusted(function) &&
		 mip_function_aclcheck(function, search.owner, ACL_EXECUTE) == ACLCHECK_OK))
		return false;
	search.function = function;
	return true;
}

/* ---- types, and expressions ---- */

static bool visit_untrusted(Oid type, HTAB *seen);

/* By casts of the types of its arguments, which are looked for when it is executed */
static bool
casts_to_json(Node *node)
{
	ListCell   *lc;

	foreach(lc, MIP_JSON_CONSTRUCTOR_ARGS(node))
	{
		Oid			type = exprType(lfirst(lc));

		if (type >= FirstNormalObjectId)
		{
			search.type = type;
			return true;
		}
	}
	return false;
}

static bool
executes_untrusted(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (mip_makes_values(node) && mip_any_type(exprType(node), search.seen, visit_untrusted))
		return true;
	return (MIP_IS_JSON_CONSTRUCTOR(node) && casts_to_json(node)) ||
		check_functions_in_node(node, is_untrusted, NULL) ||
		expression_tree_walker(node, executes_untrusted, NULL);
}

static bool
domain_is_untrusted(Oid domain)
{
	ListCell   *lc;

	foreach(lc, mip_domain_checks(domain))
	{
		if (contain_mutable_functions(lfirst(lc)))
			search.domain = domain;
		if (OidIsValid(search.domain) || executes_untrusted(lfirst(lc), NULL))
			return true;
	}
	return false;
}

static bool
range_is_untrusted(Oid range)
{
	HeapTuple	tuple = SearchSysCache1(RANGETYPE, ObjectIdGetDatum(range));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = is_untrusted(((Form_pg_range) GETSTRUCT(tuple))->rngcanonical, NULL) ||
		is_untrusted(((Form_pg_range) GETSTRUCT(tuple))->rngsubdiff, NULL);
	ReleaseSysCache(tuple);
	return result;
}

static bool
visit_untrusted(Oid type, HTAB *seen)
{
	switch (get_typtype(type))
	{
		case TYPTYPE_DOMAIN:
			return domain_is_untrusted(type);
		case TYPTYPE_RANGE:
			return range_is_untrusted(type);
		case TYPTYPE_COMPOSITE:
			search.has_rows = true;
			return false;
		default:
			return false;
	}
}

/* ---- tables ---- */

static bool
columns_are_untrusted(Relation rel)
{
	for (int i = 0; i < RelationGetNumberOfAttributes(rel); i++)
	{
		Form_pg_attribute attr = TupleDescAttr(RelationGetDescr(rel), i);

		if (!attr->attisdropped && mip_any_type(getBaseType(attr->atttypid), search.seen, visit_untrusted))
			return true;
	}
	return false;
}

/* As it is stored: what is prepared has functions resolved into what they call. */
static bool
part_is_untrusted(Relation index, AttrNumber part)
{
	bool		isnull;
	Datum		stored = SysCacheGetAttr(INDEXRELID, index->rd_indextuple, part, &isnull);

	return !isnull && executes_untrusted(stringToNode(TextDatumGetCString(stored)), NULL);
}

static bool
indexes_are_untrusted(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	bool		result = false;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		result = result || part_is_untrusted(index, Anum_pg_index_indexprs) ||
			part_is_untrusted(index, Anum_pg_index_indpred);
		index_close(index, NoLock);
	}
	list_free(indexes);
	return result;
}

pg_noreturn static void
refuse(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot change table \"%s\" of a replicated database", RelationGetRelationName(rel)),
			 OidIsValid(search.type) ?
			 errdetail("Where its rows are applied values of type %s would be made json, by a cast that is looked for then.",
					   format_type_be(search.type)) :
			 OidIsValid(search.domain) ?
			 errdetail("Its rows would be checked where they are applied, by domain %s, whose check is not immutable.",
					   format_type_be(search.domain)) :
			 errdetail("Where its rows are applied function %s would be executed, which no superuser owns, or the table's owner may not execute.",
					   format_procedure(search.function)),
			 OidIsValid(search.function) ?
			 errhint("Let a superuser own the function, who answers for it: there is no way back where rows are applied.") : 0));
	pg_unreachable();
}

static void
look_at(Relation rel)
{
	memset(&search, 0, sizeof(search));
	search.owner = rel->rd_rel->relowner;
	search.seen = mip_types_seen();
	if (columns_are_untrusted(rel) || indexes_are_untrusted(rel))
		refuse(rel);
	hash_destroy(search.seen);
}

void
mip_check_trusted(Relation rel)
{
	MipKnownTable found = {.relid = RelationGetRelid(rel)};
	uint64		before = mip_known_changes(trusted);

	if (mip_known_find(trusted, found.relid))
		return;
	look_at(rel);
	found.by_others = search.has_rows;
	mip_known_remember(trusted, &found, before);
}

static void
forget(Datum arg, int cacheid, uint32 hash)
{
	mip_known_forget_all(trusted);
}

void
mip_trust_init(void)
{
	static const int caches[] = {AUTHOID, CONSTROID, PROCOID, TYPEOID};

	trusted = mip_known_create("pg_mip trusted tables");
	for (int i = 0; i < lengthof(caches); i++)
		CacheRegisterSyscacheCallback(caches[i], forget, (Datum) 0);
}
