# Instances in doubt are pushed: NOTIFY in their database, again and again
# while they stay, after a restart, a crash and a promotion, beside databases
# that have been dropped or have lost the extension. Expired entries go.
# [rebuilt-first]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::Local qw(timegm);

my $node = mip_node(
	'push',
	allows_streaming => 1,
	autovacuum => 'off',
	'mip.push_after' => '100ms');
mip_sql($node, 'CREATE TABLE t (v int) USING mip');
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(other without dropped);
$node->safe_psql($_, 'CREATE EXTENSION pg_mip; CREATE TABLE t (v int) USING mip')
  for qw(other dropped);

# A session that listens; counts what it has been told.
{
	package Listener;

	sub new
	{
		my ($class, $on, $database) = @_;
		my $psql = $on->background_psql($database, on_error_stop => 0);
		$psql->query_safe('LISTEN mip_in_doubt');
		return bless { psql => $psql, told => 0 }, $class;
	}

	# True once `$n` more notifications have come.
	sub hears
	{
		my ($self, $n) = @_;
		my $wanted = $self->{told} + $n;
		return main::wait_until(
			sub {
				$self->look;
				return $self->{told} >= $wanted;
			});
	}

	sub look
	{
		my ($self) = @_;
		my $out = $self->{psql}->query('SELECT 1');
		$self->{told}++
		  while $out =~ /^Asynchronous notification "mip_in_doubt" received/mg;
		die "XIDs are nobody's business: $out" if $out =~ /payload/;
		return;
	}

	sub quit { return $_[0]{psql}->quit; }
}

sub prepare
{
	my ($on, $database, $xid, $xinst) = @_;
	$on->safe_psql(
		$database, qq[
		BEGIN; SELECT mip.begin('$xid', $xinst);
		INSERT INTO t VALUES ($xinst);
		SELECT FROM mip.prepare('secret', 'result')]);
	return;
}

sub workers_gone
{
	my ($on) = @_;
	return wait_until(
		sub {
			mip_sql($on,
				"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_mip worker'"
			) == 0;
		});
}

# One database among several
my $here = Listener->new($node, 'postgres');
my $there = Listener->new($node, 'other');
prepare($node, 'postgres', 'first', 1);
ok($here->hears(3), 'pushed, again and again');
$there->look;
is($there->{told}, 0, 'in its database only');
prepare($node, 'other', 'second', 1);
ok($there->hears(1), 'pushed in another database');
$node->safe_psql('other', "SELECT FROM mip.commit('second', 1)");
is(mip_sql($node, 'SELECT count(*) FROM mip.in_doubt'), 1, 'in doubt');

# What was prepared before a restart, or a crash, is found without anybody
# having called a function: nobody is connected to that database even.
$_->quit for $here, $there;
$node->restart;
$here = Listener->new($node, 'postgres');
ok($here->hears(1), 'pushed after a restart');
$here->quit;
power_cut($node);
$here = Listener->new($node, 'postgres');
ok($here->hears(1), 'pushed after a crash');

# A decided one is not pushed any more; others are.
prepare($node, 'postgres', 'third', 1);
mip_sql($node, "SELECT FROM mip.commit('first', 1)");
ok($here->hears(2), 'the next one is pushed');
# (the one that decides it fails before it has said so)
my ($rc, $out, $err) = $node->psql('postgres',
	q[SET mip.debug_stop_at = 'error:finished'; SELECT FROM mip.commit('third', 1)]);
like($err, qr/stopped at "finished"/, 'decided, but nobody has been told');
workers_gone($node);
$here->look;
my $told = $here->{told};
prepare($node, 'other', 'fourth', 1);
$there = Listener->new($node, 'other');
ok($there->hears(3), 'elsewhere something is in doubt');
$here->look;
is($here->{told}, $told, 'nothing is pushed where nothing is in doubt');

# Switched off, and on again
$node->append_conf('postgresql.conf', "mip.push_after = 0");
$node->reload;
ok(wait_until(sub { mip_sql($node, 'SHOW mip.push_after') eq '0' }), 'switched off');
workers_gone($node);
$there->quit;
$there = Listener->new($node, 'other');
prepare($node, 'other', 'fifth', 1);
$node->append_conf('postgresql.conf', "mip.push_after = '100ms'");
$node->reload;
ok($there->hears(1), 'switched on');

# A database cannot keep its worker, and thereby all others, waiting.
prepare($node, 'other', 'settings', 1);
my $writer = $node->background_psql('other');
$writer->query_safe('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM t');
mip_sql($node, "ALTER DATABASE other SET default_transaction_$_")
  for "isolation = 'serializable'", 'read_only = on', 'deferrable = on';
$there->look;
ok($there->hears(2), 'pushed without waiting for a safe snapshot');
$writer->quit;
mip_sql($node, 'ALTER DATABASE other RESET ALL');
$node->safe_psql('other', "SELECT FROM mip.commit('settings', 1)");

# Nothing is kept open between pushes.
ok( wait_until(
		sub {
			mip_sql($node,
				"SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'pg_mip'"
				  . ' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR datname IS NOT NULL)'
			) == 0;
		}),
	'no transaction, no snapshot, no database');

# A database dropped meanwhile
prepare($node, 'dropped', 'sixth', 1);
my $dropped = Listener->new($node, 'dropped');
ok($dropped->hears(1), 'pushed in a database to be dropped');
$dropped->quit;
$node->safe_psql('dropped', "SELECT FROM mip.commit('sixth', 1)");
ok( wait_until(sub { ($node->psql('postgres', 'DROP DATABASE dropped'))[0] == 0 }),
	'dropped');
ok($there->hears(1), 'others go on');

# However many are in doubt, each since another time: a worker now and then.
$node->append_conf('postgresql.conf', "mip.push_after = '500ms'");
$node->reload;
ok(wait_until(sub { mip_sql($node, 'SHOW mip.push_after') eq '500ms' }), 'less often');
my @many = map { "many-$_" } 1 .. 15;
my $since = "SELECT pushes, extract(epoch FROM clock_timestamp()) FROM mip.stats";
my ($pushes, $began) = split /\|/, mip_sql($node, $since);
mip_sql($node, join ';', map {
	"BEGIN; SELECT mip.begin('$_', 1); INSERT INTO t VALUES (1); SELECT FROM mip.prepare('', '');"
	  . ' SELECT pg_sleep(0.05)' } @many);
ok($here->hears(3), 'many are pushed');
mip_sql($node, 'SELECT pg_sleep(1)');
my ($pushes_then, $then) = split /\|/, mip_sql($node, $since);
cmp_ok($pushes_then - $pushes, '<=', ($then - $began) / 0.5 + 1, 'together');
mip_sql($node, join ';', map { "SELECT FROM mip.commit('$_', 1)" } @many);
$node->append_conf('postgresql.conf', "mip.push_after = '100ms'");
$node->reload;

# No worker to be had
$node->append_conf('postgresql.conf', 'max_worker_processes = 3');
my $log = -s $node->logfile;
$_->quit for $here, $there;
$node->restart;
ok( wait_until(
		sub {
			slurp_file($node->logfile, $log) =~
			  /WARNING:  pg_mip cannot start a background worker.*HINT:  You might need to increase max_worker_processes/s;
		}),
	'complains that there is no worker');
is(mip_sql($node, 'SELECT 1'), 1, 'and lives on');
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
$there = Listener->new($node, 'other');
ok($there->hears(1), 'pushed with a worker');

# A launcher that is terminated comes back.
my $launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_mip launcher'";
my $pid = mip_sql($node, $launcher);
mip_sql($node, "SELECT pg_terminate_backend($pid)");
ok(wait_until(sub { mip_sql($node, $launcher) !~ /^($pid)?$/ }), 'a new launcher');
ok($there->hears(1), 'pushed by the new one');

# A standby pushes once it is promoted.
my $standby = standby_of($node, 'push_standby');
catch_up($node, $standby);
is( mip_sql(
		$standby,
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'pg_mip'"),
	0,
	'nobody pushes on a standby');
$there->quit;
$node->stop('immediate');
$standby->promote;
$log = -s $standby->logfile;
$there = Listener->new($standby, 'other');
ok($there->hears(2), 'pushed after a promotion');
$standby->safe_psql('other', "SELECT FROM mip.commit('$_', 1)") for qw(fourth fifth);

# Entries past the retention of their database go by themselves; who has dropped the extension since is passed over.
my $time = timegm(0, 0, 0, 1, 0, 2020) * 1000;
my $old = sprintf('%08x-%04x-7000-8000-000000000000', $time >> 16, $time & 0xffff);
$standby->safe_psql('without', 'CREATE EXTENSION pg_mip');
$standby->safe_psql('postgres', 'ALTER DATABASE postgres SET mip.retention = 0');
for my $database ('without', 'postgres', 'other')
{
	$standby->safe_psql(
		$database, qq[
		SET mip.retention = 0;
		BEGIN; SELECT mip.begin('$old', 1);
		SELECT FROM mip.commit_one_phase('request', 'result')]);
}
$standby->safe_psql('without', 'DROP EXTENSION pg_mip');
$standby->reload;
ok( wait_until(
		sub {
			$standby->safe_psql('other', "SELECT count(*) FROM mip.mipt WHERE xid = '$old'") == 0;
		}),
	'removed by the worker');
is(mip_sql($standby, "SELECT count(*) FROM mip.mipt WHERE xid = '$old'"), 1, 'or kept');
unlike(slurp_file($standby->logfile, $log), qr/(ERROR|FATAL|WARNING): /, 'no worker has failed');
$there->quit;

# So they do where no instance has begun since the server started.
$standby->safe_psql('postgres', 'ALTER DATABASE postgres RESET mip.retention');
$standby->stop;
$log = -s $standby->logfile;
$standby->start;
ok(wait_until(sub { mip_sql($standby, "SELECT count(*) FROM mip.mipt WHERE xid = '$old'") == 0 }),
	'removed after a restart');
unlike(slurp_file($standby->logfile, $log), qr/(ERROR|FATAL|WARNING): /, 'in no database a worker has failed');
$standby->stop;
done_testing();
