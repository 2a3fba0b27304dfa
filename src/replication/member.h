/*-------------------------------------------------------------------------
 *
 * member.h
 *	  This server as a member of a replicated site: what its processes share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_MEMBER_H
#define MIP_REPLICATION_MEMBER_H

#include "storage/condition_variable.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/dsa.h"
#include "utils/timestamp.h"

#include "replication/message.h"
#include "replication/positions.h"
#include "replication/verdicts.h"

/* A transaction at its COMMIT. What is certified stays so until it has ended. */
typedef enum MipCommitState
{
	MIP_COMMIT_NONE,
	MIP_COMMIT_QUEUED,			/* nobody else knows of it yet */
	MIP_COMMIT_TAKEN,			/* it may be in the log, or get there */
	MIP_COMMIT_CERTIFIED,		/* it is to commit now */
	MIP_COMMIT_REFUSED,			/* it is not to */
	MIP_COMMIT_LEFT_OUT,		/* nor is it, a definition that somebody has
								 * left out */
	MIP_COMMIT_TOO_LONG,		/* nor is it, since the log does not take it */
	MIP_COMMIT_IN_THE_WAY		/* ... and may be certified all the same */
} MipCommitState;

/* Of one process, by its number */
typedef struct MipCommit
{
	MipCommitState state;
	MipMessageId id;
	uint64		taker;			/* who has taken it */
	dsa_pointer message;		/* while it is QUEUED or TAKEN */
	Size		length;
	MipPosition decided;		/* if CERTIFIED */
	VirtualTransactionId ended; /* the last one that was in the way */
} MipCommit;

typedef enum MipReplicationCounter
{
	MIP_REPLICATION_COMMITTED,	/* of this member */
	MIP_REPLICATION_APPLIED,	/* of others, or of sessions that have gone */
	MIP_REPLICATION_REFUSED,	/* of anybody */
	MIP_REPLICATION_ENDED,		/* local transactions that were in the way */
	MIP_REPLICATION_SLOWED,		/* by flow control: they have waited */
	MIP_REPLICATION_STOPPED,	/* ... or have been refused */
	MIP_REPLICATION_TOLD,		/* by members of themselves */
	MIP_REPLICATION_COUNTERS
} MipReplicationCounter;

/* More members than anybody has replicas; those beyond are not waited for. */
#define MIP_PEERS_MAX		32

/* A member, as it has told of itself */
typedef struct MipPeer
{
	char		name[NAMEDATALEN];	/* empty: none */
	uint64		applied;		/* and flushed */
	TimestampTz heard;			/* when, since this server has started; or 0 */
} MipPeer;

/* All under `lock`, but for what waits. */
typedef struct MipMember
{
	LWLock	   *lock;
	bool		loaded;			/* what follows is known */
	uint64		applied;		/* the position up to which all is here */
	uint64		history;		/* there */
	int			applier;		/* its process, or 0 */
	uint64		defining;		/* the position of the definition that it
								 * executes, or 0 */
	uint64		failed;			/* that of the last one that could not be
								 * executed, and how often */
	uint32		failures;
	uint64		skipped;		/* that of the last one that is left out, or 0 */
	bool		keeps_temporary_away;	/* sessions get nothing temporary, for
										 * a definition */
	uint64		deciding;		/* the family of the request, or fence, that
								 * is next, or 0 */
	dsa_pointer applying;		/* the writeset that it applies, if it does */
	Size		applying_length;
	Latch	   *watcher;		/* of who ends what is in the way, or NULL */
	uint64		takers;			/* sessions that have taken messages */
	uint64		queued;
	MipMessageId start;			/* drawn by chance: the ids' first half */
	uint64		counters[MIP_REPLICATION_COUNTERS];
	MipRefused	refused[MIP_REFUSED_ENTRIES];
	MipPeer		peers[MIP_PEERS_MAX];
	uint64		worth_telling;	/* the last position that is more than what
								 * members tell of themselves */
	uint64		told;			/* the position that this one has told, as it
								 * has received itself */
	TimestampTz told_at;		/* when it has been sent last */
	uint64		told_last;		/* and what */
	char		leaving[NAMEDATALEN];	/* to be told that it has left; or
										 * empty */
	ConditionVariable advanced; /* `applied`, or a commit that has been given
								 * up */
	ConditionVariable arrived;	/* a message to be taken */
	int			ncommits;
	MipCommit	commits[FLEXIBLE_ARRAY_MEMBER];
} MipMember;

/* NULL: no database of this server is replicated. */
extern MipMember *mip_member;

/* How far this replica is. In a transaction it is known, once mip_positions_load() was called. */
extern uint64 mip_member_applied(void);

/*
 * What this member knows of the log, and an id, for a message that is about to be sent: those
 * that come later have greater numbers. The caller has the lock exclusively.
 */
extern void mip_member_stamp(MipMessage *message);

/* In which order messages of this member have come */
static inline uint64
mip_message_order(const MipMessageId *id)
{
	return id->number - mip_member->start.number;
}

/* Errors out if there is no randomness. */
extern MipMessageId mip_draw_id(void);

extern void mip_member_init(void);
extern void mip_member_shmem_request(void);
extern void mip_member_shmem_startup(void);

/* Is this the replicated database of this server? The extension may not be there. */
extern bool mip_is_replicated(void);

/*
 * Is what this transaction changes published when it commits? Not if it applies what others
 * have done, until it ends.
 */
extern bool mip_publishes(void);
extern void mip_set_publishes(bool publishes);

/* Is one of this server replicated? */
extern bool mip_member_is_configured(void);

/* This member's name */
extern const char *mip_member_name(void);

/* Memory of all processes for messages */
extern dsa_area *mip_member_memory(void);

/* Of this process */
extern MipCommit *mip_my_commit(void);
extern PGPROC *mip_commit_proc(const MipCommit *commit);

/* Frees its message, if it has one; the caller has the lock exclusively. */
extern void mip_commit_set(MipCommit *commit, MipCommitState state);

/* A position is here: the caller has committed it; `own`: it was this commit. */
extern void mip_member_advance(const MipPosition *position, MipReplicationCounter what, MipCommit *own);

#endif							/* MIP_REPLICATION_MEMBER_H */
