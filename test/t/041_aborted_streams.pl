# A loser that is decoded only after the decision is nothing to a subscriber, large
# and with subtransactions as it may be. PostgreSQL 18, up to 18.6, tells subscribers
# of the abort of subtransactions of which they have never heard, whether they take
# streams or not, and crashes them by it, or itself if it has assertions.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $pub = mip_node('publisher',
	allows_streaming => 'logical',
	wal_level => 'logical',
	logical_decoding_work_mem => '64kB');
my $sub = mip_node('subscriber',
	max_worker_processes => 24,
	max_logical_replication_workers => 16,
	wal_retrieve_retry_interval => '100ms');

mip_sql($pub,
	'CREATE TABLE t (id int PRIMARY KEY, v text) USING mip;'
	  . ' CREATE PUBLICATION p FOR TABLE t');

# The largest is what is put aside: the subtransaction, or the transaction above
# one that is smaller than what is allowed.
my %losers = (
	'large below' => [ 2000, 1 ],
	'large above' => [ 100, 2000 ]);

sub writes
{
	my ($below, $above) = @_;
	return qq[SAVEPOINT a;
		INSERT INTO t SELECT i, repeat('b', 100) FROM generate_series(1, $below) i;
		RELEASE a;
		INSERT INTO t SELECT 10000 + i, repeat('a', 100) FROM generate_series(1, $above) i];
}

# Losers with these writes, each beside a winner, and ordinary transactions that
# are rolled back: prepared and not.
sub lose
{
	my ($name) = @_;
	my @s = map { session($pub, $_) } 'loser', 'winner';

	for my $case (sort keys %losers)
	{
		my $xid = "$name, $case";
		my $writes = writes(@{ $losers{$case} });

		$s[0]->sql("BEGIN; SELECT mip.begin('$xid', 1); $writes");
		$s[1]->sql("BEGIN; SELECT mip.begin('$xid', 2); INSERT INTO t VALUES (-1, '$case')"
			. " ON CONFLICT (id) DO UPDATE SET v = excluded.v");
		$_->sql("SELECT * FROM mip.prepare('', '')") for @s;
		mip_sql($pub, "SELECT * FROM mip.commit('$xid', 2)");
		mip_sql($pub, "BEGIN; $writes; ROLLBACK");
		mip_sql($pub, "BEGIN; $writes; PREPARE TRANSACTION 'p'");
		mip_sql($pub, "ROLLBACK PREPARED 'p'");
	}
	$_->quit for @s;
	return;
}

# ---- what is sent ----

my %options = (
	off => q['proto_version', '1'],
	on => q['proto_version', '2', 'streaming', 'on']);
$options{parallel} = q['proto_version', '4', 'streaming', 'parallel']
  if $pub->pg_version >= 16;
my @streaming = sort keys %options;

# B: begin, C: commit; S: a stream begins, A and c: it is aborted and committed;
# a stream's messages begin with the transaction's id
mip_sql($pub, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
lose('sent');
for my $streaming (@streaming)
{
	is( mip_sql(
			$pub, qq[
		WITH m AS (
			SELECT n, chr(get_byte(data, 0)) AS what, substr(data, 2, 4) AS xid
			FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,
				'publication_names', 'p', $options{$streaming}) WITH ORDINALITY c (l, x, data, n))
		SELECT string_agg(what, '' ORDER BY n) FROM m
		WHERE what IN ('B', 'C', 'c') OR (what = 'A' AND NOT EXISTS (
			SELECT FROM m s WHERE s.what = 'S' AND s.xid = m.xid AND s.n < m.n))]),
		'BCBC',
		"streaming = $streaming: winners, and no abort of what was not streamed");
}
mip_sql($pub, "SELECT pg_drop_replication_slot('s')");

# ---- another plugin ----

mip_sql($pub, "SELECT pg_create_logical_replication_slot('s', 'test_decoding')");
lose('test_decoding');
for my $stream (0, 1)
{
	is( mip_sql(
			$pub, qq[
		SELECT string_agg(left(data, 15), ', ') FROM
			pg_logical_slot_peek_changes('s', NULL, NULL, 'include-xids', '0',
				'skip-empty-xacts', '1', 'stream-changes', '$stream')
		WHERE data !~ '^(opening|streaming|closing|aborting) ']),
		'BEGIN, table public.t:, COMMIT, BEGIN, table public.t:, COMMIT',
		"test_decoding, stream-changes = $stream");
}
mip_sql($pub, "SELECT pg_drop_replication_slot('s')");

# ---- who gets it ----

my $conn = $pub->connstr . ' dbname=postgres';
for my $streaming (@streaming)
{
	mip_sql($sub, "CREATE DATABASE db_$streaming");
	$sub->safe_psql("db_$streaming", 'CREATE TABLE t (id int PRIMARY KEY, v text)');
	$sub->safe_psql("db_$streaming",
		"CREATE SUBSCRIPTION s_$streaming CONNECTION '$conn' PUBLICATION p"
		  . " WITH (streaming = $streaming)");
	$sub->wait_for_subscription_sync($pub, "s_$streaming", "db_$streaming");
}

$sub->stop;
lose('away');
$sub->start;
for my $streaming (@streaming)
{
	$pub->wait_for_catchup("s_$streaming");
	is($sub->safe_psql("db_$streaming", 'SELECT * FROM t'),
		'-1|large below', "streaming = $streaming: the subscriber has the winner's row");
}
# ---- half streamed ----

# What begins behind the streamed half is not known to the subscriber either.
my $loser = session($pub, 'loser');
$loser->sql("BEGIN; SELECT mip.begin('half', 1); INSERT INTO t"
	. " SELECT i, repeat('h', 100) FROM generate_series(50001, 52000) i");
$pub->poll_query_until('postgres',
	"SELECT stream_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = 's_on'")
  or die 'nothing is streamed';
my $sender = mip_sql($pub,
	"SELECT active_pid FROM pg_replication_slots WHERE slot_name = 's_on'");
kill 'STOP', $sender;
$loser->sql(writes(@{ $losers{'large above'} }));
$loser->sql("SELECT * FROM mip.prepare('', '')");
$loser->quit;
mip_sql($pub, "SELECT * FROM mip.rollback('half', 1); INSERT INTO t VALUES (-2, 'after')");
kill 'CONT', $sender;
$pub->wait_for_catchup('s_on');
is($sub->safe_psql('db_on', 'SELECT * FROM t ORDER BY id'),
	"-2|after\n-1|large below", 'a loser of which a half was streamed');

unlike(slurp_file($_->logfile), qr/TRAP|terminated by signal/, $_->name . ' lives')
  for $pub, $sub;

$sub->stop;
$pub->stop;
done_testing();
