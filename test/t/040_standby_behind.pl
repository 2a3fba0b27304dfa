# With a synchronous standby nobody is told of what it does not have yet, not
# even after a crash, when PostgreSQL itself shows it to everybody. [told-is-durable]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('primary', allows_streaming => 1);
my $standby = standby_of($node, 'standby');
$node->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$node->reload;
mip_sql($node, 'CREATE TABLE t (n int) USING mip');
catch_up($node, $standby);
mip_sql($node, "BEGIN; SELECT mip.begin('done', 1); SELECT FROM mip.commit_one_phase('', '')");
my $old = '016f5e66-e800-7000-8000-000000000001';	# of 2020

sub waits_for_standby
{
	my ($s, $name) = @_;
	my $pid = $s->pid;
	ok( $node->poll_query_until(
			'postgres',
			"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
		$name);
	return;
}

sub start_instance
{
	my ($xid, $sites) = @_;
	my $s = session($node, $xid);
	$s->sql('BEGIN');
	$s->sql("SELECT mip.begin('$xid', 1, '$sites')");
	$s->sql('INSERT INTO t VALUES (1)');
	return $s;
}

# the standby gets nothing any more
my $receiver = mip_sql($standby, 'SELECT pid FROM pg_stat_wal_receiver');
kill 'STOP', $receiver;
my $one = start_instance('one', '{}');
my $two = start_instance('two', '{a,b}');
my $three = start_instance('three', '{}');
$one->send_sql("SELECT * FROM mip.commit_one_phase('', 'result')");
$three->send_sql("SELECT * FROM mip.commit_one_phase('', 'result')");
$two->send_sql("SELECT * FROM mip.prepare('', 'result')");
waits_for_standby($one, 'a commit waits for the standby');
waits_for_standby($three, 'every one');
waits_for_standby($two, 'so does an instance that is being prepared');
my $done = session($node, 'done');
$done->send_sql("SELECT mip.acknowledge('done')");
waits_for_standby($done, 'and an acknowledgement');

crash_server($node);
$_->quit for $one, $two, $three, $done;
$node->{_pid} = undef;
$node->start;
my $retry = session($node, 'retry');
my $reader = session($node, 'reader');
my $repeat = session($node, 'repeat');
my $finished = session($node, 'finished');
my $impatient = session($node, 'impatient');
my $again = session($node, 'again');
my $late = session($node, 'late');
my $asks = session($node, 'asks');
is(mip_sql($node, 'SELECT n FROM t'), "1\n1", 'all see what the crash has left');
$retry->sql('BEGIN');
$retry->send_sql("SELECT mip.begin('one', 2)");
waits_for_standby($retry, 'a retry is not told that the request is done');
$reader->send_sql("SELECT xinst, state FROM mip.instances('two')");
waits_for_standby($reader, 'nobody is told of what is prepared');
$repeat->send_sql("SELECT xinst, state FROM mip.commit('three', 1)");
waits_for_standby($repeat, 'nor who repeats a commit');
$finished->sql("SET statement_timeout = '1s'");
$finished->refused("SELECT count(*) FROM mip.finished('-1 day')", '57014',
	'nor who looks for what is to be acknowledged');
$impatient->send_sql("SELECT xinst, state FROM mip.instances('two')");
waits_for_standby($impatient, 'nor who is impatient');
mip_sql($node, 'SELECT pg_cancel_backend(' . $impatient->pid . ')');
$impatient->ends_refused('57014', 'not even when cancelled');
$again->sql('BEGIN');
$again->send_sql("SELECT mip.begin('done', 2)");
waits_for_standby($again, 'nobody is told of an acknowledgement');
$late->sql('BEGIN');
$late->sql("SELECT mip.begin('$old', 1)");
$late->send_sql('INSERT INTO t VALUES (2)');
waits_for_standby($late, 'nor that a request will never run again');
$asks->send_sql("SELECT mip.has_expired('$old')");
waits_for_standby($asks, 'not even who only asks');

is(mip_sql($node, q[SELECT count(*) FROM pg_locks WHERE locktype = 'userlock']),
	'0', 'and nobody has to wait for them');

kill 'CONT', $receiver;
$retry->ends_refused('MP001', 'told as soon as the standby has it');
my ($out) = $reader->finish;
is($out, '1|prepared', 'and so is what is prepared');
($out) = $repeat->finish;
is($out, '1|committed', 'and a repeated commit');
$again->ends_refused('MP007', 'acknowledged');
$late->ends_refused('MP007', 'expired');
($out) = $asks->finish;
is($out, 't', 'which is told, too');
$_->quit for $retry, $reader, $repeat, $finished, $impatient, $again, $late, $asks;

# its successor knows all that was told
crash_server($node);
$standby->promote;
is(states($standby, 'one'), '1 committed', 'the successor has the commit');
is(states($standby, 'two'), '1 prepared', 'the successor has what is prepared');
for my $xid ('done', $old)
{
	my $s = session($standby, $xid);
	$s->sql('SET mip.retention = 0');
	$s->sql('BEGIN');
	$s->refused("SELECT mip.begin('$xid', 3)", 'MP007', 'the successor refuses it for ever');
	$s->quit;
}
$standby->stop;

done_testing();
