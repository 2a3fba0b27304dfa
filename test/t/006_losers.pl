# What becomes of active losers when the winner commits: their statements end
# with MP005, idle ones lose their session, all their locks vanish at once,
# and a session that goes on is not cancelled by mistake. [cancel-stays-inside]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = mip_node('losers');
my $n = 0;

# A winner that has written nothing.
sub prepare_winner
{
	my ($xid) = @_;
	prepare_one($node, $xid, 1000);
	return;
}

sub begin
{
	my ($s, $xid, $k) = @_;
	$s->sql('BEGIN');
	$s->sql("SELECT mip.begin('$xid', $k)");
	return;
}

# Commits the winner; losers must be gone before it returns or soon after.
sub win
{
	my ($xid, $name) = @_;
	my $began = time;
	mip_sql($node, "SELECT * FROM mip.commit('$xid', 1000)");
	cmp_ok(time - $began, '<', 10, "$name: the winner is not held up");
	return;
}

sub gone
{
	my ($pid) = @_;
	return wait_until(
		sub {
			!mip_sql($node, "SELECT 1 FROM pg_stat_activity WHERE pid = $pid");
		});
}

# ---- idle in transaction ----

{
	my $loser = session($node, 'idle loser');
	my $outsider = session($node, 'outsider');
	fill($node);
	attempt($loser, 'idle', 1);
	$outsider->send_sql("UPDATE a SET v = v + 1000 WHERE id = 1");
	ok($outsider->waits, 'idle loser: an outsider waits for it');
	prepare_winner('idle');
	win('idle', 'idle loser');
	my ($out, $err) = $outsider->finish;
	is($err, '', 'idle loser: the outsider goes on');
	is(mip_sql($node, 'SELECT v FROM a WHERE id = 1'),
		'1100', 'idle loser: ... on the row as it was');
	ok(gone($loser->pid), 'idle loser: its session is ended');
	is(states($node, 'idle'), '1 aborted, 1000 committed', 'idle loser: MIPT');
	$_->quit for $loser, $outsider;
	is_decided($node, 'idle loser');
	is_sound($node, 'idle loser');
}

# ---- idle in a failed transaction: nothing to end ----

{
	my $loser = session($node, 'failed loser');
	fill($node);
	attempt($loser, 'failed', 1);
	$loser->refused('SELECT 1 / 0', '22012', 'failed loser: it fails');
	prepare_winner('failed');
	win('failed', 'failed loser');
	$loser->sql('ROLLBACK');
	is($loser->sql('SELECT 1'), '1', 'failed loser: the session lives');
	$loser->quit;
	is_decided($node, 'failed loser');
}

# ---- running ----

{
	my $loser = session($node, 'sleeping loser');
	fill($node);
	attempt($loser, 'sleep', 1);
	$loser->send_sql('SELECT pg_sleep(300)');
	$loser->begun;
	prepare_winner('sleep');
	win('sleep', 'sleeping loser');
	$loser->ends_refused('MP005', 'sleeping loser: the statement ends');
	$loser->refused('SELECT 1', '25P02', 'sleeping loser: it is to roll back');
	$loser->sql('ROLLBACK');
	is($loser->sql('SELECT 1'), '1', 'sleeping loser: the session lives');

	# in a function that would catch the error
	attempt($loser, 'catch', 1);
	$loser->send_sql(
		"DO \$\$ BEGIN LOOP BEGIN PERFORM pg_sleep(300);"
		  . " EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END \$\$");
	$loser->begun;
	prepare_winner('catch');
	win('catch', 'loser that catches errors');
	$loser->ends_refused('MP005|57P01|57014',
		'loser that catches errors: ended nevertheless');
	$loser->quit;
	is_decided($node, 'sleeping loser');
}

# A busy loop, no waiting at all
{
	my $loser = session($node, 'busy loser');
	fill($node);
	attempt($loser, 'busy', 1);
	$loser->send_sql(
		'SELECT count(*) FROM generate_series(1, 100000) x,'
		  . ' generate_series(1, 100000) y');
	$loser->begun;
	prepare_winner('busy');
	win('busy', 'busy loser');
	$loser->ends_refused('MP005', 'busy loser: the statement ends');
	$loser->sql('ROLLBACK');
	$loser->quit;
}

# ---- waiting for an outsider's lock ----

{
	my $loser = session($node, 'waiting loser');
	my $outsider = session($node, 'outsider');
	fill($node);
	$outsider->sql('BEGIN');
	$outsider->sql('UPDATE a SET v = 0 WHERE id = 1');
	begin($loser, 'wait', 1);
	$loser->sql('UPDATE a SET v = 0 WHERE id = 2');
	$loser->send_sql('UPDATE a SET v = 1 WHERE id = 1');
	ok($loser->waits, 'waiting loser: it waits');
	prepare_winner('wait');
	win('wait', 'waiting loser');
	$loser->ends_refused('MP005', 'waiting loser: the statement ends');
	$loser->sql('ROLLBACK');
	# its lock is gone
	$outsider->sql('UPDATE a SET v = 2 WHERE id = 2');
	$outsider->sql('COMMIT');
	is(mip_sql($node, 'SELECT v FROM a ORDER BY id'),
		"0\n2\n100", 'waiting loser: the outsider goes on');
	$_->quit for $loser, $outsider;
	is_sound($node, 'waiting loser');
}

# ---- clients that have gone quiet in the middle of a statement ----

# The loser executes this until the server waits for its client, as `$waits` says
# of pg_stat_activity (`$amid`, with the client's process, is called meanwhile); an
# outsider goes on behind the winner, or behind what `$doom` does. Returns the client.
sub wins_over_quiet_client
{
	my ($xid, $name, $statement, $waits, $amid, $doom) = @_;
	my ($in, $out, $err) = ('', '', '');
	my $timer = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default);
	my $outsider = session($node, 'outsider');

	fill($node);
	my $psql = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', '-' ],
		'<', \$in, '>', \$out, '2>', \$err, $timer);
	$in = "BEGIN; SELECT mip.begin('$xid', 1);\n"
	  . "UPDATE a SET v = 1 WHERE id = 1;\n$statement\n";
	$psql->pump_nb;
	$amid->($psql->{KIDS}[0]{PID}) if $amid;
	ok( $node->poll_query_until(
			'postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE $waits"),
		"$name: it waits for its client");
	prepare_winner($xid);
	$doom ? $doom->($xid) : win($xid, $name);
	$outsider->send_sql('SET lock_timeout = 20000;'
		  . ' UPDATE a SET v = v + 1000 WHERE id = 1');
	my ($o, $e) = $outsider->finish;
	is($e, '', "$name: an outsider goes on")
	  or diag mip_sql($node,
		"SELECT * FROM pg_stat_activity WHERE datname IS NOT NULL; SELECT * FROM pg_locks");
	win($xid, $name) if $doom;
	is_decided($node, $name);
	$outsider->quit;
	return $psql;
}

# COPY FROM STDIN: the server waits for rows that never come.
{
	my $psql = wins_over_quiet_client(
		'copy', 'loser in COPY',
		"COPY a FROM STDIN;\n10\t10\tten",
		"query LIKE 'COPY a%' AND wait_event = 'ClientRead'");
	is( mip_sql($node,
			"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY a%'"
			  . " AND state = 'active'"),
		'0',
		'loser in COPY: it is ended');
	$psql->kill_kill;
}

# A result that nobody reads: the server waits for the client.
wins_over_quiet_client(
	'unread',
	'loser with unread rows',
	"COPY (SELECT repeat('x', 1000) FROM generate_series(1, 1000000)) TO STDOUT;",
	"query LIKE 'COPY (%' AND wait_event = 'ClientWrite'")->kill_kill;

# An error that nobody reads: it is told before the transaction is aborted, and
# neither a cancel nor the session's end interrupts that.
sub wins_over_unread_error
{
	my ($xid, $name, $doom) = @_;
	my $gate = session($node, 'gate');
	$gate->sql('SELECT pg_advisory_lock(7)');
	wins_over_quiet_client(
		$xid, $name,
		"DO \$\$ BEGIN PERFORM pg_advisory_xact_lock(7);"
		  . " RAISE 'no: %', repeat('x', 3000000); END \$\$;",
		"query LIKE 'DO %' AND wait_event = 'ClientWrite'",
		sub {
			my ($client) = @_;
			$node->poll_query_until('postgres',
				"SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
			kill 'STOP', $client;
			$gate->sql('SELECT pg_advisory_unlock(7)');
		},
		$doom)->kill_kill(grace => 0);	# it is stopped
	$gate->quit;
	return;
}

wins_over_unread_error('untold', 'loser with an unread error');

# Nor does one that is doomed go on telling if nobody has come to end it.
wins_over_unread_error(
	'doomed only',
	'doomed, with an unread error',
	sub {
		my ($xid) = @_;
		my ($rc, $out, $err) = $node->psql('postgres',
			"SET mip.debug_stop_at = 'error:doomed'; SELECT mip.commit('$xid', 1000)");
		isnt($rc, 0, 'doomed, with an unread error: the winner has been cut off');
	});

# It has told the error once it goes back to a savepoint, also where that had failed before.
{
	my $loser = session($node, 'loser that went back');
	fill($node);
	attempt($loser, 'back', 1);
	$loser->sql('SAVEPOINT s');
	$loser->refused('SELECT 1 / 0', $_, "loser that went back: $_") for '22012', '25P02';
	$loser->sql('ROLLBACK TO s');
	prepare_winner('back');
	$loser->send_sql('SELECT pg_sleep(5)');
	$loser->begun;
	my ($rc, $out, $err) = $node->psql('postgres',
		"SET mip.debug_stop_at = 'error:doomed'; SELECT mip.commit('back', 1000)");
	isnt($rc, 0, 'loser that went back: the winner has been cut off');
	($out, $err) = $loser->finish;
	is($err, '', 'loser that went back: its client is there');
	$loser->refused('UPDATE a SET v = 1 WHERE id = 1', 'MP005', 'loser that went back: ... and is told');
	$loser->sql('ROLLBACK');
	win('back', 'loser that went back');
	is_decided($node, 'loser that went back');
	$loser->quit;
}

# A backend that is stopped cannot be ended; the decision stands nevertheless,
# may be repeated, and the loser can do nothing when it wakes.
{
	my $loser = session($node, 'stopped loser');
	fill($node);
	attempt($loser, 'stopped', 1);
	kill 'STOP', $loser->pid;
	prepare_winner('stopped');
	win('stopped', 'stopped loser');
	my ($rc, $out, $err) =
	  $node->psql('postgres', "SELECT * FROM mip.commit('stopped', 1000)");
	is($err, '', 'stopped loser: repeating the commit is harmless');
	is( mip_sql(
			$node, "SELECT state FROM mip.instances('stopped') WHERE xinst = 1000"),
		'committed',
		'stopped loser: the winner is committed');
	$loser->send_sql("SELECT * FROM mip.prepare('', '')");
	kill 'CONT', $loser->pid;
	$loser->ends_refused('MP005|57P01|57014', 'stopped loser: it cannot prepare');
	$loser->quit;
	ok(gone($loser->pid), 'stopped loser: it is gone');
	is_decided($node, 'stopped loser');
	is(states($node, 'stopped'), '1 aborted, 1000 committed',
		'stopped loser: MIPT');
	is(mip_sql($node, 'SELECT v FROM a WHERE id = 1'),
		'100', 'stopped loser: nothing of it is left');
	is_sound($node, 'stopped loser');
}

# ---- one phase: the winner commits while losers are active ----

{
	my %s = map { $_ => session($node, "one phase $_") } 1 .. 3;
	fill($node);
	attempt($s{$_}, 'one', $_) for 1 .. 3;
	$s{1}->send_sql('SELECT pg_sleep(300)');
	$s{1}->begun;
	$s{2}->sql("SELECT * FROM mip.commit_one_phase('', 'two')");
	$s{1}->ends_refused('MP005', 'one phase: a running loser ends');
	ok(gone($s{3}->pid), 'one phase: an idle one loses its session');
	is(states($node, 'one'), '1 aborted, 2 committed, 3 aborted',
		'one phase: MIPT');
	$_->quit for values %s;
	is_complete($node, 2, 'one phase');
}

# ---- no stray cancel in the session's next transaction ----

# The loser's session runs short statements all the time, so that the winner's
# signal comes at every possible moment; whatever does not belong to the lost
# instance must succeed.
{
	my $loops = $ENV{MIP_TEST_LOOPS} || 200;
	fill($node);
	my ($stray, $lost, $ended) = (0, 0, 0);
	my $loser = session($node, 'looping loser');
	my $winner = session($node, 'looping winner');
	for my $i (1 .. $loops)
	{
		my $xid = "loop-$i";
		my $pause = 0.0002 * ($i % 40);
		$winner->sql('BEGIN');
		$winner->sql("SELECT mip.begin('$xid', 1)");
		$winner->sql("SELECT * FROM mip.prepare('', '')");
		$loser->sql('BEGIN');
		$loser->sql("SELECT mip.begin('$xid', 2)");
		$loser->send_sql(
			"SELECT pg_sleep($pause);\nROLLBACK;\n"
			  . "SELECT 'alive', sum(x) FROM generate_series(1, 1000) x;\n"
			  . "BEGIN;\nSELECT 'alive', sum(x) FROM generate_series(1, 1000) x;\n"
			  . "SELECT 'alive', pg_sleep(0.001);\nCOMMIT;\n");
		$winner->sql("SELECT * FROM mip.commit('$xid', 1)");
		my ($out, $err) = $loser->finish;
		if ($err =~ /57P01|terminating/)
		{
			$ended++;
			$loser->quit;
			$loser = session($node, 'looping loser');
			next;
		}
		$lost++ if $err =~ /MP005/;
		my @alive = $out =~ /^alive/mg;
		if (@alive != 3 || $err =~ /57014/)
		{
			$stray++;
			diag "loop $i: $out $err" if $stray < 5;
		}
	}
	note "$lost of $loops were interrupted, $ended ended while idle";
	is($stray, 0, "no stray cancel in $loops loops");
	$_->quit for $loser, $winner;
	is_decided($node, 'loops');
}

$node->stop;
done_testing();
