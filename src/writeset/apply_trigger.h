/*-------------------------------------------------------------------------
 *
 * apply_trigger.h
 *	  Which triggers fire where a writeset is applied, and who may leave out the others.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_TRIGGER_H
#define MIP_APPLY_TRIGGER_H

#include "nodes/execnodes.h"
#include "utils/rel.h"

/* Those of the table are replaced by those that are to fire. */
extern void mip_choose_triggers(ResultRelInfo *info);

/* An error, if one of these fires with such changes (ACL_INSERT, ...) and has transition tables. */
extern void mip_refuse_transition_tables(const ResultRelInfo *info, AclMode right);

/* An error, if others would fire with statements, and the table is not the user's. */
extern void mip_check_may_pass_over_triggers(Relation rel);

/* Likewise, of one that is truncated with all its partitions, which have been asked for. */
extern void mip_check_may_pass_over_truncation(Relation partitioned);

#endif							/* MIP_APPLY_TRIGGER_H */
