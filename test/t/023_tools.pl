# PostgreSQL's maintenance commands, and autovacuum, on a cluster with mip
# tables in use.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('tools');
my @to = ('-d', 'postgres');

fill($node);
mip_sql($node, q[
	CREATE INDEX a_v ON a (v);
	CLUSTER a USING a_v;
	CREATE TABLE busy (id int PRIMARY KEY, v int) USING mip
		WITH (autovacuum_vacuum_threshold = 20, autovacuum_vacuum_scale_factor = 0,
			autovacuum_analyze_threshold = 20, autovacuum_analyze_scale_factor = 0);
	INSERT INTO busy SELECT i, 0 FROM generate_series(1, 100) i;
	VACUUM ANALYZE busy]);

# with siblings in doubt: what takes no exclusive lock
begin_prepared($node, 'doubt', 2, 1);
$node->command_ok([ 'vacuumdb', '-j', 2, '-z', '-F', @to ], 'vacuumdb');
$node->command_ok([ 'pg_amcheck', '--heapallindexed', @to ], 'pg_amcheck');
is(states($node, 'doubt'), '1 prepared, 2 prepared', 'nothing happened to them');
mip_sql($node, "SELECT * FROM mip.commit('doubt', 1)");
is_rows($node, 1, 'after vacuumdb');

# without
for my $command (
	[ 'vacuumdb', '-f' ], [ 'clusterdb' ], [ 'reindexdb' ],
	[ 'reindexdb', '--concurrently', '-j', 2, '-t', 'a', '-t', 'b' ],
	[ 'pg_amcheck', '--parent-check', '--heapallindexed' ])
{
	$node->command_ok([ @$command, @to ], "@$command");
}
# heap checks pass over what does not say that it is heap
$node->command_fails_like(
	[ 'pg_amcheck', '-t', 'public.b', '--no-dependent-indexes', @to ],
	qr/no heap tables to check matching "public.b"/,
	'pg_amcheck -t');
is_rows($node, 1, 'after all commands');
is_sound($node, 'after all commands');

# Autovacuum comes for changes in overlays as for others, also beside instances
# in doubt.
mip_sql($node, q[
	BEGIN; SELECT mip.begin('in doubt', 1); UPDATE busy SET v = v + 1 WHERE id = 1;
	SELECT FROM mip.prepare('', '')]);
my ($t1, $t2) = map { session($node, "instance $_") } (1, 2);
for my $k (1, 2)
{
	my $t = $k == 1 ? $t1 : $t2;
	$t->sql('BEGIN');
	$t->sql("SELECT mip.begin('overlay', $k)");
	$t->sql('UPDATE busy SET v = v + 10 WHERE id > 50');
}
$_->sql("SELECT * FROM mip.prepare('', '')") for ($t1, $t2);
mip_sql($node, "SELECT * FROM mip.commit('overlay', 2)");
$_->quit for ($t1, $t2);
$node->append_conf('postgresql.conf', "autovacuum = on\nautovacuum_naptime = 1");
$node->reload;
ok($node->poll_query_until('postgres', q[
	SELECT autovacuum_count > 0 AND autoanalyze_count > 0
	FROM pg_stat_user_tables WHERE relname = 'busy']), 'autovacuum came');
is(mip_sql($node, 'SELECT count(*), sum(v) FROM busy'), '100|500', 'and left the rows');
mip_sql($node, "SELECT * FROM mip.commit('in doubt', 1)");
is(mip_sql($node, 'SELECT count(*), sum(v) FROM busy'), '100|501', 'and those in doubt');
ok($node->poll_query_until('postgres', q[
	SELECT n_dead_tup < 20 FROM pg_stat_user_tables WHERE relname = 'busy']),
	'what the instance in doubt had kept goes, too');
is_decided($node, 'tools');
is_sound($node, 'tools');

$node->stop;
done_testing();
