/*-------------------------------------------------------------------------
 *
 * unwaited.c
 *	  Locks of who reads what is prepared: those that nobody has to be waited for.
 *
 * Who is to decide a prepared instance may want to see it before: he must not come to
 * stand behind somebody who waits for the instance, which nobody would notice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "writeset/keys.h"
#include "writeset/types.h"
#include "writeset/unwaited.h"

static const char *
kind_of(Oid relid)
{
	switch (get_rel_relkind(relid))
	{
		case RELKIND_INDEX:
		case RELKIND_PARTITIONED_INDEX:
			return "index";
		case RELKIND_COMPOSITE_TYPE:
			return "type";
		case RELKIND_VIEW:
			return "view";
		default:
			return "table";
	}
}

pg_noreturn static void
mip_refuse_to_wait(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("somebody waits for a lock on %s \"%s\", perhaps until the instance is decided",
					kind_of(relid), get_rel_name(relid)),
			 errhint("Try again later, or decide the instance.")));
}

void
mip_lock_or_refuse(Oid relid)
{
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		mip_refuse_to_wait(relid);
}

static void
lock_keys(Relation rel)
{
	Oid			index = mip_keys_lock(rel);

	if (OidIsValid(index))
		mip_refuse_to_wait(index);
}

/* Values that are out of line */
static void
lock_toast(Oid relid)
{
	Relation	toast;
	List	   *indexes;
	ListCell   *cell;

	if (!OidIsValid(relid))
		return;
	mip_lock_or_refuse(relid);
	toast = relation_open(relid, NoLock);
	indexes = RelationGetIndexList(toast);
	foreach(cell, indexes)
		mip_lock_or_refuse(lfirst_oid(cell));
	list_free(indexes);
	relation_close(toast, NoLock);
}

/* A row's columns are looked up in the table, or the like, whose row it is: before they are. */
static bool
lock_type(Oid type, HTAB *seen)
{
	check_stack_depth();
	if (get_typtype(type) == TYPTYPE_COMPOSITE)
		mip_lock_or_refuse(get_typ_typrelid(type));
	return false;
}

/* Of their expressions, that is. The list is a new one: more may be there than a moment ago, or fewer. */
static void
lock_types_of_keys(Relation rel, HTAB *seen)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index;

		mip_lock_or_refuse(lfirst_oid(cell));
		index = try_relation_open(lfirst_oid(cell), NoLock);
		if (index == NULL)
			continue;
		(void) mip_any_column_type(RelationGetDescr(index), seen, lock_type);
		relation_close(index, NoLock);
	}
	list_free(indexes);
}

void
mip_lock_behind_or_refuse(Relation rel)
{
	HTAB	   *seen = mip_types_seen();

	lock_toast(rel->rd_rel->reltoastrelid);
	(void) mip_any_column_type(RelationGetDescr(rel), seen, lock_type);
	lock_keys(rel);
	lock_types_of_keys(rel, seen);
	hash_destroy(seen);
}
