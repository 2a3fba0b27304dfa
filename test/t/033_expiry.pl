# What has been acknowledged, has expired or was refused as too old stays so
# through crashes at any step, dumps, and the promotion of a standby. [entry-or-horizon] [horizon-first]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;
use Time::Local qw(timegm);

# WAL reaches the disk only if somebody insists.
my $node = mip_node(
	'expiry',
	allows_streaming => 1,
	synchronous_commit => 'off',
	wal_writer_delay => '10s',
	'mip.retention' => '0');
mip_sql($node, 'CREATE TABLE t (v int) USING mip; INSERT INTO t VALUES (0); CHECKPOINT');

# The XID made in that year
sub xid_of
{
	my ($year) = @_;
	my $time = timegm(0, 0, 0, 1, 0, $year) * 1000;
	return sprintf('%08x-%04x-7000-8000-000000000000', $time >> 16, $time & 0xffff);
}

# An attempt at it: how its commit ends.
sub attempt_at
{
	my ($on, $xid, $xinst, $database) = @_;
	my ($rc, $out, $err) = $on->psql(
		$database // 'postgres', qq[
		\\set VERBOSITY sqlstate
		BEGIN; SELECT FROM mip.begin('$xid', $xinst);
		UPDATE t SET v = v + 1;
		SELECT state FROM mip.commit_one_phase('request', 'result')]);
	return $err =~ /(MP\d+)/ ? $1 : $out =~ /committed/ ? 'committed' : "$out $err";
}

sub value { return mip_sql($_[0], 'SELECT v FROM t'); }
sub entries { return mip_sql($_[0], "SELECT count(*) FROM mip.mipt WHERE xid = '$_[1]'"); }

# mip.expire stops there, and runs again: until then the entry answers so.
sub expire_crashes
{
	my ($settings, $stop, $xid, $answer, $name) = @_;
	my $pid = postmaster_pid($node);
	my $stderr = '';

	$node->psql('postgres',
		"$settings SET mip.debug_stop_at = '$stop'; SELECT mip.expire()",
		stderr => \$stderr);
	like($stderr, qr/PANIC:  pg_mip: stopped/, "$name: crashes");
	starts_again($node, $pid);
	is(entries($node, $xid), 1, "$name: the entry is there");
	is(attempt_at($node, $xid, 2), $answer, "$name: and answers");
	is(mip_sql($node, "$settings SELECT mip.expire()"), 1, "$name: removed then");
	power_cut($node);
	is(entries($node, $xid), 0, "$name: for good");
	return;
}

my $retention = 'SET mip.retention = 1;';

# mip.expire stops between moving the horizon and removing, and before its
# commit: in memory, or on disk.
my $year = 2001;
for my $action ('crash', 'flush')
{
	for my $point ('horizon', 'removed')
	{
		my $name = "$action at \"$point\"";
		my $xid = xid_of(++$year);
		my $newer = xid_of($year + 1);

		is(attempt_at($node, $xid, 1), 'committed', "$name: a request");
		my $before = value($node);
		expire_crashes($retention, "$action:$point", $xid, 'MP001', $name);
		is(attempt_at($node, $xid, 3), 'MP007', "$name: refused then");
		is(value($node), $before, "$name: not done twice");
	}
}

# XIDs without a time: removed with the commit that says so, or not at all.
my $timeless = 'SET mip.retention_timeless = 1; SET mip.debug_clock_offset = 2;';
for my $action ('crash', 'flush')
{
	my $name = "timeless, $action at \"removed\"";
	my $xid = "timeless $action";

	is(attempt_at($node, $xid, 1), 'committed', "$name: a request");
	mip_sql($node, "SELECT mip.acknowledge('$xid')") if $action eq 'flush';
	expire_crashes($timeless, "$action:removed", $xid,
		$action eq 'flush' ? 'MP007' : 'MP001', $name);
	is(attempt_at($node, $xid, 3), 'committed', "$name: sent again it is a new request");
	mip_sql($node, "SELECT mip.forget('$xid')");
}

# Who has been told "never again" can rely on it.
my $refused = xid_of(2010);
mip_sql($node, 'ALTER SYSTEM SET mip.retention = 1');
$node->reload;
ok(wait_until(sub { mip_sql($node, 'SHOW mip.retention') eq '1s' }), 'retention of a second');
is(attempt_at($node, $refused, 1), 'MP007', 'too old by the clock');
mip_sql($node, 'ALTER SYSTEM RESET mip.retention');
power_cut($node);
is(attempt_at($node, $refused, 2), 'MP007', 'refused for ever');

# Who has acknowledged, too, even if other sites have removed it since.
is(attempt_at($node, 'acknowledged', 1), 'committed', 'a request without a time');
mip_sql($node, "SELECT mip.acknowledge('acknowledged')");
power_cut($node);
is(attempt_at($node, 'acknowledged', 2), 'MP007', 'acknowledged for ever');

# A dump, and a standby
my $kept = xid_of(2020);
is(attempt_at($node, $kept, 1), 'committed', 'a request that is kept');
my $standby = standby_of($node, 'expiry_standby');
my $removed = xid_of(2015);
is(attempt_at($node, $removed, 1), 'committed', 'one that is removed');
# (the clock is such that the two are on either side of the retention)
is( mip_sql(
		$node,
		"SELECT set_config('mip.retention', '30d', false), set_config('mip.debug_clock_offset',"
		  . " extract(epoch FROM timestamptz '2018-01-01' - now())::int::text, false);"
		  . ' SELECT mip.expire()') =~ s/.*\n//r,
	1,
	'the older one goes');
# ... and one without a time, which is forgotten everywhere
is(attempt_at($node, 'forgotten', 1), 'committed', 'one without a time');
is(attempt_at($node, 'remembered', 1), 'committed', 'and one that stays');
mip_sql($node, "UPDATE mip.mipt SET since = '2010-01-01' WHERE xid = 'forgotten'");
is(mip_sql($node, "SET mip.retention_timeless = '30d'; SELECT mip.expire()"), 1, 'it goes');
catch_up($node, $standby);
my $file = $node->basedir . '/dump';
$node->command_ok([ 'pg_dump', '-f', $file, $node->connstr('postgres') ], 'pg_dump');
mip_sql($node, 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-d',
		$node->connstr('restored') ], 'restored');
$standby->promote;

for my $case ([ $removed, 'MP007' ], [ $refused, 'MP007' ], [ 'acknowledged', 'MP007' ],
	[ $kept, 'MP001' ], [ xid_of(2016), 'committed' ],
	[ 'forgotten', 'committed' ], [ 'remembered', 'MP001' ])
{
	my ($xid, $expected) = @$case;
	is(attempt_at($node, $xid, 9, 'restored'), $expected, "restored: $xid: $expected");
	is(attempt_at($standby, $xid, 9), $expected, "promoted: $xid: $expected");
}
is(value($standby), value($node) + 2, 'promoted: two requests more');

$standby->stop;

# An entry that no function has made may have an XID of any length; whoever removes it has the lock of that one, and
# afterwards not a shorter one's in its place.
{
	my $xid = 'y' x 128;
	my ($mover, $other, $gate) = map { session($node, $_) } 'mover', 'other', 'gate';

	mip_sql($node, "BEGIN; SELECT mip.begin('$xid', 1); SELECT FROM mip.prepare(NULL, NULL)");
	$mover->sql("SET mip.retention_timeless = '1s'");
	$mover->sql('SELECT * FROM mip.expire()');
	mip_sql($node, "INSERT INTO mip.mipt (xid, xinst, owner, since, aborted, acknowledged)"
		. " VALUES ('${xid}tail', 1, current_user::regrole, '2001-01-01', false, true)");
	is($mover->sql('SELECT * FROM mip.expire()'), '1', 'an XID that is longer than any of ours: expired');
	$gate->sql('SELECT pg_advisory_lock(1)');
	$mover->sql("SET mip.debug_stop_at = 'wait:doomed'");
	$mover->send_sql("SELECT FROM mip.commit('$xid', 1)");
	ok($mover->waits_for("locktype = 'advisory'"), '... its beginning is being committed');
	$other->sql('BEGIN');
	$other->send_sql("SELECT mip.begin('$xid', 2)");
	ok($other->waits_for("locktype = 'userlock'"), '... nobody begins meanwhile');
	$gate->sql('SELECT pg_advisory_unlock(1)');
	my ($out, $err) = $mover->finish;
	is($err, '', '... which goes on');
	$other->ends_refused('MP001', '... and is then told of');
	$_->quit for $mover, $other, $gate;
}

$node->stop;
done_testing();
