# A replicated site: an index that cannot take in a row of another replica is set aside, and the replica goes on.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use PostgreSQL::Test::Utils;
use Test::More;

first_replica('a', q[
	CREATE SCHEMA published;
	CREATE PUBLICATION published FOR TABLES IN SCHEMA published;
	CREATE TYPE pair AS (i int, j json);
	CREATE TABLE places (id int PRIMARY KEY, at point) USING mip;
	CREATE INDEX places_at ON places USING gist (at);
	CREATE INDEX places_swapped ON places USING spgist (at);
	CREATE TABLE spots (id int PRIMARY KEY, at point, EXCLUDE USING gist (at WITH ~=)) USING mip;
	CREATE TABLE pairs (id int PRIMARY KEY, p pair UNIQUE) USING mip;
	CREATE TABLE keyless (n int, t text) USING mip;
	CREATE TABLE keyless_pairs (n int, p pair) USING mip;
	CREATE TABLE numbers (id int PRIMARY KEY, n int) USING mip;
	CREATE TABLE stamped (n int, s int) USING mip;
	CREATE TABLE keyed (id int CONSTRAINT keyed_pkey PRIMARY KEY) USING mip;
	CREATE TABLE swapped (id int PRIMARY KEY, n int) USING mip;
	CREATE FUNCTION awaits(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1..500 LOOP
			EXIT WHEN $1 <> 0 OR to_regclass('public.swapped_pkey_ccold') IS NOT NULL;
			PERFORM pg_sleep(0.01);
		END LOOP;
		RETURN 1 / $1;
	END $$;
	CREATE FUNCTION fine(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RETURN $1; END$$;
	CREATE TABLE early (id int[] NOT NULL, n int) USING mip;
	CREATE UNIQUE INDEX early_ccnew ON early (id);
	ALTER TABLE early REPLICA IDENTITY USING INDEX early_ccnew;
	INSERT INTO keyed VALUES (1);
	CREATE FUNCTION inverse(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1 / $1; END';
	CREATE FUNCTION full_disk(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RAISE 'no room' USING ERRCODE = '53100'; END$$;], deadlock_timeout => '1s');
join_site('b', 'a');

my $s = session($node{a}, 'client');
my $t = session($node{b}, 'client of b');
my $reader = session($node{b}, 'reader of b');

# What an index is good for
sub state_of
{
	my ($member, $index) = @_;
	return mip_sql($node{$member}, "SELECT indisvalid, indisready, indislive FROM pg_index WHERE indexrelid = '$index'::regclass");
}

sub is_set_aside
{
	my ($member, $index, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(state_of($member, $index), 'f|f|t', "$name: it is set aside at $member");
	return;
}

sub is_used
{
	my ($member, $index, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(state_of($member, $index), 't|t|t', "$name: it is used at $member");
	return;
}

# Statements of both replicas that know nothing of each other: that of `b` comes first. Who has yet to commit at `a` may be in
# the way there, and not know.
sub beside
{
	my ($of_b, $of_a, $name, @tables) = @_;
	$t->send_sql($of_b);
	take('b');
	$s->send_sql($of_a);
	take('a');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	all_are_same($name, @tables);
	is(($t->finish)[1], '', '... done at b');
	like(($s->finish)[1], qr/^$|ERROR:  08007:/, '... and at a');
	return;
}

# ---- an index that does not take rows in beside others ----

my $nearest = 'SET enable_seqscan = off; SELECT id FROM places ORDER BY at <-> point(7, 7) LIMIT 1';
is($reader->sql($nearest), '', 'a plan with the index');
beside('INSERT INTO places SELECT i, point(i, i) FROM generate_series(1, 500) i', q[INSERT INTO places VALUES (1000, '(1e300,-1e300)')],
	'a point that is too far from all others', 'places');
is_set_aside($_, 'places_at', 'GiST') for qw(a b);
is($reader->sql($nearest), '7', 'the plan is another one');
is($reader->sql('SELECT count(*) FROM places WHERE at ~= point(1e300, -1e300)'), '1', '... which has all rows');
like(slurp_file($node{b}->logfile), qr/WARNING: .*index "places_at" of table "places" is set aside at this replica\n.*DETAIL: .*value out of range/,
	'the log tells of it');
done($s, 'UPDATE places SET at = point(2000, 2000) WHERE id IN (1, 1000)', 'rows are changed after it', 'places');
done($s, 'INSERT INTO places SELECT i, point(i, i) FROM generate_series(1001, 1500) i', 'and come to it', 'places');
$s->sql('VACUUM places');
mip_sql($node{$_}, 'REINDEX INDEX places_at') for qw(a b);
is_used($_, 'places_at', 'built again') for qw(a b);
is($reader->sql('SELECT count(*) FROM places WHERE at ~= point(2000, 2000)'), '2', 'with the rows that came meanwhile');
done($s, 'DELETE FROM places WHERE id < 5; ', 'and is kept', 'places');

# ---- a constraint ----

$t->sql('BEGIN; INSERT INTO spots SELECT i, point(i, i) FROM generate_series(1, 500) i; ROLLBACK');
done($s, q[INSERT INTO spots VALUES (1, '(1,1)'), (1000, '(1e300,-1e300)')], 'a point that is too far from others', 'spots');
is_used('a', 'spots_at_excl', 'a few rows');
is_set_aside('b', 'spots_at_excl', 'more, which are no more');
$t->refused(q[INSERT INTO spots VALUES (2000, '(1,1)')], '55000', 'what it does not keep out is refused');
$t->refused(q[UPDATE spots SET at = '(1,1)' WHERE id = 1000], '55000', '... as a new version, too');
done($s, q[INSERT INTO spots VALUES (2, '(2,2)')], 'what another replica has not kept out', 'spots');
$t->send_sql('DELETE FROM spots WHERE id = 1000');
take('b');
all_are_same('a row may go', 'spots');
is(($t->finish)[1], '', '... done');
mip_sql($node{$_}, 'VACUUM spots; REINDEX INDEX spots_at_excl') for qw(a b);
is_used($_, 'spots_at_excl', 'built again') for qw(a b);
$t->refused(q[INSERT INTO spots VALUES (2000, '(1,1)')], '23P01', 'it keeps out again what it is to keep out');

# ---- an index of one replica only ----

mip_sql($node{b}, 'CREATE INDEX CONCURRENTLY numbers_brin ON numbers USING brin (n); CREATE INDEX CONCURRENTLY numbers_inverse ON numbers (inverse(n)); CREATE INDEX CONCURRENTLY numbers_n ON numbers (n)');
done($s, 'INSERT INTO numbers VALUES (1, 1), (2, 0), (3, 3)', 'a row that a function does not take', 'numbers');
is_set_aside('b', 'numbers_inverse', 'an index of its own');
is_used('b', 'numbers_n', 'the next one');
unlike(slurp_file($node{b}->logfile), qr/leak/, '... and nothing is left by the one before');
is(mip_sql($node{b}, 'SET enable_seqscan = off; SELECT id FROM numbers WHERE n = 0'), '2', '... which has the row');
is(mip_sql($node{b}, 'SET enable_seqscan = off; SELECT string_agg(id::text, $$ $$ ORDER BY n) FROM numbers'), '2 1 3', '... and those behind it');

mip_sql($node{b}, 'CREATE INDEX CONCURRENTLY keyless_t ON keyless (t, n); CREATE INDEX CONCURRENTLY keyless_n ON keyless (n)');
done($s, q[INSERT INTO keyless SELECT i, i FROM generate_series(1, 100) i], 'rows without a key', 'keyless');
done($s, q[BEGIN; UPDATE keyless SET t = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i) || n WHERE n IN (2, 4);
	UPDATE keyless SET n = -n WHERE n < 6; COMMIT],
	'some that are too long for the index by which they are found', 'keyless');
is_set_aside('b', 'keyless_t', 'the index');
is_used('b', 'keyless_n', 'another one');
done($s, q[UPDATE keyless SET t = 'x' WHERE n < 5], 'by that they are found', 'keyless');

# what is compared only where it is looked for
mip_sql($node{b}, 'CREATE INDEX CONCURRENTLY keyless_pairs_p ON keyless_pairs (p)');
done($s, q[INSERT INTO keyless_pairs VALUES (1, '(1,"{}")')], 'a first row that has no order', 'keyless_pairs');
done($s, 'DELETE FROM keyless_pairs', '... is not looked for by an order', 'keyless_pairs');

my $ddl = session($node{a}, 'ddl');

# ---- a key that is set aside ----

SKIP:
{
	skip 'temporal keys are of PostgreSQL 18', 1 if $node{a}->pg_version < 18;
	define($ddl, 'CREATE TABLE temporal (id int4range, r numrange, n int, PRIMARY KEY (id, r WITHOUT OVERLAPS)) USING mip;
		CREATE TABLE published.temporal (LIKE temporal, PRIMARY KEY (id, r WITHOUT OVERLAPS)) USING mip;
		CREATE TABLE referring (n int PRIMARY KEY, id int4range, r numrange, FOREIGN KEY (id, PERIOD r) REFERENCES temporal (id, PERIOD r)) USING mip');
	take('a');
	all_are_same('temporal keys', 'temporal', 'referring');
	is(($ddl->finish)[1], '', '... done');
	for my $table (qw(temporal published.temporal))
	{
		$t->sql("BEGIN; INSERT INTO $table SELECT int4range(1, 2), numrange(i, i + 1) FROM generate_series(1, 1000) i; ROLLBACK");
		done($s, qq{INSERT INTO $table VALUES ('[1,2)', numrange(1, 2)), ('[1,2)', numrange(-9e308, -8e308))}, 'a range that is too far from others', $table);
		is_set_aside('b', "${table}_pkey", 'its index');
	}
	done($s, 'UPDATE published.temporal SET n = 1', 'which is no identity for the publication there', 'published.temporal');
	$t->send_sql('DELETE FROM temporal WHERE r = numrange(1, 2)');
	take('b');
	$s->send_sql(q{INSERT INTO referring VALUES (1, '[1,2)', numrange(1, 2))});
	take('a');
	all_are_same('who deletes there what is referred to', 'temporal', 'referring');
	is(($t->finish)[1], '', '... comes first');
	$s->ends_refused('40001', '... and who refers to it is refused');
}

# ---- what passes does not set an index aside ----

mip_sql($node{b}, 'CREATE INDEX CONCURRENTLY stamped_s ON stamped (full_disk(s))');
$s->send_sql('INSERT INTO stamped VALUES (1, 1)');
take('a');
receive('a');
is(($s->finish)[1], '', 'a row');
$applier{b}->refused(receive_sql(scalar @log), '53100', 'a disk that is full');
is_used('b', 'stamped_s', 'an index that may have room later');
mip_sql($node{b}, 'DROP INDEX CONCURRENTLY stamped_s');
start_applier('b');
all_are_same('then it goes on', 'stamped');

# ---- what has no order ----

$s->refused(q[INSERT INTO pairs VALUES (1, '(1,"{}")')], '42883', 'a value that nothing can be compared with, and is the first one');

# ---- whoever is in the way ----

mip_sql($node{b}, 'CREATE INDEX CONCURRENTLY stamped_inverse ON stamped (inverse(n))');
$reader->sql('BEGIN; SELECT count(*) FROM stamped');
done($s, 'INSERT INTO stamped VALUES (0, 0)', 'whoever reads the table, and may have a plan with the index', 'stamped');
is_set_aside('b', 'stamped_inverse', 'at once');
is(mip_sql($node{b}, 'SELECT ended FROM mip.replication'), '1', 'he has gone');

# ---- what REINDEX CONCURRENTLY leaves behind ----

my $old = session($node{b}, 'who has an old snapshot');
$old->sql('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM keyed');
my $owner = session($node{b}, 'owner');
$owner->send_sql('REINDEX TABLE CONCURRENTLY keyed');
wait_until(sub { mip_sql($node{b}, q[SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('keyed_pkey_ccnew') AND indisready]) eq '1' });
mip_sql($node{b}, 'SELECT pg_cancel_backend(' . $owner->pid . ')');
like(($owner->finish)[1], qr/57014/, 'REINDEX CONCURRENTLY is cancelled');
$old->sql('COMMIT');
$ddl = session($node{a}, 'ddl');
define($ddl, 'ALTER TABLE keyed DROP CONSTRAINT keyed_pkey');
take('a');
receive('a');
is(($ddl->finish)[1], '', 'a key goes');
receive('b');
done($s, 'INSERT INTO keyed VALUES (1)', 'rows that do not fit into what is left of its index', 'keyed');
$s->send_sql("UPDATE keyed SET id = 2");
take('a');
receive($_) for qw(a b);
is(($s->finish)[1], '', '... once more');
all_are_same('what is left behind keeps nothing', 'keyed');
$s->send_sql('DELETE FROM keyed');
take('a');
receive($_) for qw(a b);
$s->finish;
mip_sql($node{b}, 'REINDEX TABLE keyed');
is(mip_sql($node{b}, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'keyed_pkey_ccnew'::regclass"), 't', 'it becomes valid');
done($s, 'INSERT INTO keyed VALUES (1)', '... which is so', 'keyed');
is(mip_sql($node{b}, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'keyed_pkey_ccnew'::regclass"), 't', '... and stays, as long as it is so');
done($s, 'INSERT INTO keyed VALUES (1), (2)', '... and keeps nothing all the same', 'keyed');
is_set_aside('b', 'keyed_pkey_ccnew', 'before anybody takes its keys for unique');
is(mip_sql($node{$_}, 'SELECT count(*) FROM (VALUES (1), (2)) v (i) LEFT JOIN keyed ON id = i'), 3, "a join knows it at $_") for 'a', 'b';

# ... and is being built again while such a row comes
$s->send_sql('DELETE FROM keyed');
take('a');
receive($_) for qw(a b);
$s->finish;
mip_sql($node{b}, 'REINDEX INDEX keyed_pkey_ccnew');
done($s, 'INSERT INTO keyed VALUES (1), (2)', 'rows that fit', 'keyed');
done($s, 'UPDATE keyed SET id = 3 - id', 'two that change places', 'keyed');
is(mip_sql($node{b}, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'keyed_pkey_ccnew'::regclass"), 't', 'they fit');
$old = session($node{b}, 'who has an old snapshot again');
$old->sql('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM numbers');
$owner = session($node{b}, 'owner again');
$owner->send_sql('REINDEX INDEX CONCURRENTLY keyed_pkey_ccnew');
wait_until(sub { mip_sql($node{b}, q[SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('keyed_pkey_ccnew_ccnew') AND indisready]) eq '1' });
done($s, 'INSERT INTO keyed VALUES (1)', 'a key that is there', 'keyed');
$old->quit;
$owner->finish;
is(mip_sql($node{b}, q[SELECT count(*) FROM pg_index WHERE indrelid = 'keyed'::regclass AND indisvalid AND indisunique]), 0, 'none is taken for unique');
is(mip_sql($node{$_}, 'SELECT count(*) FROM (VALUES (1)) v (i) LEFT JOIN keyed ON id = i'), 2, "a join knows it again at $_") for 'a', 'b';
mip_sql($node{b}, "DROP INDEX CONCURRENTLY $_") for split /\n/, mip_sql($node{b}, q[SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'keyed'::regclass]);
pass('it can be dropped there');

# one that is swapped for a needed one while another one is about to be set aside
mip_sql($node{b}, 'CREATE INDEX CONCURRENTLY swapped_awaits ON swapped (awaits(n))');
done($s, 'INSERT INTO swapped VALUES (1, 1)', 'a row', 'swapped');
$old = session($node{b}, 'who has an old snapshot once more');
$old->sql('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM numbers');
$owner = session($node{b}, 'owner once more');
$owner->send_sql('REINDEX INDEX CONCURRENTLY swapped_pkey');
$node{b}->poll_query_until('postgres', q[SELECT count(*) = 1 FROM pg_stat_progress_create_index WHERE phase = 'waiting for old snapshots']);
$s->send_sql('INSERT INTO swapped VALUES (2, 2), (3, 0), (4, 4)');
take('a');
receive('a');
is(($s->finish)[1], '', 'rows that take their time there');
$applier{b}->send_sql(receive_sql($behind{b} + 1));
$node{b}->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
$old->quit;
like(($applier{b}->finish)[1], qr/55P03/, 'it is not known where entries have been made: nothing is applied');
$owner->finish;
start_applier('b');
receive('b');
all_are_same('it is applied later', 'swapped');
is(mip_sql($node{b}, 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT string_agg(id::text, $$ $$) FROM (SELECT id FROM swapped WHERE id > 0 ORDER BY id) s'),
	'1 2 3 4', 'each row has its entry');
is_set_aside('b', 'swapped_awaits', 'at last');

# one that had such a name before, and tells rows apart
done($s, q[INSERT INTO early VALUES ('{1}', 1)], 'a key that is called so', 'early');
done($s, 'UPDATE early SET n = 2', '... finds its row', 'early');

# the second one of two
mip_sql($node{b}, "CREATE INDEX CONCURRENTLY early_$_ ON early ($_(n))") for 'fine', 'inverse';
done($s, 'UPDATE early SET n = 0', 'the second one of two indexes', 'early');
is_set_aside('b', 'early_inverse', 'alone');
is_used('b', 'early_fine', 'and not the other one');

done_testing();
