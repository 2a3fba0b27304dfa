# kill -9 of the server with one and with two prepared siblings, before and
# after a checkpoint; either of them may win afterwards.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('kill9');
my $n = 0;

sub survive
{
	my ($order, $winner, $checkpoint) = @_;
	my $xid = 'kill9-' . ++$n;
	my $name = sprintf('%s written in order %s, %s wins',
		$checkpoint ? 'checkpoint,' : 'no checkpoint,',
		join(' ', @$order), $winner || 'none');
	my @all = sort @$order;

	fill($node);
	begin_prepared($node, $xid, @$order);
	mip_sql($node, 'CHECKPOINT') if $checkpoint;
	power_cut($node);

	is(states($node, $xid), join(', ', map { "$_ prepared" } @all),
		"$name: all are prepared again");
	is(mip_sql($node, 'SELECT xinst FROM mip.in_doubt ORDER BY 1'),
		join("\n", @all), "$name: all are in doubt");
	is_rows($node, 0, "$name: before");

	if ($winner)
	{
		mip_sql($node, "SELECT * FROM mip.commit('$xid', $winner)");
		is( states($node, $xid),
			join(', ',
				map { "$_ " . ($_ == $winner ? 'committed' : 'aborted') } @all),
			"$name: decided");
	}
	else
	{
		mip_sql($node, "SELECT * FROM mip.rollback('$xid', $_)") for @all;
	}
	is_complete($node, $winner, $name);
	return;
}

for my $checkpoint (0, 1)
{
	survive([1], 1, $checkpoint);
	survive([ 1, 2 ], 1, $checkpoint);
	survive([ 1, 2 ], 2, $checkpoint);
	survive([ 2, 1 ], 1, $checkpoint);
	survive([ 2, 1 ], 2, $checkpoint);
}
survive([ 2, 1 ], 0, 1);
survive([ 1, 3, 2 ], 2, 0);

# A second crash, right after the decision, finds it.
fill($node);
begin_prepared($node, 'twice', 1, 2);
power_cut($node);
mip_sql($node, "SELECT * FROM mip.commit('twice', 2)");
power_cut($node);
# The note of a loser that has been rolled back is not.
like(states($node, 'twice'), qr/^(1 aborted, )?2 committed$/, 'the decision is durable');
is_decided($node, 'second crash');
is_rows($node, 2, 'second crash');
is_sound($node, 'second crash');

# Outsiders' unique checks wait for a prepared delete in an overlay, even if
# nobody has called a function of the extension since the crash.
fill($node);
begin_prepared($node, 'unique', 1, 3);
mip_sql($node, "SELECT * FROM mip.rollback('unique', 1)");
power_cut($node);
my $s = session($node, 'outsider');
$s->refused("SET lock_timeout = 100; INSERT INTO a VALUES (3, 0, 'again')",
	'55P03', 'unique check: it waits for the overlay');
mip_sql($node, "SELECT * FROM mip.commit('unique', 3)");
$s->sql("INSERT INTO a VALUES (3, 0, 'again')");
$s->quit;
is_decided($node, 'unique check');
is_sound($node, 'unique check');

$node->stop;
done_testing();
