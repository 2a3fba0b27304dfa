# mip.commit waits for one flush, whatever it has to roll back and to note: the
# losers' end comes before the winner's in WAL, and nobody needs the notes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node(
	'losers_unflushed',
	max_prepared_transactions => 20,
	wal_writer_delay => '10s',
	# a page that is written, to make room or ahead of need, flushes too
	shared_buffers => '32MB',
	bgwriter_lru_maxpages => 0);

sub is_unflushed
{
	return mip_sql($node,
		'SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()');
}

mip_sql($node, 'CREATE TABLE diary (n int) USING heap');
my $n = 0;

for my $setting ('on', 'off')
{
	fill($node);
	my $xid = 'notes-' . ++$n;
	my $name = "mip.synchronous_commit_prepared = $setting";
	begin_prepared($node, $xid, 1, 3, 2);
	hold_walwriter($node);
	is( mip_sql($node,
			"SET mip.synchronous_commit_prepared = $setting;"
			  . "SELECT string_agg(xinst || ' ' || state, ', ' ORDER BY xinst)"
			  . " FROM mip.commit('$xid', 2)"),
		'1 aborted, 2 committed, 3 aborted',
		"$name: told");
	is(is_unflushed(), 't', "$name: nobody waits for the notes")
	  if $setting eq 'on';
	power_cut($node);
	if ($setting eq 'on')
	{
		is(states($node, $xid), '2 committed', "$name: the losers are gone for good");
		is(mip_sql($node, "SELECT count(*) FROM mip.in_doubt WHERE xid = '$xid'"),
			0, "$name: nothing is in doubt");
	}
	is(mip_sql($node, "SELECT count(*) FROM mip.commit('$xid', 2)"),
		$setting eq 'on' ? 1 : 3, "$name: again");
	is_rows($node, 2, "$name: rows");
	is_sound($node, $name);
}

# Who has written something else waits for it, notes or not.
fill($node);
begin_prepared($node, 'diary', 1, 2);
hold_walwriter($node);
mip_sql($node,
	"WITH w AS (INSERT INTO diary VALUES (1)) SELECT FROM mip.commit('diary', 2)");
power_cut($node);
is(mip_sql($node, 'SELECT n FROM diary'), 1, 'written besides: kept');
is(states($node, 'diary'), '1 aborted, 2 committed', 'written besides: the notes, too');

done_testing();
