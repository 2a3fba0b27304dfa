# Every step of an ending fails once: with an error, and with a crash that does
# or does not find the step's WAL on disk. Nobody
# sees half of it; anybody of the family's role completes it, and no other
# winner follows once the hand-over has begun; nothing is left behind. [hand-over-prefix]
# [first-header-decides]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('steps');
my $n = 0;

mip_sql($node, 'CREATE ROLE app; CREATE ROLE mate LOGIN IN ROLE app');

sub fresh
{
	fill($node);
	mip_sql($node, 'GRANT ALL ON a, b TO app; VACUUM (FREEZE) a, b');
	return;
}

# Instance $k of `app` writes, beside the others.
sub begun
{
	my ($xid, $k) = @_;
	my $s = session($node, "instance $k");
	$s->sql('SET ROLE app');
	attempt($s, $xid, $k);
	return $s;
}

# Runs `$sql` in session $s, which stops at $point. After a crash the server
# is up again. $at tells where.
sub stops
{
	my ($s, $action, $point, $sql, $name) = @_;
	my $pid = postmaster_pid($node);

	$s->sql('RESET ROLE') if $sql !~ /commit_one_phase|prepare/;
	$s->sql("SET mip.debug_stop_at = '$action:$point'")
	  if $sql !~ /commit_one_phase|prepare/;
	my ($out, $err) = $s->send_sql($sql)->finish;
	(my $where = $point) =~ s/:.*//;
	like($err, qr/pg_mip: stopped at "$where"/, "$name: stops");
	starts_again($node, $pid) if $action ne 'error';
	return;
}

sub stop_at
{
	my ($s, $action, $point) = @_;
	$s->sql("RESET ROLE; SET mip.debug_stop_at = '$action:$point'; SET ROLE app");
	return;
}

# As another member of the family's role.
sub mate
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql(
		'postgres', $sql,
		extra_params => [ '-U', 'mate', '-v', 'VERBOSITY=verbose' ]);
	return $err;
}

# ---- mip.commit: 1 is the native updater, 2 the winner, 3 is active ----

my @before = ('doomed');
my @begun = (
	'header', 'chunk', 'link', 'header:2', 'link:2', 'chunk:11', 'header:3',
	'link:3', 'header:4', 'chunk:12', 'link:4', 'header:5', 'chunk:22', 'link:5',
	'handed over');
# the prepared loser is rolled back, though not durably so
my @rolled = ('loser', 'losers');
my @after = ('committed', 'evicted', 'noted');

for my $action ('error', 'crash', 'flush')
{
	for my $point (@before, @begun, @rolled, @after)
	{
		my $xid = 'commit-' . ++$n;
		my $name = "mip.commit, $action at $point";
		my $begun = grep { $_ eq $point } @begun;
		my $rolled = grep { $_ eq $point } @rolled;
		my $after = grep { $_ eq $point } @after;
		my $winner = 2;

		fresh();
		my %s = map { $_ => begun($xid, $_) } 1, 2, 3;
		$s{$_}->sql("SELECT * FROM mip.prepare('', '')") for 1, 2;
		# of what precedes the crash as much as possible shall be on disk
		mip_sql($node, 'CHECKPOINT') if $n % 2;
		stops($s{1}, $action, $point, "SELECT * FROM mip.commit('$xid', 2)", $name);

		if ($action eq 'error')
		{
			# the active one has been told to end, once and for all
			my ($out, $err) = $s{3}->send_sql("SELECT count(*) FROM a")->finish;
			like($err, qr/MP005|57P01|closed the connection/,
				"$name: the active loser is through");
			like(states($node, $xid), qr/3 aborted|^[^3]*$/, "$name: and says so");
		}
		is_rows($node, $after ? 2 : 0, "$name: readers");
		if ($after)
		{
			# nothing depends on the replaced versions any more
			mip_sql($node, 'VACUUM a, b');
			is(chunks($node), 22, "$name: replaced values are gone");
		}
		if ($action eq 'crash' && ($begun || $rolled))
		{
			# nobody knows how much of it reached the disk
			my $refused = mate("SELECT * FROM mip.commit('$xid', 1)");
			$winner = 1 if $refused eq '';
			like($refused, $rolled ? qr/^$|MP001|MP006/ : qr/^$|MP001/,
				"$name: another winner");
		}
		elsif ($begun || $rolled || $after)
		{
			like(mate("SELECT * FROM mip.commit('$xid', 1)"),
				$rolled ? qr/MP006/ : qr/MP001/,
				"$name: another winner is refused");
			like(mate("SELECT * FROM mip.rollback('$xid', 2)"),
				$after ? qr/MP001/ : qr/MP006/,
				"$name: the winner cannot be rolled back");
		}
		elsif ($n % 2)
		{
			$winner = 1;
		}
		is(mate("SELECT * FROM mip.commit('$xid', $winner)"),
			'', "$name: a mate completes it");
		is(mate("SELECT * FROM mip.commit('$xid', $winner)"),
			'', "$name: and again");
		$_->quit for values %s;
		my $loser = 3 - $winner;
		like(
			states($node, $xid),
			qr/^(?=.*$winner committed)(?!.*(?:active|prepared))/,
			"$name: decided");
		is_complete($node, $winner, $name);
	}
}

# ---- mip.prepare ----

for my $action ('error', 'flush')
{
	for my $point ('turn', 'row', 'prepared')
	{
		my $xid = 'prepare-' . ++$n;
		my $name = "mip.prepare, $action at $point";

		# an error behind the prepare cannot be
		next if $action eq 'error' && $point eq 'prepared';
		fresh();
		my %s = map { $_ => begun($xid, $_) } 1, 2;
		$s{1}->sql("SELECT * FROM mip.prepare('', '')");
		stop_at($s{2}, $action, $point);
		stops($s{2}, $action, $point, "SELECT * FROM mip.prepare('', '')", $name);
		is( states($node, $xid),
			$point eq 'prepared' ? '1 prepared, 2 prepared' : '1 prepared',
			"$name: MIPT");
		is_rows($node, 0, "$name: readers");
		my $winner = $point eq 'prepared' ? 2 : 1;
		is(mate("SELECT * FROM mip.commit('$xid', $winner)"),
			'', "$name: a mate decides");
		$_->quit for values %s;
		is_complete($node, $winner, $name);
	}
}

# ---- mip.commit_one_phase: 1 and 3 are active ----

for my $action ('error', 'flush')
{
	for my $point ('turn', 'doomed', 'evicted', 'header', 'chunk', 'link',
		'header:4', 'chunk:12', 'link:5', 'handed over', 'losers', 'row')
	{
		my $xid = 'one-' . ++$n;
		my $name = "mip.commit_one_phase, $action at $point";

		fresh();
		my %s = map { $_ => begun($xid, $_) } 1, 2, 3;
		stop_at($s{2}, $action, $point);
		stops($s{2}, $action, $point,
			"SELECT * FROM mip.commit_one_phase('', '')", $name);
		is_rows($node, 0, "$name: readers");
		if ($action eq 'error')
		{
			my ($out, $err) =
			  $s{1}->send_sql('SELECT count(*) FROM a')->finish;
			$point eq 'turn'
			  ? is($err, '', "$name: a sibling goes on")
			  : like($err, qr/MP005|57P01|closed the connection/,
				"$name: its siblings are through");
		}
		$_->quit for values %s;
		ok(wait_until(sub { states($node, $xid) eq '' }),
			"$name: nothing is left");

		# the request is run again
		my $s = begun($xid, 4);
		$s->sql("SELECT * FROM mip.commit_one_phase('', '')");
		$s->quit;
		is(states($node, $xid), '4 committed', "$name: decided");
		is_complete($node, 4, $name);
	}
}

# ---- mip.rollback ----

for my $action ('error', 'flush')
{
	my $xid = 'rollback-' . ++$n;
	my $name = "mip.rollback, $action";

	fresh();
	my %s = map { $_ => begun($xid, $_) } 1, 2;
	$s{$_}->sql("SELECT * FROM mip.prepare('', '')") for 1, 2;
	stops($s{1}, $action, 'rolled back', "SELECT * FROM mip.rollback('$xid', 1)",
		$name);
	is(states($node, $xid), '2 prepared', "$name: MIPT");
	is(mate("SELECT * FROM mip.rollback('$xid', 1)"), '', "$name: again");
	is(mate("SELECT * FROM mip.commit('$xid', 2)"), '', "$name: a mate decides");
	$_->quit for values %s;
	is_complete($node, 2, $name);
}

# ---- the table of out-of-line values is not rewritten before the hand-over ----

{
	my $name = 'table of out-of-line values';
	fresh();
	my $toast = mip_sql($node,
		"SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'b'");
	my %s = map { $_ => session($node, "instance $_") } 1, 2;
	my $admin = session($node, 'admin');
	for my $k (1, 2)
	{
		$s{$k}->sql('BEGIN');
		$s{$k}->sql("SELECT mip.begin('values', $k)");
	}
	# neither of them has written a value
	$s{1}->sql('SELECT id FROM b WHERE id = 1 FOR UPDATE');
	$admin->sql("BEGIN; REINDEX TABLE $toast");
	$s{2}->send_sql('DELETE FROM b WHERE id = 1');
	ok($s{2}->waits, "$name: an overlay waits for a rewrite");
	$s{1}->sql('SET lock_timeout = 10000; UPDATE b SET v = 1 WHERE id = 1');
	pass("$name: its sibling does not wait for it");
	$admin->sql('COMMIT');
	my ($out, $err) = $s{2}->finish;
	is($err, '', "$name: it goes on");
	$s{$_}->sql("SELECT * FROM mip.prepare('', '')") for 1, 2;
	mip_sql($node, "SELECT * FROM mip.rollback('values', 1)");
	$admin->refused("SET lock_timeout = 100; VACUUM FULL $toast",
		'55P03', "$name: a rewrite waits for it");
	mip_sql($node, "SELECT * FROM mip.commit('values', 2)");
	$_->quit for $admin, values %s;
	is(chunks($node), 22, "$name: the deleted row's value is gone");
	is( mip_sql(
			$node,
			"SELECT pg_stat_force_next_flush(); SELECT n_tup_del FROM"
			  . " pg_stat_all_tables WHERE relid = '$toast'::regclass"),
		"\n11",
		"$name: and counted as deleted");
	is_released($node, $name);
	is_sound($node, $name);
}

$node->stop;
done_testing();
