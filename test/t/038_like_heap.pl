# From a hand-over on every page is what heap alone would have made of it by the
# same statements: header by header, on a standby, too. Whoever goes by versions
# then finds what he is used to: VACUUM FULL and CLUSTER keep the chains from
# old to new versions together, along which foreign keys are checked.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $primary = mip_node('primary', allows_streaming => 1, wal_keep_size => '1GB');
my $standby = standby_of($primary, 'standby');

# An overlay's versions are never HOT, so a column of an index is changed everywhere.
# Heap lets versions share an out-of-line value that stays; an overlay's do not.
sub set_up
{
	my ($am) = @_;
	mip_sql(
		$primary, qq[
		SET client_min_messages = warning;
		DROP SCHEMA IF EXISTS s CASCADE;
		CREATE SCHEMA s;
		SET search_path = s, public;
		SET default_table_access_method = $am;
		CREATE TABLE t (id int PRIMARY KEY, k int, v text);
		CREATE INDEX ON t (k);
		INSERT INTO t SELECT i, i, 'old' FROM generate_series(1, 4) i;
		CREATE TABLE docs (id int PRIMARY KEY, k int, doc text, note text);
		CREATE INDEX ON docs (k);
		ALTER TABLE docs ALTER doc SET STORAGE external, ALTER note SET STORAGE external;
		INSERT INTO docs SELECT i, i, repeat('o', 3000), repeat('n', 4000) FROM generate_series(1, 4) i;
		CREATE TABLE part (id int, k int) PARTITION BY LIST (k);
		CREATE TABLE part1 PARTITION OF part FOR VALUES IN (1);
		CREATE TABLE part2 PARTITION OF part FOR VALUES IN (2);
		INSERT INTO part SELECT i, 1 FROM generate_series(1, 4) i;
		-- a header that has told of a command id for two commands
		CREATE TABLE combo (id int PRIMARY KEY, k int);
		CREATE INDEX ON combo (k);
		BEGIN;
		INSERT INTO combo VALUES (1, 1);
		SAVEPOINT a;
		DELETE FROM combo;
		ROLLBACK TO a;
		COMMIT;
		-- no room on its first page
		CREATE TABLE wide (id int PRIMARY KEY, k int, v text);
		CREATE INDEX ON wide (k);
		INSERT INTO wide SELECT i, i, repeat('w', 1000) FROM generate_series(1, 8) i]);
	return;
}

# [name, what a transaction does, what a sibling has done, what outsiders have locked
# before, and still have]
my $row = 'SELECT FROM t WHERE id = 1 FOR NO KEY UPDATE';
my $update = 'UPDATE t SET k = k + 10 WHERE id = 1';
my $key_update = 'UPDATE t SET id = 10 WHERE id = 1';
my $delete = 'DELETE FROM t WHERE id = 1';
my $key_share = 'SELECT FROM t WHERE id = 1 FOR KEY SHARE';
my @kinds = (
	[ 'update', [$update], $row ],
	[ 'update of the key', [$key_update], $row ],
	[ 'delete', [$delete], $row ],
	[ 'several rows', [ 'UPDATE t SET k = k + 10 WHERE id < 3', 'DELETE FROM t WHERE id > 2' ], 'SELECT FROM t FOR NO KEY UPDATE' ],
	[ 'update, twice', [ $update, $update ], $row ],
	[ 'update, delete', [ $update, $delete ], $row ],
	[ 'update, update of the key', [ $update, $key_update ], $row ],
	[ 'delete, insert', [ $delete, "INSERT INTO t VALUES (1, 1, 'again')" ], $row ],
	[ 'not the first command', [ "INSERT INTO t VALUES (9, 9, 'new')", $update ], $row ],
	[ 'ON CONFLICT', ['INSERT INTO t VALUES (1, 10) ON CONFLICT (id) DO UPDATE SET k = excluded.k'], $row ],
	(map { [ "FOR $_, update", [ "SELECT FROM t WHERE id = 1 FOR $_", $update ], $row ] }
		'UPDATE', 'NO KEY UPDATE'),
	[ 'FOR UPDATE, delete', [ 'SELECT FROM t WHERE id = 1 FOR UPDATE', $delete ], $row ],
	[ 'savepoint', [ 'SAVEPOINT a', $update, 'RELEASE a' ], $row ],
	[ 'savepoint rolled back', [ 'SAVEPOINT a', $update, 'ROLLBACK TO a', 'RELEASE a', $update ], $row ],
	[ 'two savepoints', [ 'SAVEPOINT a', $update, 'RELEASE a', 'SAVEPOINT b', $update, 'RELEASE b' ], $row ],
	[ 'other partition', ['UPDATE part SET k = 2 WHERE id = 1'], 'SELECT FROM part WHERE id = 1 FOR NO KEY UPDATE' ],
	[ 'command ids combined, update', ['UPDATE combo SET k = 10'], 'SELECT FROM combo FOR NO KEY UPDATE' ],
	[ 'command ids combined, delete', ['DELETE FROM combo'], 'SELECT FROM combo FOR NO KEY UPDATE' ],
	[ 'other page', [ q[UPDATE wide SET k = 10, v = repeat('v', 1500) WHERE id = 1] ], 'SELECT FROM wide WHERE id = 1 FOR NO KEY UPDATE' ],
	[ 'out-of-line values changed', [ q[UPDATE docs SET doc = repeat('d', 3000), note = NULL, k = 10 WHERE id = 1] ],
		'SELECT FROM docs WHERE id = 1 FOR NO KEY UPDATE' ],
	[ 'out-of-line values deleted', ['DELETE FROM docs WHERE id = 1'], 'SELECT FROM docs WHERE id = 1 FOR NO KEY UPDATE' ],
	(map { [ "beside \"$_\"", [$update], $_ ], [ "delete beside \"$_\"", [$delete], $_ ] }
		'UPDATE t SET k = 7 WHERE id = 1', q[UPDATE t SET v = 'hot' WHERE id = 1],
		'UPDATE t SET id = 7 WHERE id = 1', 'DELETE FROM t WHERE id = 1'),
	[ 'key share lock', [$update], $row, [$key_share] ],
	[ 'two key share locks', [$update], $row, [ $key_share, $key_share ] ],
	[ 'key share lock, update twice', [ $update, $update ], $row, [$key_share] ],
);

# All headers, and the pages', but for hints, and for one thing: if a transaction
# has locked a version before it replaces it, heap makes it a locker of its own new
# version, too. Nobody ever goes by that. %names are XIDs; what has no name is of the tables'
# beginning. An out-of-line value has an OID of its own in each run.
sub pages
{
	my ($node, %names) = @_;
	my $name = sub {
		my ($xid) = @_;
		return $xid if $xid eq '' || $xid eq '0';
		for my $first (sort { $b <=> $a } keys %names)
		{
			return $names{$first} . ($xid == $first ? '' : '+' . ($xid - $first)) if $xid >= $first;
		}
		return 'old';
	};
	my $rows = mip_sql(
		$node, q[
		SET search_path = s, public;
		SELECT concat_ws(' ', r, b, lp, lp_off, lp_flags, lp_len, t_ctid, t_field3, t_infomask2, t_hoff, t_bits,
				CASE WHEN r NOT IN ('docs', 'toast') THEN md5(t_data) END),
			t_infomask & ~x'0700'::int, t_xmin, t_xmax,
			CASE WHEN t_infomask & x'1000'::int > 0 AND t_infomask & x'0800'::int = 0 THEN
				(SELECT string_agg(xid || ' ' || mode, ',') FROM pg_get_multixact_members(t_xmax)) END
		FROM (SELECT relname, oid FROM pg_class WHERE relname ~ '^(t|docs|part[12]|combo|wide)$'
			UNION ALL SELECT 'toast', reltoastrelid FROM pg_class WHERE relname = 'docs') c(r, o),
			generate_series(0, pg_relation_size(o::regclass) / 8192 - 1) b,
			heap_page_items(get_raw_page(o::regclass::text, b::int))
		ORDER BY r, b, lp;
		SELECT concat_ws(' ', r, b, 'flags', flags, lower, upper), 0, 0, prune_xid, NULL
		FROM (SELECT relname, oid FROM pg_class WHERE relname ~ '^(t|docs|part[12]|combo|wide)$') c(r, o),
			generate_series(0, pg_relation_size(o::regclass) / 8192 - 1) b,
			page_header(get_raw_page(o::regclass::text, b::int))
		ORDER BY r, b]);
	my @lines;
	for my $row (split /\n/, $rows)
	{
		my ($line, $mask, $xmin, $xmax, $members) = split /\|/, $row, -1;
		$mask ||= 0;
		if ($members)
		{
			$xmax = join ',', sort map { my ($xid, $mode) = split / /; $name->($xid) . " $mode" }
			  split /,/, $members;
		}
		else
		{
			$xmax = $name->($xmax);
		}
		($mask, $xmax) = ($mask & ~0x0090 | 0x0800, 0)
		  if ($mask & 0x2000) && ($mask & 0x1090) == 0x0090 && $name->($xmin) eq $xmax;
		push @lines, sprintf('%s mask %04x xmin %s xmax %s', $line, $mask, $name->($xmin), $xmax);
	}
	return join "\n", @lines;
}

my $family = 0;

# The same statements by $am: after a transaction that has done $other and rolled
# back, or as an instance that wins over it. (With locks heap does without: it
# keeps a dead member of a multixact, the hand-over does not.) Returns the pages of
# primary and standby.
sub run_kind
{
	my ($am, $phases, $statements, $other, $lockers) = @_;
	my $xid = 'family ' . ++$family;
	my %names;
	my @others;
	my $start = sub {
		my ($name, $xinst) = @_;
		my $s = session($primary, $name);
		$s->sql('SET search_path = s, public');
		$s->sql('BEGIN');
		$s->sql("SELECT mip.begin('$xid', $xinst)") if $xinst && $am eq 'mip';
		$names{ $s->sql('SELECT pg_current_xact_id()') } = $name;
		return $s;
	};

	set_up($am);
	for my $sql (@{ $lockers // [] })
	{
		push @others, $start->('outsider' . @others);
		$others[-1]->sql($sql);
	}
	if ($am eq 'mip' || !$lockers)
	{
		push @others, $start->('loser', 1);
		$others[-1]->sql($other);
		$others[-1]->sql('ROLLBACK') if $am eq 'heap';
	}
	my $s = $start->('winner', 2);
	$s->sql($_) for @$statements;
	if ($am eq 'heap') { $s->sql('COMMIT') }
	elsif ($phases == 1) { $s->sql("SELECT FROM mip.commit_one_phase('', '')") }
	else
	{
		$s->sql("SELECT FROM mip.prepare('', '')");
		mip_sql($primary, "SELECT FROM mip.commit('$xid', 2)");
	}
	$s->quit;
	# whoever aborted is found out
	mip_sql($primary, "SET search_path = s; SET enable_indexscan = off; SET enable_indexonlyscan = off;"
		  . " SET enable_bitmapscan = off;"
		  . ' SELECT count(*) FROM t; SELECT sum(length(doc)) + sum(length(note)) FROM docs;'
		  . ' SELECT count(*) FROM part; SELECT count(*) FROM combo; SELECT count(*) FROM wide');
	catch_up($primary, $standby);
	my @pages = map { pages($_, %names) } $primary, $standby;
	$_->quit for @others;
	return @pages;
}

sub same_pages
{
	my ($wal_level, @phases) = @_;
	mip_sql($primary, "ALTER SYSTEM SET wal_level = $wal_level");
	$primary->restart;
	for my $kind (@kinds)
	{
		my ($name, @what) = @$kind;
		my @heap = run_kind('heap', 0, @what);
		for my $phases (@phases)
		{
			my @mip = run_kind('mip', $phases, @what);
			is($mip[0], $heap[0], "$wal_level, $name, $phases: pages");
			is($mip[1], $heap[1], "$wal_level, $name, $phases: pages of the standby");
		}
	}
	return;
}

same_pages('replica', 1, 2);
same_pages('logical', 2);

# ---- who goes by chains ----

sub deletes_orphan_nothing
{
	my ($rewrite, $isolation, $phases) = @_;
	my $name = "$rewrite, $isolation, $phases";
	my $xid = 'family ' . ++$family;
	mip_sql(
		$primary, q[
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS child, par;
		CREATE TABLE par (id int PRIMARY KEY, v int) USING mip;
		CREATE TABLE child (id int REFERENCES par) USING mip;
		INSERT INTO par VALUES (1, 0)]);
	my %s = map { $_ => session($primary, $_) } 'child', 'loser', 'winner', 'deleter';
	$s{child}->sql("BEGIN ISOLATION LEVEL $isolation");
	$s{child}->sql('SELECT count(*) FROM mip.mipt');
	for my $k (1, 2)
	{
		my $s = $k == 1 ? $s{loser} : $s{winner};
		$s->sql('BEGIN');
		$s->sql("SELECT mip.begin('$xid', $k)");
		$s->sql("UPDATE par SET v = $k");
	}
	if ($phases == 1) { $s{winner}->sql("SELECT FROM mip.commit_one_phase('', '')") }
	else
	{
		$s{winner}->sql("SELECT FROM mip.prepare('', '')");
		mip_sql($primary, "SELECT FROM mip.commit('$xid', 2)");
	}
	$s{loser}->quit;
	mip_sql($primary, $rewrite);
	$s{child}->sql('INSERT INTO child VALUES (1)');
	$s{deleter}->send_sql('DELETE FROM par WHERE id = 1');
	ok( wait_until(
			sub { mip_sql($primary, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $s{deleter}->pid) eq 'Lock' }
		),
		"$name: who deletes the row waits for who refers to it");
	$s{child}->sql('COMMIT');
	my ($out, $err) = $s{deleter}->finish;
	like($err, qr/ERROR:  23503:/, "$name: and fails");
	is(mip_sql($primary, 'SELECT id, v FROM par'), '1|2', "$name: the row is there");
	delete($s{loser});
	$_->quit for values %s;
	return;
}

for my $rewrite ('VACUUM FULL par', 'CLUSTER par USING par_pkey')
{
	for my $isolation ('REPEATABLE READ', 'SERIALIZABLE')
	{
		deletes_orphan_nothing($rewrite, $isolation, $_) for 1, 2;
	}
}

done_testing();
