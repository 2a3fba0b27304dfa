# A function that locks a table, and keeps the lock, without a statement that says
# so and without a transaction id: no instance has such a lock once its statement
# has ended, so siblings do not wait for it. [siblings-never-wait]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = mip_node('kept_locks');
my $module = module($node, 'keeper', <<'C');
#include "fmgr.h"
#include "storage/lmgr.h"

PG_FUNCTION_INFO_V1(keep_lock);

Datum
keep_lock(PG_FUNCTION_ARGS)
{
	LockRelationOid(PG_GETARG_OID(0), PG_GETARG_INT32(1));
	PG_RETURN_VOID();
}
C
mip_sql($node, qq[
	CREATE FUNCTION keep_lock(regclass, int) RETURNS void LANGUAGE c AS '$module', 'keep_lock';
	CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
	CREATE TABLE theirs (i int) USING heap;
	INSERT INTO t VALUES (1, 0)]);

my @modes = qw(AccessShareLock RowShareLock RowExclusiveLock ShareUpdateExclusiveLock
  ShareLock ShareRowExclusiveLock ExclusiveLock AccessExclusiveLock);

sub run
{
	my ($sql) = @_;
	my (undef, undef, $error) = $node->psql('postgres', $sql, on_error_stop => 1);
	return $error;
}

sub begin { return "BEGIN; SELECT mip.begin('keeps $_[0]', 1);"; }

for my $mode (1 .. 8)
{
	my $name = $modes[ $mode - 1 ];
	my $keep = "SELECT keep_lock('theirs', $mode);";
	my %refused = (
		"in an instance" => run(begin(1) . "$keep ROLLBACK"),
		"before mip.begin" => run("BEGIN; $keep SELECT mip.begin('keeps 2', 1); ROLLBACK"),
		"beside mip.begin" =>
		  run("BEGIN; SELECT keep_lock('theirs', $mode), mip.begin('keeps 3', 1); ROLLBACK"),
		"in a savepoint" => run(begin(4) . "SAVEPOINT s; $keep ROLLBACK"));

	for my $where (sort keys %refused)
	{
		if ($mode <= 3)
		{
			is($refused{$where}, '', "$name $where: allowed");
		}
		else
		{
			like(
				$refused{$where},
				qr/ERROR:  a MIP transaction cannot hold $name on table "theirs"/,
				"$name $where: refused");
		}
	}
}

# A savepoint gets rid of it.
my $t1 = $node->background_psql('postgres', on_error_stop => 0);
$t1->query(begin(5));
$t1->query("SAVEPOINT s; SELECT keep_lock('theirs', 4)");
$t1->query('ROLLBACK TO s; RELEASE s');
$t1->query("UPDATE t SET v = 1; SELECT FROM mip.prepare('', '')");
is(mip_sql($node, "SELECT count(*) FROM pg_locks WHERE relation = 'theirs'::regclass"),
	0, 'after ROLLBACK TO SAVEPOINT: gone');
is(mip_sql($node, "SELECT state FROM mip.commit('keeps 5', 1)"),
	'committed', 'after ROLLBACK TO SAVEPOINT: the instance goes on');
$t1->quit;

# What it is about: statistics of PostgreSQL 18.
if ($node->pg_version >= 18)
{
	for my $call (
		q[pg_clear_relation_stats('public', 'theirs')],
		q[pg_clear_attribute_stats('public', 'theirs', 'i', false)],
		q[pg_restore_relation_stats('schemaname', 'public', 'relname', 'theirs', 'relpages', 0)])
	{
		like(
			run(begin(6) . "SELECT $call; ROLLBACK"),
			qr/cannot hold ShareUpdateExclusiveLock on table "theirs"/,
			"$call: refused");
		like(
			run("BEGIN; SELECT $call; SELECT mip.begin('keeps 7', 1); ROLLBACK"),
			qr/cannot hold ShareUpdateExclusiveLock on table "theirs"/,
			"... and before mip.begin");
	}
}

$node->stop;
done_testing();
