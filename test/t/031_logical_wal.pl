# What overlay changes log with wal_level = logical replays as what they do on
# pages: an insertion, or nothing. After a crash and on a standby, with and
# without full-page images, rows, visibility map and free space map are as they
# should be. A new primary can be decoded although instances are prepared.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Redo takes the stub's page for the new version's if their numbers are equal.
# The stub's for a small table:
use constant STUB => 4;

my $primary = mip_node(
	'primary',
	extra => ['--data-checksums'],
	allows_streaming => 1,
	wal_level => 'logical',
	wal_consistency_checking => 'all',
	log_checkpoints => 'off');
mip_sql($primary,
	'CREATE EXTENSION pg_visibility;'
	  . ' CREATE EXTENSION pg_walinspect');
my $standby = standby_of($primary, 'standby');

# Eight rows a page; the last page is STUB, and has room.
sub fill_pages
{
	my $rows = 8 * STUB + 3;
	mip_sql(
		$primary, qq[
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS w;
		CREATE TABLE w (id int PRIMARY KEY, v int, pad text) USING mip;
		ALTER TABLE w ALTER pad SET STORAGE plain;
		INSERT INTO w SELECT i, 0, repeat('p', 900) FROM generate_series(1, $rows) i;
		VACUUM (FREEZE) w;]);
	return;
}

# Instance 1 leaves the page STUB alone; an overlay's first version goes there
# and is the first to make it less than all-visible. Others go to new pages,
# which they initialize.
my @sql = (
	'DELETE FROM w WHERE id <= 8 * ' . STUB,
	'UPDATE w SET v = v + 2 WHERE id BETWEEN 3 AND 20; DELETE FROM w WHERE id = 2',
	'DELETE FROM w WHERE id < 30; UPDATE w SET v = v + 3');

sub prepare
{
	my ($xid) = @_;
	my @s = map { session($primary, "instance $_") } 1 .. @sql;

	fill_pages();
	mip_sql($primary, 'CHECKPOINT');
	for my $k (1 .. @sql)
	{
		$s[ $k - 1 ]->sql("BEGIN; SELECT mip.begin('$xid', $k)");
		$s[ $k - 1 ]->sql($sql[ $k - 1 ]);
	}
	is( $s[1]->sql('SELECT min(ctid) FROM w WHERE v = 2'),
		'(' . STUB . ',4)',
		'a new version is where its stub would be');
	for my $s (@s)
	{
		$s->sql("SELECT * FROM mip.prepare('', '')");
		$s->quit;
	}
	return;
}

my $rows = 'SELECT id, v FROM w ORDER BY id';
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off;'
  . ' SELECT count(*), sum(id) FROM w WHERE id > -100';
my $by_heap = 'SET enable_indexscan = off; SET enable_bitmapscan = off;'
  . ' SET enable_indexonlyscan = off; SELECT count(*), sum(id) FROM w WHERE id > -100';

sub is_replayed
{
	my ($expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	catch_up($primary, $standby);
	for my $node ($primary, $standby)
	{
		my $at = "$name: " . $node->name;
		is(mip_sql($node, $rows), $expected, "$at: rows");
		is(mip_sql($node, $by_index), mip_sql($node, $by_heap),
			"$at: index-only scan");
	}
	is(mip_sql($primary, "SELECT * FROM $_('w')"), '', "$name: $_")
	  for qw(pg_check_visible pg_check_frozen);
	is( mip_sql($standby, "SELECT * FROM pg_visibility('w')"),
		mip_sql($primary, "SELECT * FROM pg_visibility('w')"),
		"$name: the same visibility map at the standby");
	return;
}

for my $case (
	[ 'full_page_writes on', full_page_writes => 'on', wal_compression => 'off' ],
	[ 'full_page_writes off', full_page_writes => 'off', wal_compression => 'off' ],
	[ 'images compressed', full_page_writes => 'on', wal_compression => 'pglz' ])
{
	my ($how, %conf) = @$case;
	mip_sql($primary, "ALTER SYSTEM SET $_ = $conf{$_}") for sort keys %conf;
	mip_sql($primary, 'SELECT pg_reload_conf()');

	for my $winner (1 .. @sql)
	{
		my $name = "$how, winner $winner";

		fill_pages();
		my $before = mip_sql($primary, $rows);
		mip_sql($primary, $sql[ $winner - 1 ]);
		my $after = mip_sql($primary, $rows);

		prepare($name);
		is_replayed($before, "$name, prepared");
		$primary->stop('immediate');
		$primary->start;
		is_replayed($before, "$name, after a crash");
		expect_crash($primary, 'handed over', $name, $winner);
		mip_sql($primary, "SELECT * FROM mip.commit('$name', $winner)");
		is_replayed($after, "$name, decided");
		$primary->stop('immediate');
		$primary->start;
		is_replayed($after, "$name, decided, after a crash");
		is_decided($primary, $name);
		is_sound($primary, $name);
	}
}

# The free space map takes no harm from stubs: it is small, and is used.
fill_pages();
mip_sql($primary, "SELECT mip.forget('full_page_writes on, winner 1')");
cmp_ok(mip_sql($primary, "SELECT pg_relation_size('w', 'fsm')"),
	'<=', 8 * 8192, 'the free space map does not grow');
mip_sql($primary, 'DELETE FROM w WHERE id > 8; VACUUM w;');
mip_sql($primary,
	"INSERT INTO w SELECT i, 0, repeat('p', 900) FROM generate_series(9, 16) i");
is(mip_sql($primary, "SELECT pg_relation_size('w') / 8192"),
	2, 'space is found again');

# What a stub costs: not a page
fill_pages();
my ($one, $two) = map { session($primary, "instance $_") } 1, 2;
mip_sql($primary, "ALTER SYSTEM SET wal_consistency_checking = ''");
mip_sql($primary, 'SELECT pg_reload_conf()');
$one->sql("BEGIN; SELECT mip.begin('cost', 1)");
$one->sql('UPDATE w SET v = 1');
my $from = mip_sql($primary, 'SELECT pg_current_wal_insert_lsn()');
$two->sql("BEGIN; SELECT mip.begin('cost', 2)");
$two->sql('DELETE FROM w WHERE id > 8; UPDATE w SET v = 2');
$two->sql("SELECT * FROM mip.prepare('', '')");
my $to = mip_sql($primary, 'SELECT pg_current_wal_flush_lsn()');
my %size = map { split /\|/ } split /\n/,
  mip_sql(
	$primary, qq[SELECT rtrim(record_type, '+INT'), min(record_length)
	FROM pg_get_wal_records_info('$from', '$to')
	WHERE resource_manager = 'Heap' AND record_type ~ '^(UPD|DEL)' GROUP BY 1]);
cmp_ok($size{DELETE}, '<', 120, 'length of a delete record');
cmp_ok($size{UPDATE}, '<', 1100, 'length of an update record');
$one->sql('ROLLBACK');
$_->quit for $one, $two;
mip_sql($primary, "SELECT * FROM mip.rollback('cost', 2)");

# ---- decoding at a new primary ----

prepare('failover');
catch_up($primary, $standby);
crash_server($primary);
$standby->promote;
my $slot = session($standby, 'slot');
$slot->send_sql(
	"SELECT 'made' FROM pg_create_logical_replication_slot('s', 'test_decoding')");
ok($slot->waits, 'promoted: a slot waits for prepared instances');
mip_sql($standby, "SELECT * FROM mip.commit('failover', 3)");
is(($slot->finish)[0], 'made', 'promoted: and for no more');
$slot->quit;
my @s = map { session($standby, "instance $_") } 1, 2;
for my $k (1, 2)
{
	$s[ $k - 1 ]->sql("BEGIN; SELECT mip.begin('next', $k)");
	$s[ $k - 1 ]->sql("UPDATE w SET v = 10 * $k, pad = '' WHERE id = 30");
}
$_->sql("SELECT * FROM mip.prepare('', '')") for @s;
$_->quit for @s;
mip_sql($standby, "SELECT * FROM mip.commit('next', 2)");
is( mip_sql(
		$standby,
		q[SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)
		WHERE data LIKE 'table public%']),
	q[table public.w: UPDATE: id[integer]:30 v[integer]:20 pad[text]:''],
	'promoted: changes are decoded');
is_decided($standby, 'promoted');
is_sound($standby, 'promoted');

unlike(slurp_file($_->logfile), qr/inconsistent page|PANIC:  (?!pg_mip: stopped)|TRAP|redo.*FATAL/,
	$_->name . ': replayed pages are as they were')
  for $primary, $standby;
$standby->stop;
done_testing();
