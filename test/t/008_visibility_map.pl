# The visibility map knows nothing of an overlay: a base version that T' has
# replaced may be on an all-visible page once T is gone. T' must not get it
# from an index-only scan, a bitmap count or a parallel worker.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('visibility');
mip_sql($node, 'CREATE EXTENSION pg_visibility');

my @queries = (
	[ 'index-only scan', 'SET LOCAL enable_seqscan = off;'
		  . ' SET LOCAL enable_bitmapscan = off' ],
	[ 'bitmap scan', 'SET LOCAL enable_seqscan = off;'
		  . ' SET LOCAL enable_indexscan = off' ],
	[ 'sequential scan', 'SET LOCAL enable_indexscan = off;'
		  . ' SET LOCAL enable_bitmapscan = off' ],
	[ 'parallel scan', 'SET LOCAL enable_indexscan = off;'
		  . ' SET LOCAL enable_bitmapscan = off;'
		  . ' SET LOCAL parallel_setup_cost = 0;'
		  . ' SET LOCAL parallel_tuple_cost = 0;'
		  . ' SET LOCAL min_parallel_table_scan_size = 0;'
		  . ' SET LOCAL max_parallel_workers_per_gather = 4;'
		  . ' SET LOCAL force_parallel_mode = on' ],
	[ 'parallel index scan', 'SET LOCAL enable_seqscan = off;'
		  . ' SET LOCAL enable_bitmapscan = off;'
		  . ' SET LOCAL parallel_setup_cost = 0;'
		  . ' SET LOCAL parallel_tuple_cost = 0;'
		  . ' SET LOCAL min_parallel_index_scan_size = 0;'
		  . ' SET LOCAL max_parallel_workers_per_gather = 4' ]);
# PostgreSQL 16 renamed it
if ($node->pg_version >= 16)
{
	$_->[1] =~ s/force_parallel_mode/debug_parallel_query/ for @queries;
}

sub reads
{
	my ($s, $count, $sum, $name) = @_;
	for my $query (@queries)
	{
		my ($plan, $settings) = @$query;
		$s->sql('SAVEPOINT q');
		$s->sql($settings);
		is($s->sql('SELECT count(*) FROM t WHERE v >= 0'),
			$count, "$name: count by $plan");
		is($s->sql('SELECT sum(v) FROM t WHERE v >= 0'),
			$sum, "$name: sum by $plan");
		is($s->sql('SELECT count(*) FROM t WHERE v = 5'),
			'0', "$name: replaced key by $plan");
		is($s->sql('EXECUTE counted'), $count, "$name: prepared, $plan");
		$s->sql('ROLLBACK TO q; RELEASE q');
	}
	return;
}

sub start
{
	my ($name, $xid) = @_;
	my %s = map { $_ => session($node, "instance $_") } 1, 2;

	mip_sql(
		$node, q[
		DROP TABLE IF EXISTS t;
		CREATE TABLE t (id int PRIMARY KEY, v int, filler text) USING mip;
		CREATE INDEX t_v ON t (v);
		INSERT INTO t SELECT i, i, repeat('x', 20) FROM generate_series(1, 2000) i;
		VACUUM (ANALYZE) t]);
	# plans made before there is an overlay
	$s{2}->sql('PREPARE counted AS SELECT count(*) FROM t WHERE v >= 0');
	$s{2}->sql('SET plan_cache_mode = force_generic_plan');
	$s{2}->sql('SET enable_seqscan = off; EXECUTE counted; RESET enable_seqscan');
	for my $k (1, 2)
	{
		$s{$k}->sql('BEGIN');
		$s{$k}->sql("SELECT mip.begin('$xid', $k)");
		# 2,000 rows: 1 changes all of them, 2 changes 1,000 and deletes 100
		$s{$k}->sql('UPDATE t SET v = v + 10000 WHERE id <= 1000');
		$s{$k}->sql('DELETE FROM t WHERE id > 1900');
	}
	return %s;
}

my $sum = mip_sql($node,
	'SELECT (SELECT sum(i) FROM generate_series(1, 1900) i) + 1000 * 10000');

for my $how ('rolls back', 'is terminated', 'is rolled back prepared')
{
	my $xid = "map, $how";
	my %s = start($how, $xid);
	my $name = "T $how";

	reads($s{2}, 1900, $sum, "$name: T there");
	if ($how eq 'rolls back')
	{
		$s{1}->sql('ROLLBACK');
	}
	elsif ($how eq 'is terminated')
	{
		my $pid = $s{1}->pid;
		mip_sql($node, "SELECT pg_terminate_backend($pid, 10000)");
	}
	else
	{
		$s{1}->sql("SELECT * FROM mip.prepare('', '')");
		mip_sql($node, "SELECT * FROM mip.rollback('$xid', 1)");
	}
	mip_sql($node, 'VACUUM t');
	mip_sql($node, 'VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t');
	cmp_ok(
		mip_sql($node,
			"SELECT count(*) FROM pg_visibility_map('t') WHERE all_visible"),
		'>', 0, "$name: there are all-visible pages with replaced versions");
	reads($s{2}, 1900, $sum, "$name: T gone");

	# outsiders see the rows as they were
	is( mip_sql($node,
			'SET enable_seqscan = off; SELECT count(*), sum(v) FROM t WHERE v >= 0'),
		'2000|2001000',
		"$name: outsiders");
	$s{2}->sql("SELECT * FROM mip.commit_one_phase('', '')");
	is( mip_sql($node,
			'SET enable_seqscan = off; SET enable_bitmapscan = off;'
			  . ' SELECT count(*), sum(v) FROM t WHERE v >= 0'),
		"1900|$sum",
		"$name: outsiders, by index-only scan, after the commit");
	is(mip_sql($node, 'SELECT count(*), sum(v) FROM t'),
		"1900|$sum", "$name: outsiders, by sequential scan, after the commit");
	is(mip_sql($node, q[SELECT count(*) FROM pg_check_visible('t')]),
		'0', "$name: the map is right");
	$_->quit for values %s;
	is_sound($node, $name);
}

# ---- the same through autovacuum, with both prepared in the end ----

{
	my $xid = 'autovacuum';
	my %s = start($xid, $xid);
	$s{1}->sql("SELECT * FROM mip.prepare('', '')");
	$node->append_conf('postgresql.conf',
		"autovacuum = on\nautovacuum_naptime = 1\nautovacuum_vacuum_threshold = 1\n"
		  . "autovacuum_vacuum_scale_factor = 0");
	$node->reload;
	mip_sql($node, "SELECT * FROM mip.rollback('$xid', 1)");
	$node->poll_query_until('postgres',
		"SELECT autovacuum_count > 0 FROM pg_stat_user_tables WHERE relname = 't'");
	reads($s{2}, 1900, $sum, 'autovacuum');
	$s{2}->sql("SELECT * FROM mip.prepare('', '')");
	my $s3 = session($node, 'instance 3');
	$s3->sql('BEGIN');
	$s3->sql("SELECT mip.begin('$xid', 3)");
	$s3->sql("UPDATE t SET v = 0 WHERE id <= 10");
	is($s3->sql('SET LOCAL enable_seqscan = off; SELECT count(*) FROM t WHERE v = 0'),
		'10', 'autovacuum: a third instance');
	$s3->sql('ROLLBACK');
	mip_sql($node, "SELECT * FROM mip.commit('$xid', 2)");
	is(mip_sql($node, 'SELECT count(*), sum(v) FROM t'),
		"1900|$sum", 'autovacuum: after the commit');
	$_->quit for $s3, values %s;
	$node->append_conf('postgresql.conf', 'autovacuum = off');
	$node->reload;
	is_decided($node, 'autovacuum');
	is_sound($node, 'autovacuum');
}

$node->stop;
done_testing();
