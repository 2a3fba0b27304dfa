/*-------------------------------------------------------------------------
 *
 * ending.c
 *	  How the MIP transaction of this backend ends: what the transaction
 *	  callbacks do.
 *
 * The second of the two steps that instance.c describes, with the family lock; and
 * what is left of an instance once it is over, one way or the other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/mip.h"
#include "base/stats.h"
#include "base/stop.h"
#include "base/xid.h"
#include "family/current.h"
#include "family/eviction.h"
#include "family/family.h"
#include "family/family_lock.h"
#include "family/lone.h"
#include "family/sites.h"
#include "family/telling.h"
#include "mipt/books.h"
#include "mipt/catalog.h"
#include "mipt/entry.h"
#include "mipt/horizon.h"
#include "mipt/mipt.h"
#include "mipt/rows.h"
#include "mipt/rules.h"
#include "tableam/capture.h"
#include "tableam/claim.h"
#include "tableam/follow.h"
#include "tableam/handover.h"
#include "tableam/lost_reads.h"
#include "tableam/overlay.h"
#include "tableam/places.h"
#include "tableam/places_store.h"
#include "tableam/pivot.h"
#include "tableam/predicate.h"
#include "transam/across.h"
#include "transam/ending.h"
#include "transam/session.h"
#include "transam/statement.h"

/* PostgreSQL drops a transaction's memory when it is altogether over. */
void
mip_call_when_over(MemoryContextCallbackFunction function)
{
	MemoryContextCallback *callback =
		MemoryContextAllocZero(TopTransactionContext, sizeof(MemoryContextCallback));

	callback->func = function;
	MemoryContextRegisterResetCallback(TopTransactionContext, callback);
}

void
mip_check_role(const char *function)
{
	Assert(mip_in_transaction());
	if (GetUserId() != mip_mine.inst->owner)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("%s must be called by the role that called mip.begin", function),
				 errhint("Undo SET ROLE or SET SESSION AUTHORIZATION first.")));
}

static bool (*order) (void);

void
mip_order_by(bool (*function) (void))
{
	order = function;
}

static void
after_prepare(void *arg)
{
	mip_family_unlock_all();
}

/*
 * Until PostPrepare_Twophase nobody else can finish a prepared transaction,
 * and that comes after the last transaction callback. So the family lock stays
 * until then, and no longer [lock-let-go].
 */
static void
unlock_after_prepare(void)
{
	mip_call_when_over(after_prepare);
}

/*
 * Notes the active siblings that a commit in one phase aborts: those that its
 * reply listed, gone or not, and those that have been begun since.
 */
static void
note_losers(void)
{
	List	   *entries = mipt_read(mip_mine.xid);
	ListCell   *lc;

	foreach(lc, mip_mine.losers)
	{
		MiptEntry  *loser = lfirst(lc);

		if (mipt_find(entries, loser->xinst) == NULL)
			mipt_insert_aborted(mip_mine.xid, loser);
	}
	foreach(lc, entries)
	{
		MiptEntry  *entry = lfirst(lc);

		if (entry->xinst != mip_mine.xinst && !ItemPointerIsValid(&entry->tid))
			mipt_insert_aborted(mip_mine.xid, entry);
	}
}

/*
 * The commit in one phase of an instance with siblings: none is prepared, so
 * all others are active, and lose now.
 */
static void
win_in_one_phase(const bytea *links)
{
	mip_predicate_let_commit();
	mip_doom_others(mip_mine.xid, mip_mine.xinst);
	mip_stop_point("doomed");
	mip_evict_doomed(mip_mine.xid);
	mip_stop_point("evicted");
	Assert(mip_others_are_doomed(mip_mine.xid, mip_mine.xinst));	/* [doomed-before-header] */
	mip_hand_over(links);
	mip_stop_point("handed over");
	note_losers();
	mip_stop_point("losers");
}

/* Has this instance written nothing, not even a large object? */
static bool
has_written_nothing(void)
{
	CommandCounterIncrement();
	return GetCurrentCommandId(false) == mip_mine.first_command;
}

/*
 * An expired request can still be cancelled, by an instance that does nothing:
 * where there is a sibling to get out of doubt; or if no clock but ours says
 * so, since then the request has never been committed here (else there would be
 * an entry). The caller has read the entries before. [no-cancel-of-done]
 */
static void
check_not_expired(bool one_phase)
{
	MipAge		age = mip_xid_age(mip_mine.xid);

	Assert(mip_family_locked(mip_mine.xid, ExclusiveLock));
	if (age == MIP_CURRENT)
		return;
	if (one_phase || mip_mine.result != NULL || !has_written_nothing() ||
		(age == MIP_BEHIND_HORIZON && !mipt_has_prepared(mipt_read(mip_mine.xid))))
		mip_raise_expired(mip_mine.xid);
}

/* Are there rows, though a page has said that there are none? */
static bool
has_missed_rows(void)
{
	ListCell   *lc;

	if (mip_mine.key_note == 0 || mip_mine.key_note == mipt_note(MIPT_PKEY))
		return false;
	foreach(lc, mipt_read(mip_mine.xid))
	{
		if (ItemPointerIsValid(&((MiptEntry *) lfirst(lc))->tid))
			return true;
	}
	return false;
}

/*
 * Is the MIPT what the reply has been made of? With the family lock, and the relations
 * locked: who had brought rows, and kept others from them, has been waited for.
 */
static void
check_may_enter(bool one_phase)
{
	mip_check_doomed();
	/* [counted-in-lock] */
	if (mip_mine.family->transitions != mip_mine.seen || has_missed_rows())
	{
		mipt_check_may_end(mip_mine.xid, mipt_read(mip_mine.xid), mip_mine.xinst,
						   one_phase);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("another instance of family \"%s\" changed its state at the same moment",
						mip_mine.xid),
				 errhint("Retry the request as a new instance."),
				 err_generic_string(PG_DIAG_SCHEMA_NAME, "mip"),
				 err_generic_string(PG_DIAG_TABLE_NAME, "mipt")));
	}
	check_not_expired(one_phase);
}

/*
 * Whoever comes behind it in that order does not get here, and who comes before it would
 * have ended it.
 */
static bool
is_ordered(void)
{
	if (order == NULL)
		return false;
	mip_check_doomed();
	if (mip_xid_age(mip_mine.xid) != MIP_CURRENT)
		mip_raise_expired(mip_mine.xid);
	return order();
}

/*
 * Last step that may fail. Takes the family lock, which is released after the
 * transaction has ended one way or the other.
 */
static void
enter_row(bool one_phase)
{
	bytea	   *links;
	bytea	   *places = NULL;
	bool		ordered;
	Oid			key;

	Assert(mip_mine.ending == (one_phase ? MIP_ONE_PHASE : MIP_PREPARING));
	/* deferred triggers have run since */
	mip_check_role(one_phase ? "mip.commit_one_phase" : "mip.prepare");
	mip_refuse_strong_locks();
	if (!one_phase && mip_captures())
		places = mip_places_store(mip_places_mine());
	ordered = one_phase && is_ordered();
	mip_mine.inst->at_lock = true;
	mip_family_lock_ending(mip_mine.xid);
	key = mipt_lock_to_insert();
	PushActiveSnapshot(GetTransactionSnapshot());	/* for TOAST */
	if (!ordered)
		check_may_enter(one_phase);
	mip_stop_point("turn");
	mip_predicate_before_end();
	mip_across_validate();
	links = mip_overlay_links();
	mip_mine.alone = mip_mine.alone && mip_mine.family->notes == mip_mine.notes &&
		links == NULL && places == NULL;
	if (one_phase && (links || mip_mine.losers || mip_have_siblings()))
		win_in_one_phase(links);
	mipt_insert_own(one_phase ? NULL : links, places);
	UnlockRelationOid(key, RowExclusiveLock);

	/*
	 * others are told of it at once, and act upon it; what is ordered is
	 * elsewhere, too
	 */
	if (one_phase && !ordered)
		ForceSyncCommit();
	PopActiveSnapshot();
	mip_stop_point("row");
}

static void
forget_mine(void)
{
	mip_predicate_at_eoxact();
	mip_across_at_eoxact();
	mip_lost_reads_at_eoxact();
	mip_overlay_at_eoxact();
	mip_withdraw_sites();
	memset(&mip_mine, 0, sizeof(mip_mine));
}

static void
refuse_plain_commit(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_NOT_USABLE),
			 errmsg("a MIP transaction cannot be ended with COMMIT or PREPARE TRANSACTION"),
			 errhint("End it with mip.prepare, mip.commit_one_phase or ROLLBACK.")));
}

static void
pre_commit(void)
{
	mip_keep_books();
	if (mip_has_books())
		mip_follow_write();
	mip_pivot_check_end();
	if (!mip_in_transaction())
	{
		mip_across_validate();
		return;
	}
	if (mip_mine.ending != MIP_ONE_PHASE)
		refuse_plain_commit();
	enter_row(true);
}

/*
 * What PostgreSQL refuses to prepare it would refuse behind us, with the family
 * lock held while the client is told.
 */
static void
check_may_prepare(void)
{
	AtPrepare_Notify();
	if (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot prepare an instance that has operated on temporary objects"),
				 errhint("Use them in a transaction of their own; or use mip.commit_one_phase, if the instance has no other site.")));
	if (XactHasExportedSnapshots())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot prepare an instance that has exported a snapshot"),
				 errhint("Export snapshots in a transaction of their own.")));
	mip_session_before_prepare();
}

static void
pre_prepare(void)
{
	mip_refuse_books();
	mip_pivot_check_end();
	if (!mip_in_transaction())
	{
		mip_across_before_prepare();
		mip_across_validate();
		return;
	}
	if (mip_mine.ending != MIP_PREPARING)
		refuse_plain_commit();
	check_may_prepare();
	unlock_after_prepare();
	enter_row(false);
}

/* Nobody waits for a client that does not read why this has failed: [lock-let-go] */
static void
run_unlocking(void (*step) (void))
{
	PG_TRY();
	{
		step();
	}
	PG_CATCH();
	{
		mip_family_unlock_all();
		if (mip_in_transaction())
		{
			/* a winner may end it, even while it tells its client */
			mip_mine.inst->running = true;
			mip_mine.inst->at_lock = false;
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			run_unlocking(pre_commit);
			break;
		case XACT_EVENT_PRE_PREPARE:
			run_unlocking(pre_prepare);
			break;
		case XACT_EVENT_PREPARE:
			if (mip_in_transaction())
			{
				Assert(!mip_lone_claimed());
				mip_telling_done();
				mip_mark_prepared(mip_mine.inst, mip_mine.alone ? mip_mine.seen + mip_mine.notes : 0);
				mip_count(MIP_COUNT_PREPARED);
				forget_mine();
				mip_stop_point("prepared");
				mip_session_restore(true);
			}
			else
				forget_mine();
			mip_capture_at_eoxact(true);
			mip_statement_at_eoxact();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			if (mip_in_transaction())
			{
				bool		committed = event == XACT_EVENT_COMMIT;

				mip_telling_done();
				mip_count(committed ? MIP_COUNT_ONE_PHASE : MIP_COUNT_FAILED);
				mip_claim_let_go(); /* [one-claim] */
				if (mip_unregister(mip_mine.inst, committed))
					mip_swallow_cancel();
				mip_session_restore(committed);
			}
			forget_mine();
			mip_family_unlock_all();
			mip_lose_books();
			mip_capture_at_eoxact(event == XACT_EVENT_COMMIT);
			mip_statement_at_eoxact();
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mine,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_START_SUB)
	{
		mip_telling_done();		/* ROLLBACK TO, behind an error that aborted
								 * no more than an earlier one had */
		mip_capture_at_start_subxact();
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		mip_overlay_at_eosubxact(true, mine, parent);
		mip_capture_at_eosubxact(true, mine, parent);
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		mip_telling_done();
		mip_claim_let_go();
		mip_predicate_at_abort_sub();
		mip_overlay_at_eosubxact(false, mine, parent);
		mip_capture_at_eosubxact(false, mine, parent);
		mip_family_unlock_all();
	}
}

void
mip_ending_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
