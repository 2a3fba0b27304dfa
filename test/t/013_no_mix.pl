# A statement of a doomed loser that runs on through the whole hand-over never
# returns a mix of the loser's versions and the base versions: the rows that
# it returns are the loser's, each once, until MP005 ends it. [doomed-before-header]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('no_mix');
my $n = 0;

# Of 2,000 rows the first half is deleted and vacuumed, so that the loser's
# versions of the second half come both before and, in the order of ids,
# between the base versions.
sub fresh
{
	mip_sql(
		$node, q[
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS w;
		CREATE TABLE w (id int PRIMARY KEY, v int, filler text) USING mip;
		INSERT INTO w SELECT i, 0, repeat('x', 100) FROM generate_series(1, 2000) i;
		DELETE FROM w WHERE id <= 1000;
		VACUUM w;
		ANALYZE w]);
	return;
}

sub waits_at
{
	my ($s, $lock) = @_;
	return $s->waits_for("locktype = 'advisory' AND objid = $lock");
}

# (rows, different ids, different values of v)
sub summary
{
	my ($out) = @_;
	my (%ids, %values);
	my @rows = grep { /^\d+\t\d+/ } split /\n/, $out;
	for (@rows)
	{
		my ($id, $v) = split /\t/;
		$ids{$id} = $values{$v} = 1;
	}
	return (scalar(@rows), scalar(keys %ids), join(' ', sort keys %values));
}

my %plans = (
	'sequential scan' => 'SET LOCAL enable_indexscan = off;'
	  . ' SET LOCAL enable_bitmapscan = off',
	'index scan' => 'SET LOCAL enable_seqscan = off;'
	  . ' SET LOCAL enable_bitmapscan = off;'
	  . ' SET LOCAL enable_indexonlyscan = off',
	'bitmap scan' => 'SET LOCAL enable_seqscan = off;'
	  . ' SET LOCAL enable_indexscan = off',
	'TID scan' => 'SET LOCAL enable_seqscan = on',
	'cursor' => 'SET LOCAL enable_seqscan = off;'
	  . ' SET LOCAL enable_bitmapscan = off');

# The winner is held up at $point, with so many headers changed, while the
# loser's statement goes on.
sub reads_through
{
	my ($plan, $point) = @_;
	my $xid = 'mix-' . ++$n;
	my $name = "$plan, winner at $point";
	my %s = map { $_ => session($node, $_) } 'loser', 'winner', 'gates';

	fresh();
	my $tids = mip_sql($node,
		q[SELECT 'ARRAY[' || string_agg(quote_literal(format('(%s,%s)', b, o)), ',')
		|| ']::tid[]' FROM generate_series(0, 40) b, generate_series(1, 80) o]);
	for my $k (1, 2)
	{
		my $s = $s{ $k == 1 ? 'loser' : 'winner' };
		$s->sql('BEGIN');
		$s->sql("SELECT mip.begin('$xid', $k)");
		$s->sql("UPDATE w SET v = $k");
	}
	$s{winner}->sql("SELECT * FROM mip.prepare('', '')");

	$s{gates}->sql('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
	$s{loser}->sql($plans{$plan});
	my $where = $plan eq 'TID scan' ? "ctid = ANY ($tids)" : 'id > 0';
	my $first = '';
	if ($plan eq 'cursor')
	{
		$s{loser}->sql('DECLARE c CURSOR FOR SELECT id, v FROM w WHERE id > 0');
		$first = $s{loser}->sql('FETCH 300 FROM c');
		$first =~ s/\|/\t/g;
	}
	else
	{
		# at one row it is held up; no statement of its own looks around there
		$s{loser}->send_sql(
			"COPY (SELECT id, v, CASE id WHEN 1300 THEN"
			  . " pg_advisory_xact_lock_shared(2)::text END FROM w WHERE $where) TO STDOUT");
		ok(waits_at($s{loser}, 2), "$name: the statement is under way");
	}

	$s{winner}->sql("SET mip.debug_stop_at = 'wait:$point'");
	$s{winner}->send_sql("SELECT * FROM mip.commit('$xid', 2)");
	ok(waits_at($s{winner}, 1), "$name: the winner has begun its hand-over");
	$s{gates}->sql('SELECT pg_advisory_unlock(2)');
	$s{loser}->send_sql('FETCH ALL FROM c') if $plan eq 'cursor';
	my ($out, $err) = $s{loser}->finish;
	like($err, qr/MP005/, "$name: the loser's statement ends");
	my ($rows, $ids, $values) = summary("$first\n$out");
	cmp_ok($rows, '>=', 100, "$name: it has returned rows ($rows)");
	is($ids, $rows, "$name: each row once");
	is($values, '1', "$name: its own versions only");

	$s{gates}->sql('SELECT pg_advisory_unlock(1)');
	($out, $err) = $s{winner}->finish;
	is($err, '', "$name: the winner commits");
	is(mip_sql($node, 'SELECT count(*), min(v), max(v) FROM w'),
		'1000|2|2', "$name: the winner's rows");
	$_->quit for values %s;
	is_decided($node, $name);
	return;
}

# Asked for a row's latest version behind the hand-over, which has led the row's
# first one to the winner's, it says nothing either.
sub asks_for_latest
{
	my $name = 'latest version';
	my %s = map { $_ => session($node, $_) } 'loser', 'winner', 'gates';

	fresh();
	my $base = mip_sql($node, 'SELECT ctid FROM w WHERE id = 1500');
	for my $k (1, 2)
	{
		my $s = $s{ $k == 1 ? 'loser' : 'winner' };
		$s->sql('BEGIN');
		$s->sql("SELECT mip.begin('mix-latest', $k)");
		$s->sql('UPDATE w SET v = v + 1 WHERE id = 1500');
	}
	my $own = $s{loser}->sql('SELECT ctid FROM w WHERE id = 1500');
	is($s{loser}->sql("SELECT currtid2('w', '$base')"), $own, "$name: the loser's own");
	$s{winner}->sql("SELECT * FROM mip.prepare('', '')");

	$s{gates}->sql('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
	$s{loser}->send_sql("COPY (SELECT pg_advisory_xact_lock_shared(2),"
		  . " currtid2('w', '$base')) TO STDOUT");
	ok(waits_at($s{loser}, 2), "$name: the statement is under way");
	$s{winner}->sql("SET mip.debug_stop_at = 'wait:handed over'");
	$s{winner}->send_sql("SELECT * FROM mip.commit('mix-latest', 2)");
	ok(waits_at($s{winner}, 1), "$name: the winner has handed over");
	$s{gates}->sql('SELECT pg_advisory_unlock(2)');
	my ($out, $err) = $s{loser}->finish;
	like($err, qr/MP005/, "$name: the loser's statement ends");
	unlike($out, qr/\(\d+,\d+\)/, "$name: it is told of none");
	$s{gates}->sql('SELECT pg_advisory_unlock(1)');
	($out, $err) = $s{winner}->finish;
	is($err, '', "$name: the winner commits");
	$_->quit for values %s;
	return;
}

asks_for_latest();
for my $plan (sort keys %plans)
{
	reads_through($plan, $_) for 'link:500', 'handed over', 'committed';
}
is_sound($node, 'in the end');

$node->stop;
done_testing();
