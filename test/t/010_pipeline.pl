# Extended protocol and pipelines (pgbench speaks both): begin, writes, prepare
# and commit in one message after another without waiting for an answer.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = mip_node('pipeline');

sub set_up
{
	mip_sql(
		$node, q[
		DROP TABLE IF EXISTS counter, log;
		CREATE TABLE counter (id int PRIMARY KEY, v int) USING mip;
		INSERT INTO counter VALUES (1, 0);
		CREATE TABLE log (xid text PRIMARY KEY, k bigint) USING mip]);
	return;
}

# Runs a pgbench script $each times in 4 clients, maybe as a pipeline; :n counts
# its runs, :x is unique. Returns (exit code, stderr).
sub bench
{
	my ($mode, $pipeline, $each, $script) = @_;
	my $file = $node->basedir . '/script.sql';
	my ($start, $end) = $pipeline ? ("\\startpipeline\n", "\\endpipeline\n") : ('', '');
	unlink $file;
	append_to_file($file,
		"\\set n :n + 1\n\\set x :client_id * 1000000 + :n\n$start$script$end");
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(
		[
			'pgbench', '-n', '-M', $mode, '-c', 4, '-j', 2, '-t', $each, '-D',
			'n=0', '-f', $file, $node->connstr('postgres')
		],
		'>', \$out, '2>', \$err);
	note $out, $err;
	return ($ok ? 0 : 1, $err);
}

my $step = 0;
for my $mode ('simple', 'extended', 'prepared')
{
	for my $pipeline (0, 1)
	{
		next if $mode eq 'simple' && $pipeline;
		my $name = $mode . ($pipeline ? ', pipeline' : '');
		$step++;

		# one instance a family, prepare and commit
		set_up();
		my ($rc, $err) = bench(
			$mode, $pipeline, 50, qq[
BEGIN;
SELECT mip.begin('single $step-' || :x::text, 1);
UPDATE counter SET v = v + 1 WHERE id = 1;
INSERT INTO log VALUES (:x::text, 1);
SELECT * FROM mip.prepare('request', 'result');
SELECT * FROM mip.commit('single $step-' || :x::text, 1);
]);
		is($rc, 0, "$name: one instance");
		is(mip_sql($node, 'SELECT v, (SELECT count(*) FROM log) FROM counter'),
			'200|200', "$name: one instance, rows");

		# two of them on one connection; the second wins over an overlay
		set_up();
		($rc, $err) = bench(
			$mode, $pipeline, 25, qq[
BEGIN;
SELECT mip.begin('two $step-' || :x::text, 1);
UPDATE counter SET v = v + 1 WHERE id = 1;
INSERT INTO log VALUES (:x::text, 1);
SELECT * FROM mip.prepare('request', 'result');
BEGIN;
SELECT mip.begin('two $step-' || :x::text, 2);
UPDATE counter SET v = v + 1 WHERE id = 1;
INSERT INTO log VALUES (:x::text, 2);
SELECT * FROM mip.prepare('request', 'result');
SELECT * FROM mip.commit('two $step-' || :x::text, 2);
]);
		is($rc, 0, "$name: two siblings");
		is( mip_sql($node,
				'SELECT v, (SELECT count(*) FROM log),'
				  . ' (SELECT count(*) FROM log WHERE k = 2) FROM counter'),
			'100|100|100',
			"$name: two siblings, rows");

		# one phase
		set_up();
		($rc, $err) = bench(
			$mode, $pipeline, 50, qq[
BEGIN;
SELECT mip.begin('one phase $step-' || :x::text, 1);
UPDATE counter SET v = v + 1 WHERE id = 1;
INSERT INTO log VALUES (:x::text, 1);
SELECT * FROM mip.commit_one_phase('request', 'result');
]);
		is($rc, 0, "$name: one phase");
		is(mip_sql($node, 'SELECT v, (SELECT count(*) FROM log) FROM counter'),
			'200|200', "$name: one phase, rows");

		# begun without BEGIN, by the functions for drivers
		set_up();
		($rc, $err) = bench(
			$mode, $pipeline, 50, qq[
SELECT mip.start('start $step-' || :x::text, 1);
UPDATE counter SET v = v + 1 WHERE id = 1;
INSERT INTO log VALUES (:x::text, 1);
SELECT mip.prepare_beside('request', 'result');
SELECT mip.commit_beside('start $step-' || :x::text, 1);
]);
		is($rc, 0, "$name: mip.start");
		is(mip_sql($node, 'SELECT v, (SELECT count(*) FROM log) FROM counter'),
			'200|200', "$name: mip.start, rows");

		# the commit of one goes with the beginning of the next one
		if ($pipeline)
		{
			set_up();
			($rc, $err) = bench(
				$mode, $pipeline, 50, qq[
\\set later :n > 1
\\if :later
SELECT * FROM mip.commit('rides $step-' || (:x - 1)::text, 1);
\\endif
BEGIN;
SELECT mip.begin('rides $step-' || :x::text, 1);
INSERT INTO log VALUES (:x::text, 1);
SELECT * FROM mip.prepare('request', 'result');
]);
			is($rc, 0, "$name: a commit with the next begin");
			is(mip_sql($node, 'SELECT count(*), (SELECT count(*) FROM log) FROM mip.in_doubt'),
				'4|196', "$name: a commit with the next begin, rows");
			mip_sql($node, "SELECT * FROM mip.commit('$_', 1)")
			  for split /\n/, mip_sql($node, 'SELECT xid FROM mip.in_doubt');
			is(mip_sql($node, 'SELECT count(*) FROM log'),
				'200', "$name: a commit with the next begin, all rows");
		}

		# a statement fails: what follows in the pipeline is skipped
		set_up();
		($rc, $err) = bench(
			$mode, $pipeline, 1, qq[
BEGIN;
SELECT mip.begin('fails $step-' || :x::text, 1);
INSERT INTO log VALUES (:x::text, 1);
SELECT 1 / (1 - mod(:n, 2));
SELECT * FROM mip.prepare('request', 'result');
SELECT * FROM mip.commit('fails $step-' || :x::text, 1);
]);
		isnt($rc, 0, "$name: a failing statement");
		like($err, qr/division by zero/, "$name: a failing statement, error");
		is(mip_sql($node, 'SELECT count(*) FROM log'),
			'0', "$name: a failing statement, rows");

		# commit behind a statement of an implicit transaction
		if ($pipeline)
		{
			mip_sql(
				$node, qq[BEGIN; SELECT mip.begin('behind $step', 1);
				INSERT INTO log VALUES ('behind', 1);
				SELECT * FROM mip.prepare('', '')]);
			($rc, $err) = bench(
				$mode, $pipeline, 1, qq[
INSERT INTO log VALUES (:client_id::text, 0);
SELECT * FROM mip.commit('behind $step', 1);
]);
			isnt($rc, 0, "$name: mip.commit behind another statement");
			like($err, qr/cannot (?:run|be executed) (?:inside a transaction block|within a pipeline)/,
				"$name: mip.commit behind another statement, error");
			mip_sql($node, "SELECT * FROM mip.commit('behind $step', 1)");
			is(mip_sql($node, 'SELECT xid FROM log'),
				'behind', "$name: mip.commit behind another statement, rows");
		}
		is_decided($node, $name);
	}
}
is_sound($node, 'pipelines');

$node->stop;
done_testing();
