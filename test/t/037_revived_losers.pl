# A crash can lose a loser's roll-back and keep the hint that its MIPT entry is
# dead, which waits for no flush. Whoever commits the winner ends it for good.
# [one-winner]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node(
	'revived',
	max_prepared_transactions => 20,
	wal_writer_delay => '10s',
	shared_buffers => '1MB',
	bgwriter_lru_maxpages => 0,
	checkpoint_timeout => '1h',
	full_page_writes => 'off',
	'mip.push_after' => 0);

# Other pages take the place of all that can be written without a flush.
sub evict_all
{
	mip_sql($node,
		'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;'
		  . 'SELECT count(v) FROM filler WHERE id > 0;' x 7);
	return;
}

mip_sql(
	$node, q[
	CREATE TABLE filler (id int PRIMARY KEY, v text) USING heap WITH (fillfactor = 10);
	INSERT INTO filler SELECT i, repeat('x', 900) FROM generate_series(1, 400) i]);

for my $case ([ 'on', 'losers' ], [ 'off', 'committed' ])
{
	my ($setting, $point) = @$case;
	my $xid = "revived-$setting";
	my $name = "mip.synchronous_commit_prepared = $setting";

	mip_sql($node, 'DROP TABLE IF EXISTS t; CREATE TABLE t (n int) USING mip');
	mip_sql($node, 'VACUUM FREEZE');
	mip_sql($node, 'CHECKPOINT');
	prepare_one($node, $xid, $_, "INSERT INTO t VALUES ($_)") for 1, 2;
	evict_all();

	my $gate = session($node, 'gate');
	$gate->sql('SELECT pg_advisory_lock(1)');
	my $committer = session($node, 'committer');
	$committer->sql("SET mip.synchronous_commit_prepared = $setting");
	$committer->sql("SET mip.debug_stop_at = 'wait:$point'");
	hold_walwriter($node);
	$committer->send_sql("SELECT * FROM mip.commit('$xid', 2)");
	my $pid = $committer->pid;
	ok( $node->poll_query_until(
			'postgres',
			"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"),
		"$name: stops");
	mip_sql($node, 'SELECT count(*) FROM mip.mipt');    # anybody looks
	evict_all();
	crash_server($node);
	$_->quit for $committer, $gate;
	$node->start;

	is(mip_sql($node, 'SELECT count(*) FROM pg_prepared_xacts'),
		2, "$name: both are prepared again");
	mip_sql($node, "SELECT * FROM mip.commit('$xid', 2)");
	is(mip_sql($node, 'SELECT count(*) FROM pg_prepared_xacts'),
		0, "$name: nothing stays prepared");
	is(states($node, $xid), '1 aborted, 2 committed', "$name: decided");
	is(mip_sql($node, 'SELECT n FROM t'), 2, "$name: rows");
}

done_testing();
