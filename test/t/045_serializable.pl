# SERIALIZABLE beside a prepared sibling of whose conflicts PostgreSQL knows no more than
# that there may be some, as behind a crash: it fails whoever reads what that has written.
# A sibling passes, and an outsider does not. And what is borrowed of its conflicts is given
# back to it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('serializable', allows_streaming => 1);
mip_sql(
	$node, q[
	CREATE TABLE s (k int PRIMARY KEY, v int) USING mip WITH (fillfactor = 50);
	INSERT INTO s SELECT k, 0 FROM generate_series(1, 1000) k;
	ANALYZE s;]);

# begins a SERIALIZABLE transaction, an instance if there is an xinst
sub begin
{
	my ($on, $name, $xid, $xinst) = @_;
	my $s = session($on, $name);
	$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
	$s->sql("SELECT mip.begin('$xid', $xinst)") if $xid;
	return $s;
}

# Prepares an instance that has read the first row and written the second one.
sub prepare
{
	my ($on, $xid, $xinst, $read, $write) = @_;
	my $s = begin($on, "instance $xinst of $xid", $xid, $xinst);
	is($s->sql("SELECT v FROM s WHERE k = $write"), '0', "$xid: $xinst reads what is to be written");
	$s->sql("SELECT v FROM s WHERE k = $read");
	$s->sql("UPDATE s SET v = $xinst WHERE k IN ($read, $write)");
	is($s->sql("SELECT state FROM mip.prepare('', '') WHERE xinst = $xinst"),
		'prepared', "$xid: and $xinst writes, and is prepared");
	$s->quit;
	return;
}

sub outsider_fails
{
	my ($on, $xid) = @_;
	my $s = begin($on, 'outsider');
	$s->refused('SELECT v FROM s WHERE k = 1', '40001', "$xid: an outsider does not");
	$s->quit;
	return;
}

# Siblings go on beside one that is in doubt, and of whose conflicts nothing is known.
sub is_met_by_siblings
{
	my ($on, $xid) = @_;
	for my $xinst (2, 3)
	{
		prepare($on, $xid, $xinst, 2, 1);
		outsider_fails($on, $xid);
	}
	mip_sql($on, "SELECT FROM mip.commit('$xid', 2)");
	my $after = begin($on, 'after');
	is($after->sql('SELECT v FROM s WHERE k < 3'), "2\n2", "$xid: nor does it matter once it is decided");
	$after->sql('COMMIT');
	$after->quit;
	is(mip_sql($on, "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid IS NULL"),
		'0', "$xid: all that was in doubt is gone");
	mip_sql($on, 'UPDATE s SET v = 0 WHERE k < 3');
	return;
}

# ---- behind a crash, a restart, on a promoted standby ----

for my $stop (qw(immediate fast))
{
	prepare($node, $stop, 1, 2, 1);
	$node->stop($stop);
	$node->start;
	is_met_by_siblings($node, $stop);
}

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
prepare($node, 'promoted', 1, 2, 1);
catch_up($node, $standby);
$standby->promote;
is_met_by_siblings($standby, 'promoted');
$standby->stop;
mip_sql($node, "SELECT FROM mip.rollback('promoted', 1)");

# ---- when PostgreSQL forgets whom a sibling conflicts with, while another one runs ----

my $first = begin($node, 'first', 'summary', 1);
$first->sql('SELECT v FROM s WHERE k = 3');
$first->sql('UPDATE s SET v = 1 WHERE k = 1');
$first->sql("SELECT FROM mip.prepare('', '')");
$first->quit;
mip_sql($node, 'BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE s SET v = 9 WHERE k = 3; COMMIT');
my $sibling = begin($node, 'sibling', 'summary', 2);
is($sibling->sql('SELECT v FROM s WHERE k = 1'), '0', 'a sibling reads what has been written');
mip_sql(
	$node, q[
	CREATE TABLE n (v int);
	SET default_transaction_isolation = serializable;
	DO $$
	BEGIN
		FOR i IN 1 .. 10 * (current_setting('max_connections')::int +
				current_setting('max_prepared_transactions')::int + 40) LOOP
			INSERT INTO n VALUES (i);
			COMMIT;
		END LOOP;
	END $$]);
is($sibling->sql('SELECT v FROM s WHERE k = 1'), '0', 'and again, when there is but a summary');
outsider_fails($node, 'summary');
$sibling->sql('UPDATE s SET v = 2 WHERE k = 1');
$sibling->sql("SELECT FROM mip.prepare('', '')");
$sibling->quit;
mip_sql($node, "SELECT FROM mip.commit('summary', 2)");
is(mip_sql($node, 'SELECT v FROM s WHERE k = 1'), '2', 'it is committed');

# ---- what is borrowed of PostgreSQL's conflicts is given back ----

my $module = module($node, 'conflicts', <<'C');
#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/predicate_internals.h"
#include "storage/shmem.h"

PG_FUNCTION_INFO_V1(conflicts_in_use);
PG_FUNCTION_INFO_V1(use_conflicts);

static RWConflictPoolHeader
attach(int *n)
{
	RWConflictPoolHeader pool;
	bool		found;

	*n = (MaxBackends + max_prepared_xacts) * 10 * 5;
#if PG_VERSION_NUM >= 180000
	pool = ShmemInitStruct("RWConflictPool", RWConflictPoolHeaderDataSize + *n * RWConflictDataSize, &found);
#else
	pool = ShmemInitStruct("RWConflictPool", RWConflictPoolHeaderDataSize, &found);
#endif
	return pool;
}

/* All but a fifth, and so many: until the server restarts */
Datum
use_conflicts(PG_FUNCTION_ARGS)
{
	int			n;
	RWConflictPoolHeader pool = attach(&n);

	LWLockAcquire(SerializableXactHashLock, LW_EXCLUSIVE);
	for (n = n / 5 * 4 - PG_GETARG_INT32(0); n > 0; n--)
	{
#if PG_VERSION_NUM >= 160000
		(void) dlist_pop_head_node(&pool->availableList);
#else
		SHMQueueDelete(&((RWConflict) SHMQueueNext(&pool->availableList, &pool->availableList,
												   offsetof(RWConflictData, outLink)))->outLink);
#endif
	}
	LWLockRelease(SerializableXactHashLock);
	PG_RETURN_VOID();
}

Datum
conflicts_in_use(PG_FUNCTION_ARGS)
{
	int			n;
	RWConflictPoolHeader pool = attach(&n);

	LWLockAcquire(SerializableXactHashLock, LW_SHARED);
#if PG_VERSION_NUM >= 160000
	{
		dlist_iter	iter;

		dlist_foreach(iter, &pool->availableList)
			n--;
	}
#else
	{
		RWConflict	conflict = NULL;

		while ((conflict = (RWConflict) SHMQueueNext(&pool->availableList,
													 conflict ? &conflict->outLink : &pool->availableList,
													 offsetof(RWConflictData, outLink))) != NULL)
			n--;
	}
#endif
	LWLockRelease(SerializableXactHashLock);
	PG_RETURN_INT32(n);
}
C
mip_sql($node, "CREATE FUNCTION conflicts_in_use() RETURNS int LANGUAGE c AS '$module'");
mip_sql($node, "CREATE FUNCTION use_conflicts(int) RETURNS void LANGUAGE c AS '$module'");
my @siblings = map { session($node, "of many $_") } 1 .. 3;
my $most = 0;
for my $n (1 .. 24)
{
	my $how = $n % 4;
	for my $xinst (1 .. 3)
	{
		my $s = $siblings[ $xinst - 1 ];
		$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
		$s->sql('SELECT v FROM s WHERE k = 3') if $n % 2;
		$s->sql("SELECT mip.begin('many $n', $xinst)");
		$s->sql('SELECT v FROM s WHERE k IN (4, 5)');
	}
	$siblings[ $_ - 1 ]->sql("UPDATE s SET v = v + 1 WHERE k IN (3, $_ + 3)") for 1 .. 3;
	my $used = mip_sql($node, 'SELECT conflicts_in_use()');
	$most = $used if $used > $most;
	if ($how == 0)
	{
		$siblings[$_]->sql('ROLLBACK') for 0 .. 1;
		$siblings[2]->sql("SELECT FROM mip.commit_one_phase('', '')");
		next;
	}
	$siblings[$_]->sql("SELECT FROM mip.prepare('', '')") for 0 .. 1;
	$siblings[2]->sql($how == 1 ? 'ROLLBACK' : "SELECT FROM mip.prepare('', '')");
	# only here: a restart gives back what has been lost
	if ($n == 3)
	{
		$node->stop('immediate');
		$node->start;
		@siblings = map { session($node, "of many, again, $_") } 1 .. 3;
	}
	my $flush = $n % 8 < 4 ? 'on' : 'off';
	mip_sql($node, "SET mip.synchronous_commit_prepared = $flush; SELECT FROM mip.commit('many $n', 2)");
}
cmp_ok($most, '>=', 6, 'each pair of siblings has two');
is(mip_sql($node, 'SELECT conflicts_in_use()'), '0', 'none is lost');

# ---- and PostgreSQL keeps enough of them ----

mip_sql($node, 'SELECT use_conflicts(5)');
my $in_use = mip_sql($node, 'SELECT conflicts_in_use()');
for my $xinst (1 .. 3)
{
	$siblings[ $xinst - 1 ]->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
	$siblings[ $xinst - 1 ]->sql("SELECT mip.begin('few', $xinst)");
}
is(mip_sql($node, 'SELECT conflicts_in_use()') - $in_use, 5, 'of a fifth none is borrowed');
$siblings[$_]->sql('SELECT v FROM s WHERE k = 4') for 0 .. 2;
$_->sql('ROLLBACK') for @siblings;
is(mip_sql($node, 'SELECT conflicts_in_use()'), $in_use, 'nor kept');

done_testing();
