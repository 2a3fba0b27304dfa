/*-------------------------------------------------------------------------
 *
 * apply_generated.c
 *	  Generated columns that are updated with those that they are computed from.
 *
 * Triggers of UPDATE OF such columns go by it. The executor finds out with the first update
 * of a table, for all that follow: a statement updates the same columns of all rows, a
 * writeset may not. So it is told that nothing is computed from the first one's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "nodes/bitmapset.h"
#include "optimizer/optimizer.h"
#include "parser/parse_relation.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "writeset/apply_generated.h"

/* What is computed from which columns */
struct MipGenerated
{
	int			column;			/* as mip_target_given() has it */
	Bitmapset  *from;
};

/* No column's: below all of the system's */
#define NO_COLUMN	0

static void
keep_executor_from_adding(MipApply *apply, MipTarget *target)
{
#if PG_VERSION_NUM >= 160000
	Bitmapset  *none = bms_make_singleton(NO_COLUMN);

	mip_set_updated_columns(apply->estate, target->info->ri_RangeTableIndex, none);
	(void) ExecGetExtraUpdatedCols(target->info, apply->estate);
#else
	ListCell   *lc;

	/* there it is what insertions compute, too: all of them are */
	if (target->info->ri_GeneratedExprs == NULL)
		ExecInitStoredGenerated(target->info, apply->estate, CMD_INSERT);
	foreach(lc, apply->estate->es_resultrelinfo_extra)
	{
		ResultRelInfoExtra *extra = lfirst(lc);

		if (extra->rinfo == target->info && !target->rel->trigdesc->trig_update_before_row)
			extra->ri_extraUpdatedCols = NULL;
	}
#endif
}

static void
find_generated(MipApply *apply, MipTarget *target)
{
	TupleDesc	desc = RelationGetDescr(target->rel);
	int			ndefaults = desc->constr ? desc->constr->num_defval : 0;
	MemoryContext before = MemoryContextSwitchTo(apply->estate->es_query_cxt);

	target->generated = palloc(ndefaults * sizeof(MipGenerated) + 1);
	for (int i = 0; i < ndefaults; i++)
	{
		const AttrDefault *value = &desc->constr->defval[i];
		MipGenerated *generated = &target->generated[target->ngenerated];

		if (!TupleDescAttr(desc, value->adnum - 1)->attgenerated)
			continue;
		generated->column = value->adnum - FirstLowInvalidHeapAttributeNumber;
		generated->from = NULL;
		pull_varattnos(stringToNode(value->adbin), 1, &generated->from);
		target->ngenerated++;
	}
	if (target->ngenerated > 0)
		keep_executor_from_adding(apply, target);
	MemoryContextSwitchTo(before);
}

Bitmapset *
mip_target_updated(MipApply *apply, MipTarget *target, Bitmapset *given)
{
	Bitmapset  *updated = given;

	if (target->info->ri_TrigDesc == NULL)
		return given;
	if (target->generated == NULL)
		find_generated(apply, target);
	for (int i = 0; i < target->ngenerated; i++)
	{
		const MipGenerated *generated = &target->generated[i];

		/* none is computed from another one */
		if (bms_overlap(updated, generated->from))
			updated = bms_add_member(updated, generated->column);
	}
	return updated;
}
