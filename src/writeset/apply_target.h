/*-------------------------------------------------------------------------
 *
 * apply_target.h
 *	  The application of a writeset, and the tables that it changes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_APPLY_TARGET_H
#define MIP_APPLY_TARGET_H

#include "access/genam.h"
#include "access/heapam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "executor/executor.h"
#include "lib/ilist.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"

#include "base/owner.h"
#include "writeset/apply_column.h"
#include "writeset/apply_map.h"
#include "writeset/apply_runs.h"
#include "writeset/format.h"

typedef struct MipGenerated MipGenerated;

/* A table, from the first change of it on. */
typedef struct MipTarget
{
	const MipwRelation *source; /* as the writeset has it */
	char	   *name;			/* with its schema, for messages */
	Relation	rel;
	struct MipTarget *twin;		/* the next one of the same table, which the
								 * writeset describes in more than one way;
								 * around, to this one itself */
	bool		shares;			/* that has been opened by a twin */
	ResultRelInfo *info;
	bool		indexed;		/* indexes are open */
	int			nneeded;		/* so many of them come first, and must not
								 * fail; the others see apply_aside.c */
	AclMode		checked;		/* rights that have been looked for */
	AclMode		rights;			/* those of them that he has to all of it */
	MipColumn  *columns;		/* where the writeset's columns are here */
	MipwValue  *values;			/* room for those of a change */
	Bitmapset  *owners;			/* columns that only the table's owner updates */
	Bitmapset  *updated;		/* columns that the last update changed */
	MipGenerated *generated;	/* NULL: not known yet (apply_generated.c) */
	int			ngenerated;
	bool		fixed;			/* values are read under fixed settings */
	bool		domains;		/* there are columns of domains */
	bool		in_order;		/* its checks see what came before */
	bool		in_turn;		/* so do values that identify its rows, when
								 * they are read */
	bool		runs_code;		/* of others, by each change: triggers,
								 * expressions */

	/* how rows are found */
	Relation	index;			/* NULL: by reading them */
	bool		unscanned;		/* it does not lead to all rows that the
								 * snapshot shows: they are read */
	int			nkeys;
	ScanKeyData keys[INDEX_MAX_KEYS];
	IndexScanDesc scan;
	uint64		changed;		/* rows that have been found by the index */
	uint64		wasted;			/* rows that it has led to in vain */
	MipRowMap  *map;			/* in map_memory, with nothing else */
	MemoryContext map_memory;
	TupleTableSlot *wanted;		/* the identity of a row that is looked for */
	TupleTableSlot *found;
	TupleTableSlot *other;		/* a second one like it */

	/* new rows, new versions */
	TupleTableSlot *row;
	MemoryContext batch_memory; /* of the rows to be inserted */
	TupleTableSlot **batch;
	uint64	   *numbers;		/* of their changes */
	int			nslots;			/* so many slots there are */
	int			batched;
	dlist_node	batch_node;		/* if there are some */
	Size		batched_bytes;
	BulkInsertState bulk;		/* once there were many */
} MipTarget;

/* An index entry that may turn out to be a second one of its key */
typedef struct MipDoubt
{
	MipTarget  *target;
	Oid			index;
	ItemPointerData tid;
} MipDoubt;

typedef struct MipApply
{
	const MipwSet *set;
	void		(*check_table) (Relation rel);	/* may it be written to? */
	bool		as_is;			/* see apply.h */
	EState	   *estate;
	EPQState	epq;			/* not used: rows are locked before triggers
								 * look at them */
	Snapshot	snapshot;		/* the active one */
	CommandId	first;			/* what this writeset has changed is of this
								 * command or of later ones */
	uint64		number;			/* of the change that is being made */
	MemoryContext scratch;		/* reset with each row that is looked at */
	int			settings;		/* mip_values_begin(); 0: they are the
								 * session's */
	MipTarget **targets;		/* by the writeset's number of the relation */
	dlist_head	batches;		/* targets that have one, in the order of
								 * their first rows */
	MipRuns    *runs;			/* NULL: have not been needed */
	MipDoubt   *doubts;
	int64		ndoubts;
	int64		room;
} MipApply;

/*
 * The table of a change, for which the user needs this right (ACL_INSERT, ...). Errors
 * out if it does not fit, or he may not.
 */
extern MipTarget *mip_target_of(MipApply *apply, const MipwChange *change, AclMode right);

/* Has he the right to change these columns, if not to all of the table? Else an error. */
extern void mip_target_check_columns(const MipTarget *target, AclMode right,
									 const Bitmapset *columns);

/*
 * Before values of the table are read, and before code of others runs for it, which is to
 * find the session's own settings. They are changed only if they need to be.
 */
extern void mip_target_fix_settings(MipApply *apply, const MipTarget *target);
extern void mip_target_own_settings(MipApply *apply, const MipTarget *target);
extern void mip_apply_own_settings(MipApply *apply);

/*
 * Code of a table's owner, in domains, indexes, operator classes: as_is it is executed with
 * his rights, and read only.
 */
extern MipUser mip_target_become_owner(MipApply *apply, const MipTarget *target);
extern void mip_target_become_again(MipApply *apply, MipUser user);

/* To which of its columns does this change give values? */
extern Bitmapset *mip_target_given(const MipTarget *target, const MipwValue *values);

/* To be called before it is changed or searched: opens what is needed for that. */
extern void mip_target_open_indexes(MipApply *apply, MipTarget *target);
extern void mip_target_close_indexes(MipTarget *target);

/* Which of the open ones that is, or -1 */
extern int	mip_target_find_index(const MipTarget *target, Oid index);

/* All of them; some may be NULL. */
extern void mip_targets_close(MipTarget **targets, uint32 n);

#endif							/* MIP_APPLY_TARGET_H */
