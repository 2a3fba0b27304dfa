# Who is alone in his family claims a row without the lock that is there for siblings. One who begins before he is
# through with it waits for him at that row, and nowhere else; however the claim ends. [one-claim] [siblings-never-wait]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = mip_node('lone_claims', deadlock_timeout => '1h');
my $xid = 0;
my ($t, $u, $gate);

sub fresh_sessions
{
	($t, $u, $gate) = map { session($node, $_) } 'first', 'second', 'gate';
	return;
}

# The first one, alone, is held when it has claimed row 1; then its sibling begins. Or it has begun before: beside it.
sub claimed
{
	my ($statement, %how) = @_;
	$xid++;
	mip_sql($node, 'DROP TABLE IF EXISTS r; CREATE TABLE r (id int PRIMARY KEY, v int) USING mip;'
		  . ' INSERT INTO r SELECT i, 0 FROM generate_series(1, 3) i');
	$gate->sql('SELECT pg_advisory_lock(1)') unless $how{open};
	$t->sql("BEGIN; SELECT mip.begin('x$xid', 1); UPDATE r SET v = 1 WHERE id = 3");
	$t->sql('SAVEPOINT s') if $how{savepoint};
	$u->sql("BEGIN; SELECT mip.begin('x$xid', 2)") if $how{beside};
	$t->sql("SET mip.debug_stop_at = '" . ($how{stop} // 'wait:claimed') . "'");
	$t->send_sql($statement);
	$t->waits_for("locktype = 'advisory'") or die 'nothing is claimed';
	is(mip_sql($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND pid = " . $t->pid),
		$how{beside} ? '1' : '0', substr($statement, 0, 60) . ($how{beside} ? ': with the lock' : ': without a lock'));
	$u->sql("BEGIN; SELECT mip.begin('x$xid', 2)") unless $how{beside};
	return;
}

sub waits_for_claim
{
	my ($s) = @_;
	return $node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE state = 'active' AND pid = " . $s->pid);
}

# The other rows are free; at row 1 the sibling waits.
sub sibling_waits
{
	my ($name, $beside) = @_;
	$u->sql('UPDATE r SET v = 2 WHERE id IN (2, 3)');
	$u->send_sql('UPDATE r SET v = 2 WHERE id = 1');
	ok($beside ? $u->waits_for("locktype = 'userlock'") : waits_for_claim($u), "$name: its sibling waits at that row, and not at others");
	return;
}

# It is through: the sibling has changed the row, and can win.
sub sibling_wins
{
	my ($name) = @_;
	my ($out, $err) = $u->finish;
	is($err, '', "$name: its sibling goes on");
	$u->sql('SELECT FROM mip.prepare(NULL, NULL)');
	mip_sql($node, "SELECT FROM mip.commit('x$xid', 2)");
	is(mip_sql($node, 'SELECT id, v FROM r ORDER BY id'), "1|2\n2|2\n3|2", "$name: the rows are its sibling's");
	is(mip_sql($node, "SELECT count(*) FROM pg_locks WHERE locktype IN ('userlock', 'tuple')"), '0', "$name: no lock is left");
	return;
}

fresh_sessions();

# it goes on, and its sibling's change goes beside it
for my $statement ('UPDATE r SET v = 1 WHERE id = 1', 'DELETE FROM r WHERE id = 1', 'SELECT FROM r WHERE id = 1 FOR UPDATE')
{
	claimed($statement);
	$u->sql("SET deadlock_timeout = '10ms'");
	sibling_waits($statement);
	usleep(300_000);
	ok(waits_for_claim($u), "$statement: it is no deadlock that this takes its time");
	$gate->sql('SELECT pg_advisory_unlock(1)');
	my ($out, $err) = $t->finish;
	is($err, '', "$statement: it goes on");
	$t->sql('SELECT FROM mip.prepare(NULL, NULL)');
	sibling_wins($statement);
}

# it fails there, in one way or another
my %ends = (
	'an error' => sub { $gate->sql('SELECT pg_advisory_unlock(1)'); },
	'a cancel' => sub { mip_sql($node, 'SELECT pg_cancel_backend(' . $t->pid . ')'); },
	'the end of its session' => sub { mip_sql($node, 'SELECT pg_terminate_backend(' . $t->pid . ')'); },
);
for my $name (sort keys %ends)
{
	claimed('UPDATE r SET v = 1 WHERE id = 1', stop => 'wait:claimed,error:claimed');
	sibling_waits($name);
	$ends{$name}->();
	my ($out, $err) = $t->finish;
	like($err, qr/ERROR|FATAL/, "$name: it fails");
	sibling_wins($name);
	$_->quit for $t, $u, $gate;
	fresh_sessions();
}

# it fails there, and its client does not read of it
for my $beside (0, 1)
{
	my $name = 'an unread error' . ($beside ? ' beside a sibling' : '');
	my $client = $t->sql('\\echo `echo $PPID`');
	claimed(q[DO $$ BEGIN EXECUTE 'UPDATE r SET v = 1 WHERE id = 1 --' || repeat('x', 3000000); END $$],
		stop => 'wait:claimed,error:claimed', beside => $beside);
	sibling_waits($name, $beside);
	kill 'STOP', $client;
	$gate->sql('SELECT pg_advisory_unlock(1)');
	ok($node->poll_query_until('postgres',
			"SELECT wait_event = 'ClientWrite' FROM pg_stat_activity WHERE pid = " . $t->pid), "$name: it is being told");
	my ($out, $err) = $u->finish;
	is($err, '', "$name: its sibling goes on meanwhile");
	kill 'CONT', $client;
	($out, $err) = $t->finish;
	like($err, qr/stopped at "claimed"/, "$name: it fails");
	$t->sql('ROLLBACK; RESET mip.debug_stop_at');
	sibling_wins($name);
}

# its savepoint is rolled back, and it comes again: beside its sibling
for my $block (0, 1)
{
	my $name = $block ? 'an EXCEPTION block' : 'a savepoint';
	my $statement = 'UPDATE r SET v = 1 WHERE id = 1';

	$statement = "DO \$\$ BEGIN $statement; EXCEPTION WHEN internal_error THEN PERFORM pg_advisory_lock(2); END \$\$" if $block;
	claimed($statement, savepoint => !$block, stop => 'wait:claimed,error:claimed');
	$gate->sql('SELECT pg_advisory_lock(2)');
	sibling_waits($name);
	$gate->sql('SELECT pg_advisory_unlock(1)');
	my ($out, $err) = $u->finish;
	is($err, '', "$name: its sibling goes on");
	$gate->sql('SELECT pg_advisory_unlock(2)');
	($out, $err) = $t->finish;
	if ($block) { is($err, '', "$name: so does it"); }
	else { like($err, qr/stopped at "claimed"/, "$name: it fails"); }
	$t->sql('ROLLBACK TO s; RELEASE s') unless $block;
	$t->sql('UPDATE r SET v = 1 WHERE id = 1');
	$_->sql('SELECT FROM mip.prepare(NULL, NULL)') for $t, $u;
	mip_sql($node, "SELECT FROM mip.commit('x$xid', 1)");
	is(mip_sql($node, 'SELECT id, v FROM r ORDER BY id'), "1|1\n2|0\n3|1", "$name: its own change is there");
	$t->sql('SELECT pg_advisory_unlock_all()');
}

# who waits gives up, and comes again
claimed('UPDATE r SET v = 1 WHERE id = 1');
$u->sql('SAVEPOINT s');
sibling_waits('a cancelled sibling');
mip_sql($node, 'SELECT pg_cancel_backend(' . $u->pid . ')');
$u->ends_refused('57014', 'who waits can be cancelled');
$u->sql('ROLLBACK TO s; RELEASE s');
sibling_waits('a cancelled sibling, again');
$gate->sql('SELECT pg_advisory_unlock(1)');
my ($out, $err) = $t->finish;
is($err, '', 'nothing has happened to whom it waited for');
$t->sql('ROLLBACK');
sibling_wins('a cancelled sibling');

# its patience has an end
claimed('UPDATE r SET v = 1 WHERE id = 1');
$u->sql("SAVEPOINT s; SET LOCAL lock_timeout = '100ms'");
$u->refused('UPDATE r SET v = 2 WHERE id = 1', '55P03', 'who waits goes by lock_timeout');
$u->sql("ROLLBACK TO s; RELEASE s; SET LOCAL lock_timeout = '1h'");
sibling_waits('a sibling with patience');
$gate->sql('SELECT pg_advisory_unlock(1)');
($out, $err) = $t->finish;
is($err, '', 'nothing has happened to whom it waited for');
$t->sql('ROLLBACK');
sibling_wins('a sibling with patience');

# it waits for its sibling, which waits for it: for the sibling to see
$u->sql('SELECT pg_advisory_lock(1)');
claimed('UPDATE r SET v = 1 WHERE id = 1', open => 1);
$u->sql("SET LOCAL deadlock_timeout = '10ms'");
$u->refused('UPDATE r SET v = 2 WHERE id = 1', '40P01', 'a deadlock of two');
$u->sql('ROLLBACK; SELECT pg_advisory_unlock(1)');
($out, $err) = $t->finish;
is($err, '', 'a deadlock of two: the other one goes on');
$t->sql('ROLLBACK');

# likewise, through an outsider: for the sibling to see, or the worker
claimed('UPDATE r SET v = 1 WHERE id = 1');
$u->sql("SET LOCAL deadlock_timeout = '10ms'; UPDATE r SET v = 2 WHERE id = 2");
$gate->send_sql('UPDATE r SET v = 3 WHERE id = 2');
ok($gate->waits, 'an outsider waits for its sibling');
$u->refused('UPDATE r SET v = 2 WHERE id = 1', '40P01', 'a deadlock of three');
$u->sql('ROLLBACK');
($out, $err) = $gate->finish;
is($err, '', 'a deadlock of three: the outsider goes on');
$gate->sql('SELECT pg_advisory_unlock(1)');
($out, $err) = $t->finish;
is($err, '', 'a deadlock of three: and so does the first one');
$t->sql('ROLLBACK');

# a crash
claimed('UPDATE r SET v = 1 WHERE id = 1');
sibling_waits('a crash');
my $old = $t->pid;
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
kill 'KILL', $old;
$_->finish for $t, $u;
$_->quit for $t, $u, $gate;
wait_until(sub { system('pg_isready', '-q', '-d', $node->connstr('postgres')) == 0 }) or die 'the server does not come back';
fresh_sessions();
$gate->sql('SELECT pg_advisory_lock(1)');
$t->sql("BEGIN; SELECT mip.begin('x$xid', 1); SET mip.debug_stop_at = 'wait:claimed'");
$t->send_sql('UPDATE r SET v = 1 WHERE id = 1');
ok($t->waits_for("locktype = 'advisory'"), 'a crash: the row can be claimed again');
$u->sql("BEGIN; SELECT mip.begin('x$xid', 2)");
sibling_waits('a crash, and then');
$gate->sql('SELECT pg_advisory_unlock(1)');
$t->finish;
sibling_wins('a crash, and then');

$_->quit for $t, $u, $gate;
$node->stop;
done_testing();
