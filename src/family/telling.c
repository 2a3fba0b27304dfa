/*-------------------------------------------------------------------------
 *
 * telling.c
 *	  Telling a client of an error, which may not read it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <sys/socket.h>

#include "access/xact.h"
/* of a Port we need what comes first in it, and no other library's headers */
#undef ENABLE_GSS
#undef USE_OPENSSL
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "utils/elog.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "family/current.h"
#include "family/family.h"
#include "family/telling.h"

/* So often does who tells its client of an error look whether it is to end. */
#define LOOK_UP_MS		100

/*
 * Nor does it go on telling once it is doomed, though nobody ends its session: who has
 * tried may have given up (mip_evict_doomed, after less than this), or have seen it at the
 * family lock.
 */
#define MOST_LOOKS		30

static bool
nobody(void)
{
	return false;
}

static bool (*also) (void) = nobody;

static TimeoutId look_up_timeout = MAX_TIMEOUTS;
static volatile sig_atomic_t looks;
static emit_log_hook_type prev_emit_log_hook;

/* In a signal handler. What is being sent fails then, so the abort is reached. */
static void
hang_up_if_to_end(void)
{
	if (ProcDiePending || (mip_in_transaction() && mip_mine.inst->doomed && ++looks > MOST_LOOKS))
		(void) shutdown(MyProcPort->sock, SHUT_RDWR);
}

static void
watch(void)
{
	looks = 0;
	if (look_up_timeout == MAX_TIMEOUTS)
		look_up_timeout = RegisterTimeout(USER_TIMEOUT, hang_up_if_to_end);
	enable_timeout_every(look_up_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOOK_UP_MS),
						 LOOK_UP_MS);
}

/*
 * Whose transaction has been aborted, or who has none, holds nothing up. Nor would there be
 * an abort that ends the watch.
 */
static bool
may_hold_up(void)
{
	return mip_in_transaction() ||
		(IsTransactionOrTransactionBlock() &&
		 (GetCurrentTransactionNestLevel() > 1 || !IsAbortedTransactionBlockState()) && also());
}

static void
emit_log(ErrorData *edata)
{
	if (edata->elevel >= ERROR && MyProcPort != NULL && may_hold_up())
		watch();
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

void
mip_telling_also(bool (*who) (void))
{
	also = who;
}

void
mip_telling_done(void)
{
	if (look_up_timeout != MAX_TIMEOUTS)
		disable_timeout(look_up_timeout, false);
}

void
mip_telling_init(void)
{
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = emit_log;
}
