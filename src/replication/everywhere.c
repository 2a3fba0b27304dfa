/*-------------------------------------------------------------------------
 *
 * everywhere.c
 *	  Which expressions come to the same at all replicas.
 *
 * Those that go by rows and definitions only: by no clock, chance or setting, which IMMUTABLE says;
 * but not of checks of domains, which are asked by a cast. Nor by what each replica has chosen
 * for itself: OIDs of objects, where a row is, who has written it, the day on which it reads a command. A
 * label's hash is that of its OID.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "replication/everywhere.h"
#include "writeset/apply_others.h"
#include "writeset/types.h"
#include "writeset/values.h"

/* ---- what is a replica's own ---- */

/* Or may, as it hashes whatever it is given */
static bool
hashes_labels(Oid function, void *context)
{
	switch (function)
	{
		case F_HASHENUM:
		case F_HASHENUMEXTENDED:
		case F_HASH_ARRAY:
		case F_HASH_ARRAY_EXTENDED:
		case F_HASH_MULTIRANGE:
		case F_HASH_MULTIRANGE_EXTENDED:
		case F_HASH_RANGE:
		case F_HASH_RANGE_EXTENDED:
		case F_HASH_RECORD:
		case F_HASH_RECORD_EXTENDED:
			return true;
		default:
			return false;
	}
}

/* A timetz without an offset has that of the day on which its literal is read. */
static bool
is_each_replicas_own(Oid type, HTAB *seen)
{
	return type == TIMETZOID || mip_visit_names_of_objects(type, seen);
}

/* Numbers that every server has are the same everywhere. */
static bool
constant_is_own(const Const *constant)
{
	HTAB	   *seen;
	bool		result;

	if (constant->constisnull)
		return false;
	if (mip_names_objects(constant->consttype))
		return DatumGetObjectId(constant->constvalue) >= FirstNormalObjectId;
	seen = mip_types_seen();
	result = mip_any_type(constant->consttype, seen, is_each_replicas_own);
	hash_destroy(seen);
	return result;
}

/* Any number may be an object's, for a function that is called with it. */
static bool
takes_objects(const FuncExpr *call)
{
	ListCell   *lc;

	if (call->funcformat != COERCE_EXPLICIT_CALL)
		return false;
	foreach(lc, call->args)
	{
		if (exprType(lfirst(lc)) == OIDOID)
			return true;
	}
	return false;
}

static bool
is_own(Node *node)
{
	switch (nodeTag(node))
	{
		case T_Var:
			return ((Var *) node)->varattno < 0 || mip_names_objects(((Var *) node)->vartype);
		case T_Const:
			return constant_is_own((Const *) node);
		case T_FuncExpr:
			return mip_names_objects(exprType(node)) || takes_objects((FuncExpr *) node);
		case T_CoerceViaIO:
			return mip_names_objects(exprType(node));
		default:
			return false;
	}
}

/* ---- expressions ---- */

static bool visit_type(Oid type, HTAB *seen);

static bool
differs(Node *node, void *seen)
{
	if (node == NULL)
		return false;
	if (mip_makes_values(node) && mip_any_type(exprType(node), seen, visit_type))
		return true;
	return is_own(node) || check_functions_in_node(node, hashes_labels, NULL) ||
		expression_tree_walker(node, differs, seen);
}

static bool
expression_differs(Node *expression, HTAB *seen)
{
	return contain_mutable_functions(expression) || differs(expression, seen);
}

static bool
visit_type(Oid type, HTAB *seen)
{
	ListCell   *lc;

	check_stack_depth();
	if (get_typtype(type) != TYPTYPE_DOMAIN)
		return false;
	foreach(lc, mip_domain_checks(type))
	{
		if (expression_differs(lfirst(lc), seen))
			return true;
	}
	return false;
}

bool
mip_same_everywhere(Node *expression)
{
	HTAB	   *seen = mip_types_seen();
	bool		result = !expression_differs(expression, seen);

	hash_destroy(seen);
	return result;
}

bool
mip_type_same_everywhere(Oid type)
{
	HTAB	   *seen = mip_types_seen();
	bool		result = !mip_any_type(type, seen, visit_type);

	hash_destroy(seen);
	return result;
}

/* ---- a domain's NULL ---- */

static Node *
with_null(Node *node, void *context)
{
	CoerceToDomainValue *value = (CoerceToDomainValue *) node;

	if (node == NULL)
		return NULL;
	if (IsA(node, CoerceToDomainValue))
		return (Node *) makeNullConst(value->typeId, value->typeMod, value->collation);
	return expression_tree_mutator(node, with_null, context);
}

/* What is left of most checks then is nothing. */
bool
mip_null_same_everywhere(Oid type)
{
	ListCell   *lc;

	for (; get_typtype(type) == TYPTYPE_DOMAIN; type = mip_inner_type(type))
	{
		foreach(lc, mip_domain_checks(type))
		{
			if (!mip_same_everywhere(eval_const_expressions(NULL, with_null(lfirst(lc), NULL))))
				return false;
		}
	}
	return true;
}
