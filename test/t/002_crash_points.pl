# The server crashes inside mip.commit, at each of its steps; any session
# completes the same winner afterwards, and no other one. [first-header-decides] [hand-over-prefix]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

# Small WAL buffers: the first headers' records reach the disk before the last
# header of many is written, so "handed over" is found after the crash.
my $node = mip_node('crash_points', wal_buffers => '32kB');
my $n = 0;

# Enough out-of-line values and pages to push the first records out of the
# WAL buffers.
sub fill_much
{
	fill($node);
	mip_sql(
		$node, qq[
		DROP TABLE IF EXISTS many;
		CREATE TABLE many (id int PRIMARY KEY, v int, filler text) USING mip;
		INSERT INTO many SELECT i, 0, repeat('x', 50) FROM generate_series(1, 3000) i;
		CHECKPOINT;]);
	return;
}

sub write_much
{
	my ($s, $xid, $k) = @_;
	attempt($s, $xid, $k);
	$s->sql("UPDATE many SET v = $k WHERE id <= 2000");
	$s->sql("DELETE FROM many WHERE id > 2000");
	return;
}

sub much
{
	return mip_sql($node,
		'SELECT count(*), min(v), max(v), count(DISTINCT id) FROM many');
}

sub is_much_complete
{
	my ($winner, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(much(), "2000|$winner|$winner|2000", "$name: many rows");
	is_complete($node, $winner, $name);
	return;
}

# Instance $order[0] is the native updater, those after it have overlays, one
# more is active when the server crashes.
sub crash_at
{
	my ($point, $winner, $other, @order) = @_;
	my $xid = 'crash-' . ++$n;
	my $name = "\"$point\", $winner of " . join(' ', @order);
	my %s = map { $_ => session($node, "instance $_") } @order, 9;

	fill_much();
	write_much($s{$_}, $xid, $_) for @order, 9;
	for my $k (sort { $a <=> $b } @order)
	{
		$s{$k}->sql("SELECT * FROM mip.prepare('request', 'result $k')");
	}
	mip_sql($node, 'CHECKPOINT');
	expect_crash($node, $point, $xid, $winner);
	$_->quit for values %s;
	return ($xid, $name);
}

sub refuses_other
{
	my ($xid, $other, $name) = @_;
	my $s = session($node, 'another');
	$s->refused("SELECT * FROM mip.commit('$xid', $other)",
		'MP001', "$name: another winner is refused");
	$s->quit;
	return;
}

# Nothing has happened yet: any instance may still win.
for my $winner (1, 2)
{
	my ($xid, $name) = crash_at('doomed', 2, 1, 1, 2);
	is(states($node, $xid), '1 prepared, 2 prepared', "$name: both are there");
	is_rows($node, 0, "$name: before");
	mip_sql($node, "SELECT * FROM mip.commit('$xid', $winner)");
	is_much_complete($winner, "$name, then $winner");
}

# The first header may or may not have reached the disk: whoever is accepted
# now wins for good.
for my $other (0, 1)
{
	my ($xid, $name) = crash_at('link', 2, 1, 1, 2);
	my $winner = 2;
	is_rows($node, 0, "$name: before");
	if ($other)
	{
		my ($rc, $out, $err) =
		  $node->psql('postgres', "SELECT * FROM mip.commit('$xid', 1)");
		$winner = 1 if $rc == 0;
		like($err, qr/^$|is being committed/, "$name: another winner");
	}
	mip_sql($node, "SELECT * FROM mip.commit('$xid', $winner)");
	is_much_complete($winner, "$name, then $winner");
}

# Full page images on and off: the second half of the hand-over is repeated on
# pages that have or do not have the first half.
for my $full ('on', 'off')
{
	$node->append_conf('postgresql.conf', "full_page_writes = $full");
	$node->reload;
	for my $order ([ 1, 2 ], [ 2, 1 ], [ 1, 3, 2 ])
	{
		my ($other, $winner) = @$order[ 0, -1 ];
		my ($xid, $name) =
		  crash_at('handed over', $winner, $other, @$order);
		$name .= ", full_page_writes $full";
		is(states($node, $xid),
			join(', ', map { "$_ prepared" } sort @$order),
			"$name: all are there");
		is_rows($node, 0, "$name: before");
		is(much(), '3000|0|0|3000', "$name: many rows before");
		refuses_other($xid, $other, $name);
		my $s = session($node, 'rollback');
		$s->refused("SELECT * FROM mip.rollback('$xid', $winner)",
			'MP006', "$name: nor can it be rolled back");
		$s->quit;
		# and crash again in the middle of the repetition
		expect_crash($node, 'link', $xid, $winner);
		mip_sql($node, "SELECT * FROM mip.commit('$xid', $winner)");
		is_much_complete($winner, $name);
	}
}
$node->append_conf('postgresql.conf', 'full_page_writes = on');
$node->reload;

# The winner is committed, and nothing is noted of its siblings.
for my $vacuum (0, 1)
{
	for my $point ('committed', 'evicted')
	{
		my ($xid, $name) = crash_at($point, 2, 1, 1, 3, 2);
		$name .= ', VACUUM' if $vacuum;
		like(states($node, $xid), qr/2 committed/, "$name: it has won");
		is_rows($node, 2, "$name: before the retry");
		refuses_other($xid, 3, $name);
		if ($vacuum)
		{
			# may remove the replaced versions, which the losers' links name
			mip_sql($node, 'VACUUM (TRUNCATE false) a, b, many');
			is_rows($node, 2, "$name: after VACUUM");
		}
		mip_sql($node, "SELECT * FROM mip.commit('$xid', 2)");
		is_much_complete(2, $name);
	}
}

# A loser's own coordinator may roll it back, whatever became of the rows.
{
	my ($xid, $name) = crash_at('committed', 1, 2, 1, 2);
	$name .= ', losers rolled back';
	mip_sql($node, 'VACUUM (TRUNCATE false) a, b, many');
	my ($rc, $out, $err) =
	  $node->psql('postgres', "SELECT * FROM mip.rollback('$xid', 2)");
	is($err, '', "$name: rollback of a loser");
	mip_sql($node, "SELECT * FROM mip.commit('$xid', 1)");
	is_much_complete(1, $name);
}

# The server stops cleanly between two steps' worth of work.
{
	fill_much();
	my %s = map { $_ => session($node, "instance $_") } 1, 2;
	write_much($s{$_}, 'restart', $_) for 1, 2;
	$s{$_}->sql("SELECT * FROM mip.prepare('', '')") for 1, 2;
	$_->quit for values %s;
	$node->restart;
	mip_sql($node, "SELECT * FROM mip.commit('restart', 2)");
	is_much_complete(2, 'clean restart');
}

$node->stop;
done_testing();
