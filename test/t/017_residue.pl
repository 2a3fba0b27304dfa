# A day's worth of families in a few minutes: siblings, out-of-line values,
# losers, errors, crashes, VACUUM with everything to be frozen in between.
# Nothing is left behind: tables, their TOAST tables and indexes and the MIPT
# are as large after twice as many rounds.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Few slots in the registry: a lost one would be missed soon.
my $node = mip_node(
	'residue',
	max_connections => 10,
	superuser_reserved_connections => 0,
	max_worker_processes => 2,
	max_wal_senders => 0,
	max_prepared_transactions => 6,
	vacuum_freeze_min_age => 0,
	vacuum_freeze_table_age => 0,
	vacuum_multixact_freeze_min_age => 0,
	vacuum_multixact_freeze_table_age => 0);

use constant { ROUNDS => 4, FAMILIES => 400, ROWS => 50 };

mip_sql(
	$node, q[
	CREATE TABLE parent (id int PRIMARY KEY, v int) USING mip;
	CREATE TABLE t (id int PRIMARY KEY, p int REFERENCES parent, v int,
		doc text, other text) USING mip;
	CREATE INDEX t_v ON t (v);
	ALTER TABLE t ALTER doc SET STORAGE external, ALTER other SET STORAGE external;
	INSERT INTO parent SELECT i, 0 FROM generate_series(0, 9) i;
	INSERT INTO t SELECT i, i % 10, 0, repeat('o', 6000), repeat('p', 5000)
		FROM generate_series(1, 50) i]);

# Every kind of write; attempt $k of family $x
sub writes
{
	my ($x, $k) = @_;
	my ($r, $s, $u) = map { 1 + ($x * 7 + $_ * 13) % ROWS } 0 .. 2;
	my $p = $x % 10;
	return "UPDATE t SET v = v + $k, doc = repeat('$k', 6000) WHERE id = $r;\n"
	  . "UPDATE t SET v = v + 1 WHERE id = $s;\n"
	  . "SAVEPOINT a; UPDATE t SET other = repeat('$k', 5000) WHERE id = $s; "
	  . ($x % 2 ? "ROLLBACK TO a; " : "") . "RELEASE a;\n"
	  . "UPDATE t SET other = repeat('x', 5000) WHERE id = $s;\n"
	  . "DELETE FROM t WHERE id = $u;\n"
	  . "INSERT INTO t VALUES ($u, $p, $k, repeat('n', 6000), repeat('m', 5000))"
	  . " ON CONFLICT (id) DO UPDATE SET v = 0;\n"
	  . "SELECT id FROM parent WHERE id = $p FOR SHARE;\n";
}

sub instance
{
	my ($x, $k, $end) = @_;
	return "BEGIN; SELECT mip.begin('x$x', $k);\n" . writes($x, $k) . "$end;\n";
}

my $prepare = q[SELECT * FROM mip.prepare(repeat('request ', 100), repeat('result ', 2000))];

# The script of family $x; it is forgotten twenty families later.
sub family
{
	my ($x) = @_;
	my $kind = $x % 7;
	my $script = '';

	if ($kind < 4)
	{
		# all prepared; the native updater or an overlay wins
		$script .= instance($x, $_, $prepare) for 1 .. 2 + $kind % 2;
		$script .= instance($x, 9, 'ROLLBACK');
		$script .= "SELECT * FROM mip.commit('x$x', " . (1 + int($kind / 2)) . ");\n";
	}
	elsif ($kind == 4)
	{
		$script .= instance($x, $_, $prepare) for 1, 2;
		$script .= "SELECT * FROM mip.rollback('x$x', $_);\n" for 1, 2;
	}
	elsif ($kind == 5)
	{
		$script .= instance($x, 1, "SELECT * FROM mip.commit_one_phase('', '')");
	}
	else
	{
		$script .= instance($x, 1, $prepare)
		  . "SELECT * FROM mip.rollback('x$x', 1);\n"
		  . instance($x, 2, $prepare)
		  . instance($x, 3, $prepare)
		  . "SELECT * FROM mip.commit('x$x', 3);\n";
	}
	return $script . "SELECT mip.forget('x" . ($x - 20) . "');\n";
}

my $x = 0;

sub run_script
{
	my ($script, $name) = @_;
	my $file = $node->basedir . '/script.sql';
	unlink $file;
	append_to_file($file, "SET client_min_messages = warning;\n" . $script);
	my $err = '';
	IPC::Run::run(
		[
			'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-d',
			$node->connstr('postgres')
		],
		'>', '/dev/null', '2>', \$err);
	is($err, '', $name);
	return;
}

# Families with active siblings: one ends in one phase, or loses.
sub active_siblings
{
	my %s = map { $_ => session($node, "instance $_") } 1, 2;
	for (1 .. 10)
	{
		$x++;
		for my $k (1, 2)
		{
			$s{$k}->sql('BEGIN');
			$s{$k}->sql("SELECT mip.begin('x$x', $k)");
			$s{$k}->sql(writes($x, $k));
		}
		if ($x % 2)
		{
			$s{2}->sql("SELECT * FROM mip.commit_one_phase('', '')");
		}
		else
		{
			$s{2}->sql($prepare);
			$s{2}->sql("SELECT * FROM mip.commit('x$x', 2)");
		}
		$s{1}->quit;
		$s{1} = session($node, 'instance 1');
	}
	$_->quit for values %s;
	return;
}

# Two instances are prepared; the commit of the second crashes at $point. The
# client never repeats it.
sub crashing_family
{
	my ($point) = @_;
	$x++;
	run_script(instance($x, 1, $prepare) . instance($x, 2, $prepare),
		"family $x");
	expect_crash($node, $point, "x$x", 2);
	return;
}

sub sizes
{
	return mip_sql(
		$node, q[
		SELECT relname, pg_relation_size(c.oid) / 8192,
			coalesce(pg_relation_size(nullif(reltoastrelid, 0)) / 8192, 0)
		FROM pg_class c WHERE relkind IN ('r', 'i')
			AND relname IN ('t', 't_pkey', 't_v', 'parent', 'parent_pkey', 'mipt', 'mipt_pkey')
		ORDER BY 1]);
}

# Every out-of-line value belongs to a row.
sub no_lost_chunks
{
	my ($name) = @_;
	my $toast = mip_sql($node,
		"SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 't'");
	is( mip_sql($node, "SELECT count(DISTINCT chunk_id), count(*) FROM $toast"),
		mip_sql(
			$node,
			q[SELECT count(doc) + count(other), sum(ceil(length(doc) / 1996.0)
				+ ceil(length(other) / 1996.0))::int FROM t]),
		"$name: out-of-line values");
	return;
}

my %pages;
for my $round (1 .. ROUNDS)
{
	my $name = "round $round";
	for my $half (1, 2)
	{
		my $script = '';
		$script .= family(++$x) for 1 .. FAMILIES / 2;
		run_script($script, "$name: families");
		active_siblings();

		# VACUUM with siblings prepared, which it must leave alone
		my $prepared = ++$x;
		run_script(
			instance($x, 1, $prepare) . instance($x, 2, $prepare),
			"$name: prepared");
		mip_sql($node, $half == 1 ? 'VACUUM' : 'VACUUM (FREEZE)');
		$half == 1 ? crash_server($node) : $node->stop;
		$node->start;
		mip_sql($node, "SELECT * FROM mip.commit('x$prepared', "
			  . (1 + $round % 2) . ')');
		crashing_family($half == 1 ? 'committed' : 'noted');
		mip_sql($node, 'VACUUM');
		no_lost_chunks("$name, after the crash");
	}
	# acknowledged; what the crashes left of book-keeping goes as well
	run_script(
		join('', map { "SELECT mip.forget('x$_');\n" } $x - FAMILIES - 100 .. $x),
		"$name: forgotten");
	is_decided($node, $name);
	is_released($node, $name);
	is(mip_sql($node, 'SELECT count(*) FROM mip.mipt'), '0', "$name: MIPT");
	mip_sql($node, 'VACUUM');
	no_lost_chunks($name);
	$pages{$round} = sizes();
	note "$name: $pages{$round}";

	my ($xid, $mxid) = split /\|/,
	  mip_sql($node,
		q[SELECT age(relfrozenxid), mxid_age(relminmxid) FROM pg_class WHERE relname = 't']);
	cmp_ok($xid, '<', 20, "$name: relfrozenxid follows");
	cmp_ok($mxid, '<', 20, "$name: relminmxid follows");
}

# Each relation and its TOAST table: not more than a few pages larger than it
# was after half of the rounds
my %half = map { my ($r, @n) = split /\|/; $r => \@n } split /\n/,
  $pages{ ROUNDS / 2 };
for (split /\n/, $pages{ ROUNDS() })
{
	my ($relation, @now) = split /\|/;
	for my $i (0, 1)
	{
		my $was = $half{$relation}[$i];
		cmp_ok($now[$i], '<=', $was * 1.1 + 2,
			"$relation: bounded ($was, $now[$i] pages)");
	}
}
is_sound($node, 'in the end');
mip_sql($node, "SELECT mip.disable(r) FROM unnest('{t,parent}'::regclass[]) r");
$node->command_ok(
	[ 'pg_amcheck', '--heapallindexed', '--parent-check', 'postgres' ],
	'pg_amcheck');

$node->stop;
done_testing();
