# Slots and what is in doubt. A slot that is made while instances are prepared waits
# for their decision, as for any transaction, and decodes what has begun since then,
# whole, if it is decided afterwards; so does a standby's own slot. A slot that fails over to a standby (from 17 on) goes on there: what was in doubt at the old
# primary is decided at the new one, and its subscriber gets each winner, whole and
# once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = mip_node('primary',
	allows_streaming => 'logical',
	autovacuum => 'off',
	logical_decoding_work_mem => '64kB');
my $sub = mip_node('subscriber', wal_retrieve_retry_interval => '100ms');

my $table = 'CREATE TABLE t (id int PRIMARY KEY, v int, pad text)';
mip_sql($primary, "$table USING mip; CREATE PUBLICATION p FOR TABLE t;"
	. " INSERT INTO t SELECT i, 0, repeat('p', 100) FROM generate_series(1, 2000) i");
mip_sql($sub, $table);

my @s = map { session($primary, "instance $_") } 1, 2;

# Two siblings change these rows. The second does so through the overlay.
sub prepare
{
	my ($xid, $which) = @_;
	$which //= 'true';
	for my $k (1, 2)
	{
		$s[ $k - 1 ]->sql("BEGIN; SELECT mip.begin('$xid', $k);"
			. " SAVEPOINT a; UPDATE t SET v = v + $k WHERE $which; RELEASE a");
	}
	$_->sql("SELECT * FROM mip.prepare('', '')") for @s;
	return;
}

my $rows = 'SELECT count(*), min(v), max(v) FROM t';
my $done = 0;

sub decide
{
	my ($node, $xid, $winner) = @_;
	mip_sql($node, "SELECT * FROM mip.commit('$xid', $winner)");
	$done += $winner;
	return;
}

sub is_replicated
{
	my ($node, $slot, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->wait_for_catchup($slot);
	is(mip_sql($_, $rows), "2000|$done|$done", "$name: " . $_->name)
	  for $node, $sub;
	return;
}

# ---- a slot that is made while instances are in doubt ----

for my $winner (1, 2)
{
	my $name = "in doubt meanwhile, winner $winner";
	my $conn = $primary->connstr . ' dbname=postgres';
	my $subscriber = session($sub, 'subscribes');

	prepare($name);
	mip_sql($sub, 'TRUNCATE t');
	$subscriber->send_sql("CREATE SUBSCRIPTION during CONNECTION '$conn' PUBLICATION p"
		. ' WITH (streaming = on)');
	ok( $primary->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%'"
			  . " AND wait_event = 'transactionid'"),
		"$name: the slot waits");
	decide($primary, $name, $winner);
	my (undef, $err) = $subscriber->finish;
	unlike($err, qr/ERROR/, "$name: and is made");
	$sub->wait_for_subscription_sync($primary, 'during');
	is_replicated($primary, 'during', $name);

	prepare("after $name");
	decide($primary, "after $name", 3 - $winner);
	is_replicated($primary, 'during', "after $name");
	mip_sql($sub, 'DROP SUBSCRIPTION during');
	$subscriber->quit;
}

# ---- stage by stage ----

# What slot "s" has decoded: how many rows of t, and what else but for the MIPT
sub decoded
{
	my ($node) = @_;
	return mip_sql($node,
		q[SELECT count(*) FILTER (WHERE data ~ '^table public.t: UPDATE') || ' rows',
			string_agg(data, ', ') FILTER (WHERE data !~ '^table (public.t: UPDATE|mip.mipt)')
		FROM pg_logical_slot_get_changes('s', NULL, NULL, 'include-xids', '0',
			'skip-empty-xacts', '1') WHERE data NOT IN ('BEGIN', 'COMMIT')]);
}

sub waits_for_prepared
{
	my ($s) = @_;
	return $s->waits_for('transactionid IN (SELECT transaction FROM pg_prepared_xacts)');
}

# It waits for what runs when it begins, then for what has begun until that has ended.
# It misses nothing of what begins while it waits for these, nor of what an ordinary
# prepared transaction does then.
mip_sql($primary, 'CREATE TABLE other (v int)');
for my $case ([ 'false', '' ], [ 'true', ", PREPARE TRANSACTION 'p', COMMIT PREPARED 'p'" ])
{
	my ($two_phase, $ends) = @$case;
	my $name = "two_phase = $two_phase";
	my $makes = session($primary, 'makes a slot');

	prepare("$name, first", 'id <= 500');
	$makes->send_sql("SELECT FROM"
		. " pg_create_logical_replication_slot('s', 'test_decoding', false, $two_phase)");
	ok(waits_for_prepared($makes), "$name: the slot waits");
	prepare("$name, second", 'id BETWEEN 501 AND 1000');
	mip_sql($primary, "SELECT * FROM mip.commit('$name, first', 2)");
	ok(waits_for_prepared($makes), "$name: and again");
	prepare("$name, third", 'id > 1000');
	mip_sql($primary, "BEGIN; INSERT INTO other VALUES (1); PREPARE TRANSACTION 'p'");
	mip_sql($primary, "SELECT * FROM mip.commit('$name, second', 2)");
	my (undef, $err) = $makes->finish;
	is($err, '', "$name: it is made");
	is(decoded($primary), '0 rows|', "$name: nothing of what it has waited for");
	mip_sql($primary, "SELECT * FROM mip.commit('$name, third', 2); COMMIT PREPARED 'p'");
	is(decoded($primary), "1000 rows|table public.other: INSERT: v[integer]:1$ends",
		"$name: all that has begun since");
	mip_sql($primary, "SELECT pg_drop_replication_slot('s')");
	$makes->quit;
}
mip_sql($primary, 'UPDATE t SET v = 0');
$done = 0;

if ($primary->pg_version < 17)
{
	$_->quit for @s;
	$sub->stop;
	$primary->stop;
	done_testing();
	exit;
}

mip_sql($primary, "SELECT pg_create_physical_replication_slot('standby')");
$primary->append_conf('postgresql.conf', "synchronized_standby_slots = 'standby'");
$primary->reload;
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
my $primary_conn = $primary->connstr . ' dbname=postgres';
$standby->append_conf(
	'postgresql.conf', qq[
	synchronized_standby_slots = ''
	hot_standby_feedback = on
	primary_slot_name = standby
	primary_conninfo = '$primary_conn'
	sync_replication_slots = off]);
$standby->start;

# ---- a standby's own slot ----

prepare('at the standby');
$primary->wait_for_catchup($standby);
my $makes = session($standby, 'makes a slot');
$makes->send_sql("SELECT FROM pg_create_logical_replication_slot('s', 'test_decoding')");
$makes->begun;
mip_sql($primary, 'SELECT pg_log_standby_snapshot()');
$primary->wait_for_catchup($standby);
is(mip_sql($standby, 'SELECT state FROM pg_stat_activity WHERE pid = ' . $makes->pid),
	'active', 'the slot waits at the standby');
decide($primary, 'at the standby', 2);
mip_sql($primary, 'SELECT pg_log_standby_snapshot()');
is(($makes->finish)[1], '', 'it is made at the standby');
prepare('after that');
decide($primary, 'after that', 2);
$primary->wait_for_catchup($standby);
is(decoded($standby), '2000 rows|', 'a standby decodes the winner');
mip_sql($standby, "SELECT pg_drop_replication_slot('s')");
$makes->quit;

# ---- a slot that fails over ----

mip_sql($sub, 'TRUNCATE t');
mip_sql($sub,
	"CREATE SUBSCRIPTION moves CONNECTION '$primary_conn' PUBLICATION p"
	  . ' WITH (two_phase = on, streaming = on, failover = true)');
$sub->wait_for_subscription_sync($primary, 'moves');
$sub->poll_query_until('postgres', "SELECT subtwophasestate = 'e' FROM pg_subscription")
  or die 'two_phase is not enabled';

# Its first synchronization waits, too.
prepare('first');
mip_sql($standby, 'ALTER SYSTEM SET sync_replication_slots = on');
$standby->reload;
sub syncs
{
	my ($how) = @_;
	return $standby->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_replication_slots"
		  . " WHERE slot_name = 'moves' AND synced AND $how");
}
ok(syncs('temporary'), 'the slot comes to the standby');
decide($primary, 'first', 2);
$primary->wait_for_catchup('moves');
mip_sql($primary, 'SELECT pg_log_standby_snapshot()');
ok(syncs('NOT temporary'), 'it stays there after the decision');

prepare('before');
decide($primary, 'before', 2);
is_replicated($primary, 'moves', 'before');

# decided, but not replicated
$sub->stop;
prepare('behind');
decide($primary, 'behind', 1);
prepare('in doubt');
$primary->wait_for_catchup($standby);
my $lsn = mip_sql($primary,
	"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'moves'");
$standby->poll_query_until('postgres',
	"SELECT confirmed_flush_lsn = '$lsn' FROM pg_replication_slots WHERE slot_name = 'moves'")
  or die 'the slot is not synchronized';

$s[$_]->quit for 0, 1;
crash_server($primary);
$standby->promote;
$sub->start;
my $conn = $standby->connstr . ' dbname=postgres';
mip_sql($sub, "ALTER SUBSCRIPTION moves CONNECTION '$conn'");
is_replicated($standby, 'moves', 'decided at the old primary');

decide($standby, 'in doubt', 2);
is_replicated($standby, 'moves', 'decided at the new primary');

@s = map { session($standby, "instance $_") } 1, 2;
prepare('new');
decide($standby, 'new', 1);
is_replicated($standby, 'moves', 'at the new primary');

is(mip_sql($sub, 'SELECT gid FROM pg_prepared_xacts'),
	'', 'no instance was prepared at the subscriber');

$_->quit for @s;
is_decided($standby, 'all');
is_sound($standby, 'all');
$sub->stop;
$standby->stop;
done_testing();
