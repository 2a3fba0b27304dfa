# A streaming standby replays what siblings do to pages (checked against the
# primary's pages), answers queries meanwhile, and takes over with two
# prepared siblings.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = mip_node(
	'primary',
	allows_streaming => 1,
	bgwriter_lru_maxpages => 0,    # a page that is written flushes
	wal_consistency_checking => 'all');
fill($primary);
my $standby = standby_of($primary, 'standby');

# What nobody waits for stays unwritten: notes, and what VACUUM does.
hold_walwriter($primary);
my $mipt = 'SELECT m FROM mip.mipt m ORDER BY xid, xinst';

# Index-only scans and the visibility map on both sides
mip_sql($primary, 'VACUUM a; VACUUM b');
catch_up($primary, $standby);
is_rows($standby, 0, 'standby: start');

my $n = 0;
for my $case ([ 1, 1, 2 ], [ 2, 1, 2 ], [ 1, 2, 1 ], [ 2, 2, 1 ], [ 2, 1, 3, 2 ])
{
	my ($winner, @order) = @$case;
	my $xid = 'standby-' . ++$n;
	my $name = "standby: $winner of " . join(' ', @order);

	fill($primary);
	# pages all-visible: the map's bits are to be cleared there as well
	mip_sql($primary, 'VACUUM (FREEZE) a; VACUUM (FREEZE) b');
	begin_prepared($primary, $xid, @order);
	# sets the bits again where only lockers are left
	mip_sql($primary, 'VACUUM a; VACUUM b');
	catch_up($primary, $standby);
	is_rows($standby, 0, "$name: prepared");
	mip_sql($primary, "SELECT * FROM mip.commit('$xid', $winner)");
	catch_up($primary, $standby);
	is(mip_sql($standby, $mipt), mip_sql($primary, $mipt), "$name: the same MIPT");
	is_rows($standby, $winner, "$name: committed");
	mip_sql($primary, 'VACUUM a; VACUUM b');
	catch_up($primary, $standby);
	is_rows($standby, $winner, "$name: after VACUUM");
}

# What the functions say on a standby
my %refused = (
	'mip.begin' => "BEGIN; SELECT mip.begin('s', 1)",
	'mip.commit' => "SELECT * FROM mip.commit('s', 1)",
	'mip.rollback' => "SELECT * FROM mip.rollback('s', 1)",
	'mip.instances' => "SELECT * FROM mip.instances('s')",
	'mip.in_doubt' => 'SELECT * FROM mip.in_doubt',
	'mip.waits' => 'SELECT * FROM mip.waits',
	'mip.refuse' => "SELECT mip.refuse('s', 1, '{}')",
	'mip.forget' => "SELECT mip.forget('s')",
	'mip.acknowledge' => "SELECT mip.acknowledge('s')",
	'mip.expire' => 'SELECT mip.expire()',
	'mip.enable' => "SELECT mip.enable('a')",
	'mip.disable' => "SELECT mip.disable('a')");
my ($rc, $out, $err);
for my $function (sort keys %refused)
{
	($rc, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY verbose\n$refused{$function}");
	like(
		$err,
		qr/25006: cannot execute \Q$function\E (during recovery|in a read-only transaction)/,
		"standby: $function is refused");
}
mip_sql($standby, "$_") for 'SELECT * FROM mip.stats', 'SELECT * FROM mip.finished()',
  "SELECT mip.xid_time('s')";

# Restart the standby in the middle, from a restart point after the prepare
fill($primary);
begin_prepared($primary, 'failover', 1, 2);
catch_up($primary, $standby);
mip_sql($primary, 'CHECKPOINT');
catch_up($primary, $standby);
mip_sql($standby, 'CHECKPOINT');
$standby->restart;
is_rows($standby, 0, 'standby: restarted');

# Whatever a standby answers here must not confuse it after its promotion.
$standby->psql('postgres', 'SELECT * FROM mip.in_doubt');
$standby->psql('postgres', "SELECT * FROM mip.instances('failover')");

crash_server($primary);
$standby->promote;
is(states($standby, 'failover'),
	'1 prepared, 2 prepared', 'promoted: both are prepared');
is(mip_sql($standby, 'SELECT xinst FROM mip.in_doubt ORDER BY 1'),
	"1\n2", 'promoted: both are in doubt');
is_rows($standby, 0, 'promoted: before');

# The prepared instances are siblings of a new one, and in its way.
my $s = session($standby, 'late instance');
$s->sql('BEGIN');
$s->refused("SELECT mip.begin('failover', 1)",
	'MP00[24]', 'promoted: an instance id that is prepared');
$s->sql('ROLLBACK');
attempt($s, 'failover', 3);
pass('promoted: a new instance does not wait for the prepared ones');
$s->sql('ROLLBACK');
$s->quit;

mip_sql($standby, "SELECT * FROM mip.commit('failover', 2)");
is(states($standby, 'failover'),
	'1 aborted, 2 committed', 'promoted: decided');
is_decided($standby, 'promoted');
is_rows($standby, 2, 'promoted');
is_sound($standby, 'promoted');

my $log = slurp_file($standby->logfile);
unlike($log, qr/inconsistent page|PANIC|FATAL:  .*redo/,
	'standby: the replayed pages are the primary\'s');

$standby->stop;
done_testing();
