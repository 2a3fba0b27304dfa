/*-------------------------------------------------------------------------
 *
 * across.c
 *	  Serializability across sites: mip.serializable.
 *
 * SERIALIZABLE at each site is not SERIALIZABLE: a cycle that has edges at several
 * sites is seen by none. With mip.serializable = everywhere a transaction ends, at
 * each of its sites, only if
 *
 *	 1. nothing that it has read has been replaced since by who is committed or
 *	    prepared, and
 *	 2. nobody who is prepared, and not committed, has read what it replaces;
 *
 * or, if it has but read, and at this site alone, if nothing that it has missed had
 * been prepared when its snapshot was taken. Why no cycle is left: README beside this
 * file; spec/Everywhere.tla is the model.
 *
 * Who has read and replaced what is known to PostgreSQL's SSI: conflicts out of this
 * transaction for the first rule, into it for the second. SSI looks for two in a
 * row, of which one is by chance no danger; here one is enough, if it has not been
 * forgotten. A READ ONLY transaction's are. So it is followed like one that writes,
 * and where that comes too late it is refused.
 *
 * A transaction first counts as prepared and then looks at the others, so of two that
 * end at once one sees the other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/predicate.h"
#include "storage/predicate_internals.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/mip.h"
#include "base/stop.h"
#include "family/current.h"
#include "family/family.h"
#include "family/rebuild.h"
#include "family/sites.h"
#include "tableam/follow.h"
#include "tableam/free_keys.h"
#include "tableam/lost_reads.h"
#include "tableam/pivot.h"
#include "tableam/predicate.h"
#include "transam/across.h"

typedef enum Reach
{
	SITE,
	EVERYWHERE,
} Reach;

static const struct config_enum_entry reaches[] = {
	{"site", SITE, false},
	{"everywhere", EVERYWHERE, false},
	{NULL, 0, false}
};

static int	serializable;

/* Of a SERIALIZABLE transaction */
static bool
is_everywhere(void)
{
	return serializable == EVERYWHERE || mip_mine.everywhere;
}

/* Reported to clients, so that who begins at several sites knows. */
void
mip_across_init(void)
{
	DefineCustomEnumVariable("mip.serializable",
							 "Where SERIALIZABLE transactions of this database are so.",
							 "\"site\": among those of this database; \"everywhere\": among those of all sites that say so.",
							 &serializable, SITE, reaches, PGC_SUSET, GUC_REPORT,
							 NULL, NULL, NULL);
	mip_free_keys_count_if(is_everywhere);
}

/* ---- mip.begin ---- */

static bool
promises_everywhere(const text *promised)
{
	char	   *reach;

	if (promised == NULL)
		return false;
	reach = text_to_cstring(promised);
	for (const struct config_enum_entry *entry = reaches; entry->name; entry++)
	{
		if (strcmp(entry->name, reach) == 0)
			return entry->val == EVERYWHERE;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("an instance is serializable at each \"site\", or \"everywhere\", not \"%s\"", reach)));
}

static void
require_known(void)
{
	if (!mip_predicate_is_known())
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("transactions of this server cannot be serializable everywhere"),
				 errdetail("pg_mip does not know how it keeps serializable transactions."),
				 errhint("Set mip.serializable to \"site\", or use REPEATABLE READ.")));
}

static void
check_promised(bool everywhere)
{
	if (everywhere)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("mip.begin has to be told that this instance is serializable everywhere"),
				 errdetail("mip.serializable is \"everywhere\" here, which says nothing while it is not so at all sites of the instance."),
				 errhint("Give it serializable => 'everywhere', at each site, or use another isolation level.")));
	if (IsolationIsSerializable())
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("an instance cannot be serializable everywhere at this site"),
				 errdetail("mip.serializable is \"site\" here."),
				 errhint("It has to be the same at all sites.")));
	ereport(ERROR,
			(errcode(ERRCODE_MIP_NOT_USABLE),
			 errmsg("an instance that is to be serializable everywhere has to be SERIALIZABLE")));
}

/* What it reads would not be followed where nobody was writing when it began. */
static void
refuse_read_only(bool read_only)
{
	if (read_only)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("a transaction of several sites cannot be serializable everywhere and READ ONLY"),
				 errhint("Begin it with READ WRITE.")));
}

bool
mip_across_begin(ArrayType *sites, const text *promised)
{
	bool		everywhere = IsolationIsSerializable() && serializable == EVERYWHERE;
	bool		several = mip_sites_count(sites) > 1;
	bool		promises = promises_everywhere(promised);

	if (promises ? !everywhere : everywhere && several)
		check_promised(everywhere);
	if (everywhere)
		require_known();
	if (everywhere && several)
		refuse_read_only(XactReadOnly);
	return everywhere;
}

/* It may be of several sites. */
void
mip_across_before_prepare(void)
{
	if (serializable == EVERYWHERE && IsolationIsSerializable() && FirstSnapshotSet)
		refuse_read_only(XactReadOnly || ShareSerializableXact() == NULL);
}

/* ---- READ ONLY ---- */

static void
refuse_deferrable(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot use READ ONLY DEFERRABLE where mip.serializable is \"everywhere\""),
			 errdetail("A snapshot that is safe at one site may not be so across sites."),
			 errhint("Leave out DEFERRABLE, or use REPEATABLE READ.")));
}

static bool
is_deferrable(void)
{
	return serializable == EVERYWHERE && IsolationIsSerializable() &&
		XactReadOnly && XactDeferrable && ShareSerializableXact() == NULL;
}

void
mip_across_refuse_deferrable(void)
{
	if (IsTransactionState() && is_deferrable())
		refuse_deferrable();
}

/* ---- the rules; the caller holds SerializableXactHashLock ---- */

typedef enum Rule
{
	REPLACED,					/* what was read */
	READ,						/* what was replaced */
	MISSED						/* what had been prepared */
} Rule;

static bool
is_sibling(const SERIALIZABLEXACT *sxact)
{
	return mip_in_transaction() && TransactionIdIsValid(sxact->topXid) &&
		mip_xid_is_sibling(sxact->topXid);
}

/*
 * Was it prepared for good when the snapshot of `mine` was taken, or may it have been?
 * Who is committed by his own backend is so when others see it.
 */
static bool
was_prepared(const SERIALIZABLEXACT *mine, const SERIALIZABLEXACT *writer)
{
	return writer->pid == 0 && (writer->flags & SXACT_FLAG_PREPARED) &&
		writer->prepareSeqNo <= mine->SeqNo.lastCommitBeforeSnapshot;
}

/*
 * The first writer that stands against what `mine` has read. `summary`: there may be
 * one that is not known any more; where siblings are to pass, predicate.c has an
 * entry without an XID for that.
 */
static const SERIALIZABLEXACT *
find_writer(SERIALIZABLEXACT *mine, bool only_reads, bool *summary)
{
	RWConflict	conflict = NULL;

	*summary = (mine->flags & SXACT_FLAG_SUMMARY_CONFLICT_OUT) != 0;
	while ((conflict = MIP_LIST_NEXT(RWConflictData, outLink, &mine->outConflicts, conflict)) != NULL)
	{
		const SERIALIZABLEXACT *writer = conflict->sxactIn;

		if (conflict->sxactOut != mine)
			continue;			/* a seed */
		if (!TransactionIdIsValid(writer->topXid))
			*summary = true;
		else if ((only_reads ? was_prepared(mine, writer) : (writer->flags & SXACT_FLAG_PREPARED) != 0) &&
				 !is_sibling(writer))
			return writer;
	}
	return NULL;
}

/*
 * The first reader that stands against what `mine` has written. Who has but read, at
 * this site alone, comes before all that he has not seen.
 */
static const SERIALIZABLEXACT *
find_reader(SERIALIZABLEXACT *mine)
{
	RWConflict	conflict = NULL;

	while ((conflict = MIP_LIST_NEXT(RWConflictData, inLink, &mine->inConflicts, conflict)) != NULL)
	{
		const SERIALIZABLEXACT *reader = conflict->sxactOut;

		if ((reader->flags & (SXACT_FLAG_PREPARED | SXACT_FLAG_COMMITTED)) == SXACT_FLAG_PREPARED &&
			TransactionIdIsValid(reader->topXid) && !is_sibling(reader))
			return reader;
	}
	return NULL;
}

/* Who stands against the end of `mine`, by which rule; NULL if nobody who is known. */
static const SERIALIZABLEXACT *
find_rival(SERIALIZABLEXACT *mine, Rule *rule, bool *summary)
{
	bool		only_reads = !TransactionIdIsValid(GetTopTransactionIdIfAny());
	const SERIALIZABLEXACT *found = find_writer(mine, only_reads, summary);

	*rule = only_reads ? MISSED : REPLACED;
	if (found == NULL)
	{
		found = find_reader(mine);
		*rule = found ? READ : *rule;
	}
	return found;
}

/* ---- what PostgreSQL does not know any more ---- */

/* Is there such a transaction among those that this one does not see? */
static bool
has_missed_any(bool (*such) (TransactionId xid))
{
	Snapshot	snapshot = GetTransactionSnapshot();
	TransactionId next = ReadNextTransactionId();

	for (uint32 i = 0; i < snapshot->xcnt; i++)
	{
		if (such(snapshot->xip[i]))
			return true;
	}
	for (TransactionId xid = snapshot->xmax; TransactionIdPrecedes(xid, next);)
	{
		CHECK_FOR_INTERRUPTS(); /* a snapshot may be old */
		if (such(xid))
			return true;
		TransactionIdAdvance(xid);
	}
	return false;
}

/*
 * Of a transaction that has been summarized it is noted that somebody has read what
 * it has written, even if he has seen it. One that is not SERIALIZABLE may be taken
 * for such.
 */
static bool
may_be_summarized(TransactionId xid)
{
	return TransactionIdDidCommit(xid) && !mip_follows(xid) &&
		!TransactionIdIsValid(SubTransGetParent(xid));
}

/* ---- what PostgreSQL loses in a restart ---- */

static bool *none_recovered;	/* in shared memory: no use to look any more */

void
mip_across_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(bool));
}

void
mip_across_shmem_startup(void)
{
	bool		found;

	none_recovered = ShmemInitStruct("pg_mip across", sizeof(bool), &found);
	if (!found)
		*none_recovered = false;
}

/*
 * May this transaction have written to that table, or to the table of that index? Of
 * what is gone nobody knows whose index it was.
 */
static bool
may_have_written(Oid relid)
{
	Oid			table = IndexGetRelation(relid, true);
	LOCKTAG		tag;

	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		return TransactionIdIsValid(GetTopTransactionIdIfAny());
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, OidIsValid(table) ? table : relid);
	return mip_lock_held_by_me(&tag, RowExclusiveLock);
}

/*
 * A reader who was prepared before the server started is known by what he had read by
 * then. It is forgotten where that has come to be since: pages that have been split off,
 * rows of a table that has been rewritten, an index instead of another one. So he counts
 * for the whole table. Any, or InvalidTransactionId.
 */
static TransactionId
find_recovered_reader(void)
{
	PredicateLockData *locks;
	bool		any = false;

	if (*none_recovered)
		return InvalidTransactionId;
	locks = GetPredicateLockStatusData();
	for (int i = 0; i < locks->nelements; i++)
	{
		const PREDICATELOCKTARGETTAG *tag = &locks->locktags[i];
		const SERIALIZABLEXACT *reader = &locks->xacts[i];

		if (reader->prepareSeqNo != RecoverySerCommitSeqNo)
			continue;
		any = true;
		if (!(reader->flags & SXACT_FLAG_COMMITTED) &&
			GET_PREDICATELOCKTARGETTAG_DB(*tag) == MyDatabaseId &&
			may_have_written(GET_PREDICATELOCKTARGETTAG_RELATION(*tag)) && !is_sibling(reader))
			return reader->topXid;
	}
	*none_recovered = !any;
	return InvalidTransactionId;
}

/* ---- failing ---- */

static char *
describe(TransactionId rival, const MipLiving *in_doubt)
{
	if (in_doubt)
		return psprintf("%s, which is in doubt,", mip_pivot_name(in_doubt));
	if (TransactionIdIsValid(rival))
		return psprintf("Transaction %u", rival);
	return pstrdup("A transaction of which no more is known");
}

/* What is in doubt is pushed, and named as tableam/pivot.c does. */
static void
fail(Rule rule, TransactionId rival)
{
	static const char *const whys[] = {
		[REPLACED] = "has written what this one has read before.",
		[READ] = "has read what this one has written, and is not committed yet.",
		[MISSED] = "had been prepared, unseen, when this one began to read.",
	};
	MipLiving	found;
	bool		in_doubt = TransactionIdIsValid(rival) && mip_press(rival, &found);

	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to read/write dependencies across sites"),
			 errdetail("%s %s", describe(rival, in_doubt ? &found : NULL), whys[rule]),
			 errhint("The transaction might succeed if retried, once the other one has been decided."),
			 in_doubt ? err_generic_string(PG_DIAG_SCHEMA_NAME, IN_DOUBT_SCHEMA) : 0,
			 in_doubt ? err_generic_string(PG_DIAG_TABLE_NAME, IN_DOUBT_TABLE) : 0));
}

/* ---- the beginning of a statement ---- */

/*
 * A snapshot that somebody else has taken is older than this transaction. Those who have
 * committed in between it would come before, though it began when they were over; nor
 * does PostgreSQL know all of them any more.
 */
void
mip_across_check_imported(void)
{
	if (serializable == EVERYWHERE && IsolationIsSerializable() &&
		has_missed_any(TransactionIdDidCommit))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot import a snapshot since which others have committed where mip.serializable is \"everywhere\""),
				 errdetail("This transaction has to come behind all that were over when it began."),
				 errhint("Export a new one, or use REPEATABLE READ.")));
}

static bool has_missed_nobody;	/* though it is not followed */

/*
 * In a savepoint READ ONLY may be for a while. A snapshot that is taken then, and beside
 * nobody who writes, has the transaction not followed at all: nor later, when it writes.
 */
static void
refuse_to_write(void)
{
	if (!XactReadOnly)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot go on READ WRITE with a snapshot that was taken READ ONLY where mip.serializable is \"everywhere\""),
				 errhint("Let the transaction read nothing before, or use REPEATABLE READ.")));
}

/*
 * PostgreSQL does not follow a transaction that only reads if nobody was writing when it
 * took its snapshot: it has missed nobody who was prepared. Nor one whose writers have
 * all committed since, as they may while its first statement waits to be analyzed. Who
 * these were is not known any more.
 */
static void
check_not_followed(void)
{
	refuse_to_write();
	if (!has_missed_nobody && has_missed_any(TransactionIdDidCommit))
		fail(MISSED, InvalidTransactionId);
	has_missed_nobody = true;
}

void
mip_across_follow(void)
{
	if (!IsolationIsSerializable() || IsParallelWorker() || !FirstSnapshotSet)
		return;
	mip_registry_rebuild();		/* who may be in its way is named and pressed */
	mip_follow_early_writer();	/* at a single site, too */
	if (serializable != EVERYWHERE)
		return;
	if (is_deferrable())
		refuse_deferrable();
	mip_stop_point("follow");
	if (ShareSerializableXact() == NULL)
		check_not_followed();
	mip_follow_reader();
}

/* ---- the end of a transaction ---- */

void
mip_across_at_eoxact(void)
{
	has_missed_nobody = false;
}

/*
 * PostgreSQL's own check makes it count as prepared. That is made once more when it
 * is committed or prepared, and finds no more then: predicate.h.
 */
void
mip_across_validate(void)
{
	SERIALIZABLEXACT *mine = ShareSerializableXact();
	const SERIALIZABLEXACT *found;
	Rule		rule;
	TransactionId rival;
	bool		summary;

	if (!IsolationIsSerializable() || mine == NULL)
		return;
	mip_follow_early_writer();	/* nothing may have been executed */
	mip_lost_reads_check();
	if (!is_everywhere())
		return;
	require_known();
	/* but it may have read nothing */
	if ((mine->flags & SXACT_FLAG_READ_ONLY) && !MIP_LOCKS_EMPTY(&mine->predicateLocks))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("mip.serializable has been changed since this transaction began"),
				 errhint("The transaction might succeed if retried.")));
	mip_predicate_let_commit();
	mip_stop_point("counts as prepared");
	LWLockAcquire(SerializableXactHashLock, LW_SHARED);
	found = find_rival(mine, &rule, &summary);
	rival = found ? found->topXid : InvalidTransactionId;
	LWLockRelease(SerializableXactHashLock);
	if (found || (summary && has_missed_any(may_be_summarized)))
		fail(rule, rival);
	rival = find_recovered_reader();
	if (TransactionIdIsValid(rival))
		fail(READ, rival);
}
