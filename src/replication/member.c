/*-------------------------------------------------------------------------
 *
 * member.c
 *	  This server as a member of a replicated site: settings, shared memory.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "replication/member.h"

/* So much of the messages' memory is there from the beginning. */
#define MEMORY_IN_PLACE		(256 * 1024)

MipMember  *mip_member;

static char *replicated_database;
static char *member_name;

static bool publishes = true;

static void *place;				/* of the messages' memory */
static dsa_area *memory;

static enum
{
	UNKNOWN,
	REPLICATED,
	NOT_REPLICATED
}			here;

/* ---- settings ---- */

static bool
check_name(char **newval, void **extra, GucSource source)
{
	if (strlen(*newval) < NAMEDATALEN)
		return true;
	GUC_check_errdetail("A member's name has at most %d bytes.", NAMEDATALEN - 1);
	return false;
}

void
mip_member_init(void)
{
	DefineCustomStringVariable("mip.replicated_database",
							   "The database of this server that is a replica.",
							   "What is committed there is committed at all replicas of the site, or at none.",
							   &replicated_database, "", PGC_POSTMASTER, 0,
							   NULL, NULL, NULL);
	DefineCustomStringVariable("mip.member",
							   "The name of this replica of its site.",
							   NULL,
							   &member_name, "", PGC_POSTMASTER, 0,
							   check_name, NULL, NULL);
	if (mip_member_is_configured() && member_name[0] == '\0')
		ereport(FATAL,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("mip.member is not set"),
				 errdetail("Database \"%s\" is replicated (mip.replicated_database), and its replicas need names.",
						   replicated_database)));
}

const char *
mip_member_name(void)
{
	return member_name;
}

bool
mip_member_is_configured(void)
{
	return replicated_database != NULL && replicated_database[0] != '\0';
}

bool
mip_is_replicated(void)
{
	if (likely(here != UNKNOWN))
		return here == REPLICATED;
	if (!mip_member_is_configured())
		return false;
	if (!IsTransactionState() || !OidIsValid(MyDatabaseId))
		return false;
	here = get_database_oid(replicated_database, true) == MyDatabaseId ? REPLICATED : NOT_REPLICATED;
	return here == REPLICATED;
}

bool
mip_publishes(void)
{
	return mip_is_replicated() && publishes;
}

void
mip_set_publishes(bool value)
{
	publishes = value;
}

/* ---- shared memory ---- */

static Size
size(void)
{
	return add_size(offsetof(MipMember, commits), mul_size(MaxBackends, sizeof(MipCommit)));
}

void
mip_member_shmem_request(void)
{
	if (!mip_member_is_configured())
		return;
	RequestAddinShmemSpace(size());
	RequestAddinShmemSpace(MEMORY_IN_PLACE);
	RequestNamedLWLockTranche("pg_mip_replication", 2);
}

MipMessageId
mip_draw_id(void)
{
	MipMessageId id;

	if (!pg_strong_random(&id, sizeof(id)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random numbers")));
	return id;
}

static void
init_member(void)
{
	memset(mip_member, 0, size());
	mip_member->ncommits = MaxBackends;
	ConditionVariableInit(&mip_member->advanced);
	ConditionVariableInit(&mip_member->arrived);
	mip_member->start = mip_draw_id();
}

void
mip_member_shmem_startup(void)
{
	LWLockPadded *locks;
	bool		found;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	if (!mip_member_is_configured())
		return;
	locks = GetNamedLWLockTranche("pg_mip_replication");
	memory = NULL;
	mip_member = ShmemInitStruct("pg_mip member", size(), &found);
	if (!found)
		init_member();
	mip_member->lock = &locks[0].lock;
	place = ShmemInitStruct("pg_mip messages", MEMORY_IN_PLACE, &found);
	if (!found && !IsUnderPostmaster)
	{
		dsa_area   *area = dsa_create_in_place(place, MEMORY_IN_PLACE, locks[1].lock.tranche, NULL);

		/* it stays, whoever uses it */
		dsa_pin(area);
		dsa_detach(area);
	}
}

static void
release_memory(int code, Datum arg)
{
	dsa_release_in_place(place);
}

dsa_area *
mip_member_memory(void)
{
	if (memory == NULL)
	{
		MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);

		memory = dsa_attach_in_place(place, NULL);
		dsa_pin_mapping(memory);
		on_shmem_exit(release_memory, (Datum) 0);
		MemoryContextSwitchTo(caller);
	}
	return memory;
}

/* ---- commits ---- */

MipCommit *
mip_my_commit(void)
{
	Assert(mip_proc_number(MyProc) < mip_member->ncommits);
	return &mip_member->commits[mip_proc_number(MyProc)];
}

PGPROC *
mip_commit_proc(const MipCommit *commit)
{
	return GetPGProcByNumber(commit - mip_member->commits);
}

void
mip_commit_set(MipCommit *commit, MipCommitState state)
{
	Assert(LWLockHeldByMeInMode(mip_member->lock, LW_EXCLUSIVE));
	if (DsaPointerIsValid(commit->message) && state != MIP_COMMIT_TAKEN)
	{
		dsa_free(mip_member_memory(), commit->message);
		commit->message = InvalidDsaPointer;
	}
	commit->state = state;
	if (commit != mip_my_commit())
		SetLatch(&mip_commit_proc(commit)->procLatch);
}

uint64
mip_member_applied(void)
{
	uint64		applied;

	LWLockAcquire(mip_member->lock, LW_SHARED);
	applied = mip_member->applied;
	LWLockRelease(mip_member->lock);
	return applied;
}

void
mip_member_stamp(MipMessage *message)
{
	Assert(LWLockHeldByMeInMode(mip_member->lock, LW_EXCLUSIVE));
	message->snapshot = mip_member->applied;
	message->history = mip_member->history;
	message->id.start = mip_member->start.start;
	message->id.number = mip_member->start.number + ++mip_member->queued;
}

void
mip_member_advance(const MipPosition *position, MipReplicationCounter what, MipCommit *own)
{
	LWLockAcquire(mip_member->lock, LW_EXCLUSIVE);
	Assert(mip_member->applied + 1 == position->position);
	mip_member->applied = position->position;
	mip_member->history = position->history;
	mip_member->deciding = 0;
	if (what != MIP_REPLICATION_TOLD)
		mip_member->worth_telling = position->position;
	mip_member->counters[what]++;
	if (own)
		mip_commit_set(own, MIP_COMMIT_NONE);
	LWLockRelease(mip_member->lock);
	ConditionVariableBroadcast(&mip_member->advanced);
}
