/*-------------------------------------------------------------------------
 *
 * apply_others.c
 *	  Checks that go by more than the values of a row, as by what is in tables.
 *
 * Such are those whose functions are not IMMUTABLE. What is computed from a row, as for an
 * index, has IMMUTABLE ones only; but PostgreSQL takes a cast to a domain for immutable,
 * whatever the domain's checks call. So it does with functions that have such casts within,
 * which nobody looks into: to plan them would be to execute some. Of functions only
 * PostgreSQL's own are known to go by nothing else. Domains within a column's type are asked
 * as soon as its values are read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "writeset/apply_others.h"
#include "writeset/types.h"

/* ---- expressions ---- */

bool
mip_makes_values(const Node *node)
{
	switch (nodeTag(node))
	{
		case T_ArrayCoerceExpr:
		case T_CoerceToDomain:
		case T_CoerceViaIO:
			return true;
		default:
			return MIP_IS_JSON_EXPR(node);
	}
}

static bool
is_of_others(Oid function, void *context)
{
	return function >= FirstNormalObjectId;
}

static bool
casts_go_by_others(Node *node, void *seen)
{
	if (node == NULL)
		return false;
	if (mip_makes_values(node) && mip_type_goes_by_others(exprType(node), seen))
		return true;
	return check_functions_in_node(node, is_of_others, NULL) ||
		expression_tree_walker(node, casts_go_by_others, seen);
}

static bool
check_goes_by_others(Node *check, HTAB *seen)
{
	return contain_mutable_functions(check) || casts_go_by_others(check, seen);
}

/* ---- types ---- */

List *
mip_domain_checks(Oid domain)
{
	Relation	rel = table_open(ConstraintRelationId, AccessShareLock);
	List	   *checks = NIL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_constraint_contypid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(domain));
	scan = systable_beginscan(rel, ConstraintTypidIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		check = heap_getattr(tuple, Anum_pg_constraint_conbin,
										 RelationGetDescr(rel), &isnull);

		if (!isnull)
			checks = lappend(checks, stringToNode(TextDatumGetCString(check)));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return checks;
}

static bool
domain_goes_by_others(Oid domain, HTAB *seen)
{
	ListCell   *lc;

	foreach(lc, mip_domain_checks(domain))
	{
		if (check_goes_by_others(lfirst(lc), seen))
			return true;
	}
	return false;
}

/* What is too deep to be looked at may. */
static bool
visit_by_others(Oid type, HTAB *seen)
{
	return stack_is_too_deep() ||
		(get_typtype(type) == TYPTYPE_DOMAIN && domain_goes_by_others(type, seen));
}

bool
mip_type_goes_by_others(Oid type, HTAB *seen)
{
	return mip_any_type(type, seen, visit_by_others);
}

/* ---- tables ---- */

static bool
checks_go_by_others(const TupleConstr *constr, HTAB *seen)
{
	for (int i = 0; i < constr->num_check; i++)
	{
		Node	   *check = stringToNode(constr->check[i].ccbin);

		if (MIP_CHECK_IS_ENFORCED(&constr->check[i]) &&
			(contain_mutable_functions(check) || casts_go_by_others(check, seen)))
			return true;
	}
	return false;
}

static bool
generated_goes_by_others(TupleDesc desc, HTAB *seen)
{
	const TupleConstr *constr = desc->constr;

	for (int i = 0; i < constr->num_defval; i++)
	{
		const AttrDefault *value = &constr->defval[i];
		char		generated = TupleDescAttr(desc, value->adnum - 1)->attgenerated;

		if (generated == ATTRIBUTE_GENERATED_STORED &&
			casts_go_by_others(stringToNode(value->adbin), seen))
			return true;
	}
	return false;
}

static bool
index_goes_by_others(Oid relid, HTAB *seen)
{
	Relation	index = index_open(relid, RowExclusiveLock);
	bool		result = casts_go_by_others((Node *) RelationGetIndexExpressions(index), seen) ||
		casts_go_by_others((Node *) RelationGetIndexPredicate(index), seen);

	index_close(index, NoLock);
	return result;
}

static bool
indexes_go_by_others(Relation rel, HTAB *seen)
{
	List	   *indexes = RelationGetIndexList(rel);
	bool		result = false;
	ListCell   *lc;

	foreach(lc, indexes)
		result = result || index_goes_by_others(lfirst_oid(lc), seen);
	list_free(indexes);
	return result;
}

bool
mip_rows_go_by_others(Relation rel, bool checked)
{
	TupleDesc	desc = RelationGetDescr(rel);
	HTAB	   *seen = mip_types_seen();
	bool		result = mip_any_column_type(desc, seen, visit_by_others) ||
		(desc->constr && checked && (checks_go_by_others(desc->constr, seen) ||
									 generated_goes_by_others(desc, seen))) ||
		casts_go_by_others((Node *) RelationGetPartitionQual(rel), seen) ||
		indexes_go_by_others(rel, seen);

	hash_destroy(seen);
	return result;
}
