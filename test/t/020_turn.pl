# A loser that waits for its turn to prepare while the winner commits learns
# that it has lost (MP005), and keeps its session. [doomed-before-header]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

# Who asks for it waits, when it commits, for a standby that does not exist.
my $node = mip_node(
	'turn',
	allows_streaming => 1,
	synchronous_standby_names => 'nobody',
	synchronous_commit => 'local');
my $winner = session($node, 'winner');
my $loser = session($node, 'loser');
my $gate = session($node, 'gate');

# A deferred trigger holds the loser's ending up behind mip.prepare itself ...
mip_sql(
	$node, q[
	CREATE TABLE t (i int) USING mip;
	CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON t
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()]);
$winner->sql('BEGIN');
$winner->sql("SELECT mip.begin('turn', 1)");
$winner->sql("SELECT * FROM mip.prepare('', 'won')");
$loser->sql('BEGIN');
$loser->sql("SELECT mip.begin('turn', 2)");
$loser->sql('INSERT INTO t VALUES (1)');
$gate->sql('SELECT pg_advisory_lock(1)');
$loser->send_sql("SELECT * FROM mip.prepare('', '')");
ok($loser->waits_for("locktype = 'advisory'"), 'the loser is about to prepare');

# ... and the winner is held up between its commit and the losers' end.
$winner->sql('SET synchronous_commit = on');
my $pid = $winner->pid;
$winner->send_sql("SELECT * FROM mip.commit('turn', 1)");
ok( $node->poll_query_until(
		'postgres',
		"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
	'the winner is committing');
$gate->sql('SELECT pg_advisory_unlock(1)');
ok($loser->waits_for("locktype = 'userlock'"), 'the loser waits for its turn');
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;

my ($out, $err) = $winner->finish;
is($err, '', 'the winner is not held up');
$loser->ends_refused('MP005', 'the loser learns that it has lost');
$loser->sql('ROLLBACK');
is($loser->sql("SELECT 'alive'"), 'alive', 'its session lives');
is(states($node, 'turn'), '1 committed, 2 aborted', 'MIPT');
is(mip_sql($node, 'SELECT count(*) FROM t'), '0', 'nothing of it is left');
is_decided($node, 'turn');
$_->quit for $winner, $loser, $gate;
$node->stop;
done_testing();
