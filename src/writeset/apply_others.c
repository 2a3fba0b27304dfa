/*-------------------------------------------------------------------------
 *
 * apply_others.c
 *	  Checks that go by more than the values of a row, as by what is in tables.
 *
 * Such are those whose functions are not IMMUTABLE. What is computed from a row, as for an
 * index, has IMMUTABLE ones only; but PostgreSQL takes a cast to a domain for immutable,
 * whatever the domain's checks call. Domains within a column's type are asked as soon as
 * its values are read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/typcache.h"

#include "base/compat.h"
#include "writeset/apply_others.h"
#include "writeset/values.h"

/* ---- expressions ---- */

static bool
casts_go_by_others(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, CoerceToDomain) &&
		mip_type_goes_by_others(((CoerceToDomain *) node)->resulttype))
		return true;
	if (MIP_IS_JSON_EXPR(node) && mip_type_goes_by_others(MIP_JSON_EXPR_TYPE(node)))
		return true;
	return expression_tree_walker(node, casts_go_by_others, context);
}

static bool
check_goes_by_others(Node *check)
{
	return contain_mutable_functions(check) || casts_go_by_others(check, NULL);
}

/* ---- types ---- */

static bool
domain_goes_by_others(Oid type)
{
	DomainConstraintRef *ref = palloc(sizeof(DomainConstraintRef));
	ListCell   *lc;

	InitDomainConstraintRef(type, ref, CurrentMemoryContext, false);
	foreach(lc, ref->constraints)
	{
		DomainConstraintState *constraint = lfirst(lc);

		if (check_goes_by_others((Node *) constraint->check_expr))
			return true;
	}
	return false;
}

static bool
columns_go_by_others(TupleDesc desc)
{
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!att->attisdropped && mip_type_goes_by_others(att->atttypid))
			return true;
	}
	return false;
}

static bool
composite_goes_by_others(Oid type)
{
	TupleDesc	desc = lookup_rowtype_tupdesc_copy(type, -1);
	bool		result = columns_go_by_others(desc);

	FreeTupleDesc(desc);
	return result;
}

bool
mip_type_goes_by_others(Oid type)
{
	check_stack_depth();
	for (; OidIsValid(type); type = mip_inner_type(type))
	{
		char		kind = get_typtype(type);

		if ((kind == TYPTYPE_DOMAIN && domain_goes_by_others(type)) ||
			(kind == TYPTYPE_COMPOSITE && composite_goes_by_others(type)))
			return true;
	}
	return false;
}

/* ---- tables ---- */

static bool
checks_go_by_others(const TupleConstr *constr)
{
	for (int i = 0; i < constr->num_check; i++)
		if (check_goes_by_others(stringToNode(constr->check[i].ccbin)))
			return true;
	return false;
}

static bool
generated_goes_by_others(TupleDesc desc)
{
	const TupleConstr *constr = desc->constr;

	for (int i = 0; i < constr->num_defval; i++)
		if (TupleDescAttr(desc, constr->defval[i].adnum - 1)->attgenerated &&
			casts_go_by_others(stringToNode(constr->defval[i].adbin), NULL))
			return true;
	return false;
}

static bool
index_goes_by_others(Oid relid)
{
	Relation	index = index_open(relid, RowExclusiveLock);
	bool		result = casts_go_by_others((Node *) RelationGetIndexExpressions(index), NULL) ||
		casts_go_by_others((Node *) RelationGetIndexPredicate(index), NULL);

	index_close(index, NoLock);
	return result;
}

static bool
indexes_go_by_others(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	bool		result = false;
	ListCell   *lc;

	foreach(lc, indexes)
		result = result || index_goes_by_others(lfirst_oid(lc));
	list_free(indexes);
	return result;
}

bool
mip_rows_go_by_others(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	return columns_go_by_others(desc) ||
		(desc->constr && (checks_go_by_others(desc->constr) || generated_goes_by_others(desc))) ||
		casts_go_by_others((Node *) RelationGetPartitionQual(rel), NULL) ||
		indexes_go_by_others(rel);
}
