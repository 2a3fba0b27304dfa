/*-------------------------------------------------------------------------
 *
 * logical_decode.c
 *	  Keeping siblings apart in logical replication.
 *
 * A subscriber knows nothing of siblings. Given the changes of two of them
 * before it is known which one has won, it would let the second wait for the
 * first, and apply nothing any more: the decision, which would end the wait,
 * comes later in the stream. So an instance must reach a subscriber no
 * earlier than as a committed transaction, whatever the subscription says:
 *
 *	two_phase = on		a filter leaves instances out of what is decoded at
 *						PREPARE; they are decoded at COMMIT PREPARED
 *	streaming = parallel	there is no such filter; with the first instance,
 *						transactions are no longer streamed in progress,
 *						but for those that have begun to be
 *
 * Other modes of streaming are harmless: the subscriber puts what it receives
 * into files until it commits.
 *
 * Both are choices of the output plugin, here made for it. Each instance
 * begins with a record of ours (XLOG_MIP_BEGIN), for which this callback runs.
 * Decoding begins before a transaction's first record or ignores it altogether,
 * so no change or end of an instance is decoded before its begin, in whichever
 * process and however often decoding starts anew. That makes the filter's
 * answer depend on nothing but the gid, as it has to.
 *
 * A loser that is decoded after it has been rolled back could be a subscriber's
 * death. PostgreSQL 18, up to 18.6 (its bug #19616), drops the changes of an
 * aborted transaction where it would have streamed them or put them aside, and
 * marks its subtransactions as streamed then, whether anything was or not. Their
 * abort is sent to a subscriber that has never heard of them, nor of the
 * transaction, and need not have asked for streams: it crashes, and again when
 * it comes back. So no abort is sent of what was not streamed, in any release.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_subscription.h"
#include "replication/decode.h"
#include "replication/logical.h"
#include "replication/pgoutput.h"
#include "replication/reorderbuffer.h"

#include "base/compat.h"
#include "base/gid.h"
#include "heap/logical.h"

/* Of the output plugin in use; a process decodes for one at a time. */
static LogicalDecodeFilterPrepareCB plugin_filter;

static bool
filter_prepare(LogicalDecodingContext *ctx, TransactionId xid, const char *gid)
{
	return mip_gid_is_mip(gid) ||
		(plugin_filter != NULL && plugin_filter(ctx, xid, gid));
}

/* The buffer's callbacks, which ours stand in front of. */
static ReorderBufferStreamStartCB stream_start;
static ReorderBufferStreamStopCB stream_stop;
static ReorderBufferStreamAbortCB stream_abort;
static ReorderBufferStreamPrepareCB stream_prepare;
static ReorderBufferStreamCommitCB stream_commit;

static bool *
streaming(ReorderBuffer *buffer)
{
	return &((LogicalDecodingContext *) buffer->private_data)->streaming;
}

/*
 * Whoever says what of a transaction was streamed insists that streaming is on,
 * as it was when that began. The buffer's callbacks are called where no new
 * stream can begin.
 */
static void
go_on_stream(void (*callback) (ReorderBuffer *, ReorderBufferTXN *, XLogRecPtr),
			 ReorderBuffer *buffer, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	bool		was = *streaming(buffer);

	*streaming(buffer) = true;
	callback(buffer, txn, lsn);
	*streaming(buffer) = was;
}

static void
abort_streamed(ReorderBuffer *buffer, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	if (rbtxn_is_streamed(txn->toptxn ? txn->toptxn : txn))
		go_on_stream(stream_abort, buffer, txn, lsn);
}

static void
go_on_stream_start(ReorderBuffer *buffer, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	*streaming(buffer) = true;	/* until it stops */
	stream_start(buffer, txn, lsn);
}

static void
go_on_stream_stop(ReorderBuffer *buffer, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	stream_stop(buffer, txn, lsn);
	*streaming(buffer) = false;
}

static void
go_on_stream_prepare(ReorderBuffer *buffer, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	go_on_stream(stream_prepare, buffer, txn, lsn);
}

static void
go_on_stream_commit(ReorderBuffer *buffer, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	go_on_stream(stream_commit, buffer, txn, lsn);
}

/* Begins no further streams, and goes on with those that are under way. */
static void
stop_streaming(LogicalDecodingContext *ctx)
{
	ReorderBuffer *buffer = ctx->reorder;

	ctx->streaming = false;
	stream_start = buffer->stream_start;
	stream_stop = buffer->stream_stop;
	stream_prepare = buffer->stream_prepare;
	stream_commit = buffer->stream_commit;
	buffer->stream_start = go_on_stream_start;
	buffer->stream_stop = go_on_stream_stop;
	buffer->stream_prepare = go_on_stream_prepare;
	buffer->stream_commit = go_on_stream_commit;
}

static void
first_instance(LogicalDecodingContext *ctx)
{
	plugin_filter = ctx->callbacks.filter_prepare_cb;
	ctx->callbacks.filter_prepare_cb = filter_prepare;
	stream_abort = ctx->reorder->stream_abort;
	ctx->reorder->stream_abort = abort_streamed;
	if (MIP_STREAMS_IN_PARALLEL(ctx))
		stop_streaming(ctx);
}

void
mip_logical_decode(LogicalDecodingContext *ctx, XLogRecordBuffer *buf)
{
	ReorderBufferProcessXid(ctx->reorder, XLogRecGetXid(buf->record),
							buf->origptr);
	if (ctx->fast_forward)
		return;					/* nothing reaches a subscriber */
	if (ctx->callbacks.filter_prepare_cb != filter_prepare)
		first_instance(ctx);
}
