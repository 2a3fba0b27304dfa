/*-------------------------------------------------------------------------
 *
 * push.c
 *	  Nothing stays in doubt, or for ever, unnoticed.
 *
 * One background worker, the launcher, knows from the registry which databases
 * have instances that have been prepared for longer than mip.push_after. It is
 * connected to none of them; a short-lived worker in that database sends
 * NOTIFY mip_in_doubt. Whoever listens looks into mip.in_doubt and decides
 * what it may: the notification has no payload, since not every listener may
 * know all requests.
 *
 * An instance is pushed at the age of mip.push_after and at twice, four times
 * ... that, later every PUSH_LONGEST_MS; and at once when somebody fails because
 * it is in doubt (tableam/pivot.c), who wakes the launcher. Or up to
 * PUSH_SHORTEST_MS after that, with others: thousands may be in doubt, each with
 * times of its own. The same worker removes what has expired, in one database
 * after the other.
 *
 * After a restart nobody has told the registry yet what was prepared before.
 * A first worker sees to that, in any database.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/stats.h"
#include "base/stop.h"
#include "family/family.h"
#include "family/family_internal.h"
#include "family/rebuild.h"
#include "mipt/catalog.h"
#include "mipt/expiry.h"
#include "workers/push.h"
#include "workers/worker.h"

#define PUSH_LONGEST_MS		(5 * 60 * 1000)
#define PUSH_SHORTEST_MS	1000
#define EXPIRE_EVERY_MS		(60 * 60 * 1000)
#define RETRY_MS			1000	/* where no worker could be started, or it
									 * has failed */

static int	push_after;			/* ms, 0: never */

/* What a worker is started for, beside the rebuild of the registry, which each one sees to; goes with it. */
typedef enum Task
{
	REBUILD,
	PUSH,
	EXPIRE,
} Task;

/* ---- a worker in one database ---- */

static void
begin_work(const char *what)
{
	Assert(!IsTransactionState());
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, what);
}

static void
end_work(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_activity(STATE_IDLE, NULL);
}

static void
push(void)
{
	mip_stop_point("push");
	begin_work("NOTIFY mip_in_doubt");
	if (mipt_exists() && mip_any_in_doubt())
	{
		Async_Notify("mip_in_doubt", "");
		mip_count(MIP_COUNT_PUSHES);
	}
	end_work();
	mip_registry->pushed = true;	/* the launcher looks when we are gone */
}

static void
expire(void)
{
	int			n;

	do
	{
		begin_work("mip.expire");
		n = mipt_exists() ? mip_expire_families() + mip_empty_kept_links() : 0;
		end_work();
	} while (n > 0);
}

/*
 * The launcher may wait for this worker, so it waits for nobody for long: not
 * for who has the database itself locked, nor, whatever the database's defaults
 * are, for a safe snapshot.
 */
static void
limit_waits(void)
{
	SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("synchronous_commit", "local", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
}

void
mip_push_worker_main(Datum dbid)
{
	Task		task;

	memcpy(&task, MyBgworkerEntry->bgw_extra, sizeof(task));
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	limit_waits();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(dbid), InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);

	begin_work("pg_mip: looking for prepared instances");
	mip_registry_ensure("pg_mip worker");
	end_work();
	if (task == PUSH)
		push();
	if (task == EXPIRE)
		expire();
	proc_exit(0);
}

/* ---- the launcher ---- */

/* NULL if there is none to be had. */
static BackgroundWorkerHandle *
start_worker(Oid dbid, Task task)
{
	static bool complained = false;
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle = NULL;

	mip_worker_describe(&worker, "pg_mip worker", "mip_push_worker_main",
						BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION);
	snprintf(worker.bgw_name, BGW_MAXLEN, "pg_mip worker for database %u", dbid);
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(dbid);
	worker.bgw_notify_pid = MyProcPid;
	memcpy(worker.bgw_extra, &task, sizeof(task));
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		if (!complained)
			ereport(WARNING,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("pg_mip cannot start a background worker"),
					 errdetail("Until it can, instances in doubt are not pushed, and expired requests not removed."),
					 errhint("You might need to increase max_worker_processes.")));
		complained = true;
		return NULL;
	}
	complained = false;
	return handle;
}

/* Runs a worker to its end; false if there is none. */
static bool
run_worker(Oid dbid, Task task)
{
	BackgroundWorkerHandle *handle = start_worker(dbid, task);

	if (handle == NULL)
		return false;
	(void) WaitForBackgroundWorkerShutdown(handle);
	pfree(handle);
	return true;
}

/* False if nobody has been told: there was no worker, or it has failed. */
static bool
push_in(Oid dbid)
{
	mip_registry->pushed = false;
	return run_worker(dbid, PUSH) && mip_registry->pushed;
}

/* The databases there are, or that are open; those that are good to connect to first. */
static List *
databases(bool open_only)
{
	List	   *result = NIL;
	MemoryContext caller = CurrentMemoryContext;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tup;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tup = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tup);
		MemoryContext old = MemoryContextSwitchTo(caller);

		/* (below -1: half dropped) */
		if (form->datconnlimit < -1 || (open_only && !form->datallowconn))
			;
		else if (form->datallowconn && !form->datistemplate)
			result = lcons_oid(form->oid, result);
		else
			result = lappend_oid(result, form->oid);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return result;
}

/* A database with instances in doubt */
typedef struct Doubt
{
	Oid			dbid;
	TimestampTz pushed;			/* when last; 0: not yet */
	bool		pressed;		/* since then: due, whatever its age */
	bool		due;
	bool		seen;			/* in this round */
} Doubt;

static List *doubts;			/* of Doubt; TopMemoryContext */

static Doubt *
doubt_of(Oid dbid)
{
	ListCell   *lc;
	Doubt	   *doubt;
	MemoryContext old;

	foreach(lc, doubts)
	{
		doubt = lfirst(lc);
		if (doubt->dbid == dbid)
			return doubt;
	}
	old = MemoryContextSwitchTo(TopMemoryContext);
	doubt = palloc0(sizeof(Doubt));
	doubt->dbid = dbid;
	doubts = lappend(doubts, doubt);
	MemoryContextSwitchTo(old);
	return doubt;
}

static void
forget_decided(void)
{
	ListCell   *lc;

	foreach(lc, doubts)
	{
		Doubt	   *doubt = lfirst(lc);

		if (!doubt->seen)
		{
			doubts = foreach_delete_current(doubts, lc);
			pfree(doubt);
		}
	}
}

/*
 * At which ages, in ms, an instance is to be pushed: the last one that is not
 * above `age` (0 if there is none), and the first one that is.
 */
static void
ages_around(int64 age, int64 *last, int64 *next)
{
	int64		step = push_after;
	int64		longest = Max(push_after, PUSH_LONGEST_MS);

	*last = 0;
	*next = push_after;
	while (*next <= age)
	{
		*last = *next;
		if (step == longest)
		{
			*last += (age - *last) / longest * longest;
			*next = *last + longest;
			return;
		}
		*next += step;
		step = Min(step * 2, longest);
	}
}

/* Notes in which databases a push is due; returns in how many ms the next is. */
static int64
look_around(TimestampTz now)
{
	int64		wait = push_after;
	ListCell   *lc;

	foreach(lc, doubts)
		((Doubt *) lfirst(lc))->seen = ((Doubt *) lfirst(lc))->due = false;
	foreach(lc, mip_all_prepared(now))
	{
		MipPreparedAt *found = lfirst(lc);
		Doubt	   *doubt = doubt_of(found->dbid);
		int64		age = (now - found->prepared) / 1000;
		int64		last;
		int64		next;

		ages_around(age, &last, &next);
		doubt->seen = true;
		doubt->pushed = Min(doubt->pushed, now);
		doubt->pressed |= found->pressed;
		if (doubt->pressed ||
			(last > 0 && doubt->pushed < found->prepared + last * 1000))
			doubt->due = true;
		wait = Min(wait, next - age);
	}
	forget_decided();
	return wait;
}

/* Returns in how many ms to look again. */
static int64
push_all(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		shortest = Min(push_after, PUSH_SHORTEST_MS);
	int64		wait;
	ListCell   *lc;

	if (push_after == 0)
		return EXPIRE_EVERY_MS;
	wait = look_around(now);
	foreach(lc, doubts)
	{
		Doubt	   *doubt = lfirst(lc);

		if (!doubt->due)
			continue;
		if (now - doubt->pushed < shortest * 1000)
			wait = shortest;
		else if (push_in(doubt->dbid))
		{
			doubt->pushed = now;
			doubt->pressed = false;
		}
		else
			wait = Min(wait, RETRY_MS);
	}
	return Max(wait, shortest);
}

/* Where entries are still to be removed; TopMemoryContext. */
static List *to_expire;

/* Counters of databases that have been dropped. */
static void
forget_dropped(void)
{
	/* in this order: a database may be created, and used, meanwhile */
	List	   *counted = mip_stats_databases();
	List	   *existing = databases(false);
	ListCell   *lc;

	foreach(lc, counted)
	{
		if (!list_member_oid(existing, lfirst_oid(lc)))
			mip_stats_drop(lfirst_oid(lc));
	}
}

/*
 * Everywhere: what is there is not known here. There may be entries though no
 * instance has begun since the server started, in the 257th database as well.
 */
static void
plan_to_expire(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	list_free(to_expire);
	to_expire = databases(true);
	MemoryContextSwitchTo(old);
}

/*
 * There may be much to remove. So nobody waits for the workers that do, one at
 * a time; the launcher is woken when one ends. False: try again, there is no
 * worker to be had.
 */
static bool
expire_next(void)
{
	static BackgroundWorkerHandle *worker = NULL;
	MemoryContext old;
	pid_t		pid;

	if (worker != NULL)
	{
		if (GetBackgroundWorkerPid(worker, &pid) != BGWH_STOPPED)
			return true;
		pfree(worker);
		worker = NULL;
	}
	if (to_expire == NIL)
		return true;
	old = MemoryContextSwitchTo(TopMemoryContext);
	worker = start_worker(linitial_oid(to_expire), EXPIRE);
	if (worker != NULL)
		to_expire = list_delete_first(to_expire);
	MemoryContextSwitchTo(old);
	return worker != NULL;
}

/* False: try again, in another database. */
static bool
rebuild_registry(void)
{
	static int	tries = 0;

	if (!mip_registry->rebuilt && max_prepared_xacts > 0)
	{
		List	   *all = databases(false);

		(void) run_worker(list_nth_oid(all, tries++ % list_length(all)), REBUILD);
	}
	return mip_registry->rebuilt || max_prepared_xacts == 0;
}

void
mip_push_main(Datum arg)
{
	MemoryContext context;
	TimestampTz expired = 0;

	mip_worker_listen();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	context = AllocSetContextCreate(TopMemoryContext, "pg_mip launcher",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	mip_registry->launcher = &MyProc->procLatch;
	while (!ShutdownRequestPending)
	{
		int64		wait = RETRY_MS;
		TimestampTz now;

		if (rebuild_registry())
			wait = push_all();
		now = GetCurrentTimestamp();
		if (now < expired ||
			TimestampDifferenceExceeds(expired, now, EXPIRE_EVERY_MS))
		{
			forget_dropped();
			plan_to_expire();
			expired = now;
		}
		if (!expire_next())
			wait = Min(wait, RETRY_MS);
		wait = Min(wait, EXPIRE_EVERY_MS - (now - expired) / 1000 + 1);
		MemoryContextReset(context);
		if (mip_worker_wait(wait))
			expired = 0;
	}
	proc_exit(1);				/* comes back if the server stays */
}

void
mip_push_init(void)
{
	BackgroundWorker worker;

	DefineCustomIntVariable("mip.push_after",
							"How long an instance is in doubt before NOTIFY mip_in_doubt is sent.",
							"0: never.",
							&push_after, 10 * 1000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	if (IsBinaryUpgrade)
		return;
	mip_worker_describe(&worker, "pg_mip launcher", "mip_push_main",
						BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION);
	RegisterBackgroundWorker(&worker);
}
