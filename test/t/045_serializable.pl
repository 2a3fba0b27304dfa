# SERIALIZABLE beside a sibling that a crash has left prepared: PostgreSQL knows
# no more of its conflicts than that there may be some, and fails whoever reads
# what it has written. A sibling passes, and an outsider does not.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('serializable');
mip_sql(
	$node, q[
	CREATE TABLE s (k int PRIMARY KEY, v int) USING mip WITH (fillfactor = 50);
	INSERT INTO s SELECT k, 0 FROM generate_series(1, 1000) k;
	ANALYZE s;]);

# begins a SERIALIZABLE transaction, an instance if there is an xinst
sub begin
{
	my ($name, $xinst) = @_;
	my $s = session($node, $name);
	$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
	$s->sql("SELECT mip.begin('crash', $xinst)") if $xinst;
	return $s;
}

my $first = begin('first', 1);
$first->sql('SELECT v FROM s WHERE k = 2');
$first->sql('UPDATE s SET v = 1 WHERE k = 1');
$first->sql("SELECT FROM mip.prepare('', '')");
$node->stop('immediate');
$node->start;

for my $xinst (2, 3)
{
	my $sibling = begin("sibling $xinst", $xinst);
	is($sibling->sql('SELECT v FROM s WHERE k = 1'),
		'0', 'a sibling reads what it has written');
	$sibling->sql("UPDATE s SET v = $xinst WHERE k = 1");
	$sibling->sql("UPDATE s SET v = $xinst WHERE k = 2");
	is($sibling->sql("SELECT state FROM mip.prepare('', '') WHERE xinst = $xinst"),
		'prepared', 'and writes, and is prepared');

	my $outsider = begin("outsider $xinst");
	$outsider->refused('SELECT v FROM s WHERE k = 1',
		'40001', 'an outsider does not');
}

mip_sql($node, "SELECT FROM mip.commit('crash', 2)");
my $after = begin('after');
is($after->sql('SELECT v FROM s WHERE k < 3'), "2\n2", 'nor does it matter any more');
$after->sql('COMMIT');
is(mip_sql($node, "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid IS NULL"),
	'0', 'all that was in doubt is gone');

# ---- what is borrowed of PostgreSQL's conflicts is given back ----

my $module = module($node, 'conflicts', <<'C');
#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/predicate_internals.h"
#include "storage/shmem.h"

PG_FUNCTION_INFO_V1(conflicts_in_use);

Datum
conflicts_in_use(PG_FUNCTION_ARGS)
{
	int			n = (MaxBackends + max_prepared_xacts) * 10 * 5;
	bool		found;
#if PG_VERSION_NUM >= 180000
	RWConflictPoolHeader pool = ShmemInitStruct("RWConflictPool",
												RWConflictPoolHeaderDataSize + n * RWConflictDataSize, &found);
#else
	RWConflictPoolHeader pool = ShmemInitStruct("RWConflictPool", RWConflictPoolHeaderDataSize, &found);
#endif

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
	mip_sql($node, "SELECT FROM mip.commit('many $n', 2)");
}
cmp_ok($most, '>=', 6, 'each pair of siblings has two');
is(mip_sql($node, 'SELECT conflicts_in_use()'), '0', 'none is lost');

done_testing();
