# A crash between the commit of a winner and its book-keeping keeps the winner's
# links, which are of no use any more. mip.expire empties them, or the worker that
# runs it does, whatever mip.retention is. The values that they replaced are gone
# at once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

use constant ROWS => 2000;

# WAL reaches the disk only if somebody insists. There is no room for a worker that would
# empty them at the start.
my $node = mip_node(
	'links',
	max_prepared_transactions => 8,
	max_worker_processes => 3,
	wal_writer_delay => '10s',
	'mip.retention' => '0');
mip_sql($node,
	'CREATE TABLE t (id int PRIMARY KEY, v int, doc text) USING mip;'
	  . ' ALTER TABLE t ALTER doc SET STORAGE external');

# Two instances have updated every row; the second one's are links.
sub prepared
{
	my ($xid) = @_;
	mip_sql($node,
		'TRUNCATE t; INSERT INTO t SELECT i, 0, CASE WHEN i <= 3 THEN'
		  . " repeat('o', 5000) END FROM generate_series(1, ${\ROWS}) i");
	my @s = map { session($node, "instance $_") } 1, 2;
	for my $k (1, 2)
	{
		$s[ $k - 1 ]->sql('BEGIN');
		$s[ $k - 1 ]->sql("SELECT mip.begin('$xid', $k)");
		$s[ $k - 1 ]->sql("UPDATE t SET v = $k, doc = NULL");
	}
	for my $s (@s)
	{
		$s->sql("SELECT * FROM mip.prepare('request', 'result')");
		$s->quit;
	}
	return;
}

# How many bytes of links has the family, out of line or not?
sub links
{
	my ($xid) = @_;
	return mip_sql($node,
		"SELECT coalesce(sum(octet_length(links)), 0) FROM mip.mipt WHERE xid = '$xid'");
}

# Out-of-line chunks of a table, after VACUUM
sub out_of_line
{
	my ($table) = @_;
	mip_sql($node, "VACUUM $table");
	my $toast = mip_sql($node,
		"SELECT reltoastrelid::regclass FROM pg_class WHERE oid = '$table'::regclass");
	return mip_sql($node, "SELECT count(*) FROM $toast");
}

sub is_empty
{
	my ($xid, $name) = @_;
	is(links($xid), 0, "$name: the links are gone");
	is(out_of_line('mip.mipt'), 0, "$name: and so is what was out of line");
	is(mip_sql($node, "SELECT xinst, result FROM mip.instances('$xid') WHERE state = 'committed'"),
		'2|result', "$name: the winner is told as ever");
	is(mip_sql($node, 'SELECT count(*) FROM t WHERE v = 2'), ROWS, "$name: rows");
	return;
}

# ---- what is needed stays, so the commit finds it ----

prepared('needed');
is(mip_sql($node, 'SELECT mip.expire()'), 0, 'prepared: nothing is counted');
my $gate = session($node, 'gate');
$gate->sql('SELECT pg_advisory_lock(1)');
my $s = session($node, 'commit');
$s->sql("SET mip.debug_stop_at = 'wait:committed'");
$s->send_sql("SELECT xinst FROM mip.commit('needed', 2)");
wait_until(sub { mip_sql($node, "SELECT count(*) FROM t WHERE v = 2") == ROWS });
is(mip_sql($node, "SET lock_timeout = '5s'; SELECT mip.expire()"),
	0, 'a family that is being decided is not waited for');
cmp_ok(links('needed'), '>', 10 * ROWS, 'and left alone');
$gate->quit;
$s->finish;
$s->quit;
is_empty('needed', 'a commit does it itself');

# ---- crashes ----

for my $point ('committed', 'evicted', undef)
{
	my $name = $point // 'books that are not flushed';
	(my $xid = $name) =~ s/\W+/-/g;
	prepared($xid);
	if ($point)
	{
		expect_crash($node, $point, $xid, 2);
	}
	else
	{
		hold_walwriter($node);
		mip_sql($node, "SELECT * FROM mip.commit('$xid', 2)");
		power_cut($node);
	}
	is(states($node, $xid), '2 committed', "$name: committed");
	cmp_ok(links($xid), '>', 10 * ROWS, "$name: the links are still there");
	is(out_of_line('t'), 0, "$name: replaced values are not");
	is(mip_sql($node, 'SELECT mip.expire()'), 0, "$name: nothing is counted");
	is_empty($xid, $name);
}

# by itself
prepared('background');
mip_sql($node, 'ALTER SYSTEM SET max_worker_processes = 8');
expect_crash($node, 'committed', 'background', 2);
mip_sql($node, "BEGIN; SELECT mip.begin('other', 1); ROLLBACK");
$node->reload;
ok(wait_until(sub { links('background') == 0 }), 'in the background: emptied');
is_empty('background', 'in the background');

$node->stop;
done_testing();
