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
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/snapshot.h"

PG_FUNCTION_INFO_V1(keep_lock);

Datum
keep_lock(PG_FUNCTION_ARGS)
{
	LockRelationOid(PG_GETARG_OID(0), PG_GETARG_INT32(1));
	PG_RETURN_VOID();
}

/* As foreign keys do it: triggers are left to the statement around it */
PG_FUNCTION_INFO_V1(leave_triggers);

Datum
leave_triggers(PG_FUNCTION_ARGS)
{
	SPI_connect();
	SPI_execute_snapshot(SPI_prepare(text_to_cstring(PG_GETARG_TEXT_PP(0)), 0, NULL),
						 NULL, NULL, InvalidSnapshot, InvalidSnapshot, false, false, 0);
	SPI_finish();
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

# Triggers keep it, which run behind the statement.
mip_sql($node, qq[
	CREATE FUNCTION leave_triggers(text) RETURNS void LANGUAGE c AS '$module', 'leave_triggers';
	CREATE FUNCTION keeps() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM keep_lock(\$\$theirs\$\$, 8); RETURN NULL; END';
	CREATE TABLE with_trigger (id int PRIMARY KEY, v int) USING mip;
	INSERT INTO with_trigger VALUES (1, 0);
	CREATE TRIGGER keeps AFTER UPDATE OR DELETE ON with_trigger FOR EACH ROW EXECUTE FUNCTION keeps();
	CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id);
	CREATE TABLE part PARTITION OF parts FOR VALUES IN (1) USING mip;
	CREATE TABLE part_2 PARTITION OF parts FOR VALUES IN (2) USING mip;
	INSERT INTO part_2 VALUES (2);
	CREATE TRIGGER keeps AFTER INSERT ON part FOR EACH ROW EXECUTE FUNCTION keeps();
	CREATE TABLE parent (id int PRIMARY KEY) USING mip;
	INSERT INTO parent VALUES (1);
	CREATE TABLE child (id int REFERENCES parent ON DELETE CASCADE) USING mip;
	INSERT INTO child VALUES (1);
	CREATE TRIGGER keeps AFTER DELETE ON child FOR EACH ROW EXECUTE FUNCTION keeps();
	CREATE TABLE root (id int) PARTITION BY LIST (id);
	CREATE TABLE root_1 PARTITION OF root FOR VALUES IN (1) USING mip;
	CREATE TRIGGER keeps AFTER INSERT ON root FOR EACH STATEMENT EXECUTE FUNCTION keeps()]);
for my $statement (
	'UPDATE with_trigger SET v = 1',
	'WITH w AS (DELETE FROM with_trigger RETURNING id) SELECT 1',
	'INSERT INTO parts VALUES (1)',
	'UPDATE parts SET id = 1',
	q[WITH w AS (UPDATE t SET v = v + 1 WHERE keep_lock('theirs', 8) IS NOT NULL) SELECT 1],
	'DELETE FROM parent',
	'INSERT INTO root VALUES (1)',
	'COPY parts FROM PROGRAM $$echo 1$$',
	q[UPDATE t SET v = v + 1 WHERE leave_triggers('UPDATE with_trigger SET v = 2') IS NOT NULL])
{
	like(run(begin(8) . "$statement; SELECT pg_sleep(0); ROLLBACK"), qr/cannot hold AccessExclusiveLock on table "theirs"/, "triggers: $statement");
	my $s = session($node, 'triggers');
	$s->sql(begin(9));
	$s->refused($statement, 'MP006', '... at once');
	$s->quit;
}

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
