# Logical decoding sees a winner's changes exactly as it would see those of an
# ordinary transaction that runs the same statements, whether heap made them or
# they went through the overlay, and nothing of a loser. The ordinary
# transaction is what each case is compared with.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = mip_node('logical',
	wal_level => 'logical',
	wal_consistency_checking => 'all',
	logical_decoding_work_mem => '64kB');

# doc and code are stored out of line; "late" is missing in stored rows
mip_sql(
	$node, q[
	CREATE TABLE t (gone int, id int PRIMARY KEY, code text NOT NULL UNIQUE,
		v int, doc text, twice int GENERATED ALWAYS AS (v * 2) STORED)
		USING mip;
	ALTER TABLE t DROP gone;
	ALTER TABLE t ALTER doc SET STORAGE external, ALTER code SET STORAGE external;
	CREATE TABLE p (k int, v int, PRIMARY KEY (k)) PARTITION BY RANGE (k);
	CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100) USING mip;
	CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200) USING mip;
	CREATE TABLE nokey (v int) USING mip;
	SELECT pg_create_logical_replication_slot('s', 'test_decoding')]);

# Sessions are used again and again: an instance that is prepared is out of the way.
my @s = map { session($node, "instance $_") } 1 .. 3;
my $other = session($node, 'ordinary');

my $family = 0;

sub reset_tables
{
	mip_sql(
		$node, qq[
		TRUNCATE t, p, nokey;
		ALTER TABLE t DROP COLUMN IF EXISTS late;
		INSERT INTO t SELECT i, 'c' || i, i * 10, repeat('o', 5000)
			FROM generate_series(1, 3) i;
		INSERT INTO t SELECT 4, repeat('k', 2100), 40, 'short';
		ALTER TABLE t ADD late int DEFAULT 7;
		INSERT INTO p VALUES (1, 10), (2, 20), (101, 30);
		INSERT INTO nokey VALUES (1), (2)]);
	changes();
	return;
}

# What has been decoded since, but for the MIPT. Long values are shortened; where
# heap says that one has not changed, the overlay repeats it.
sub changes
{
	my ($options) = @_;
	$options //= '';
	my $changes = mip_sql($node,
		    "SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL,"
		  . " 'include-xids', '0', 'skip-empty-xacts', '1'$options)"
		  . " WHERE data NOT IN ('BEGIN', 'COMMIT', 'table mip.mipt: DELETE: (no-tuple-data)')"
	);
	$changes =~ s/(.)\1{99,}/$1.../g;
	return join "\n", map {
		my ($old, $new) = /^(.*new-tuple: |.*: UPDATE: (?!old-key))(.*)/ ? ($1, $2) : ($_, '');
		$new =~ s/doc\[text\]:unchanged-toast-datum/doc[text]:'o...'/;
		$new =~ s/code\[text\]:unchanged-toast-datum/code[text]:'k...'/;
		$old . $new
	} split /\n/, $changes;
}

# A sibling's changes of all there is
my $rival = q[UPDATE t SET v = v + 1000; UPDATE p SET v = v + 1000;
	UPDATE nokey SET v = v + 1000];
my $rival_deletes = 'DELETE FROM t; DELETE FROM p; DELETE FROM nokey';

sub expected
{
	my ($sql) = @_;
	reset_tables();
	$other->sql("BEGIN; $sql; COMMIT");
	return changes();
}

# Instances run these statements in turn and prepare; returns what is decoded
# when $winner has won.
sub decoded
{
	my ($winner, @sql) = @_;
	my $xid = 'family ' . ++$family;

	reset_tables();
	for my $k (1 .. @sql)
	{
		$s[ $k - 1 ]->sql("BEGIN; SELECT mip.begin('$xid', $k)");
		$s[ $k - 1 ]->sql($sql[ $k - 1 ]);
	}
	$s[ $_ - 1 ]->sql("SELECT * FROM mip.prepare('', '')") for 1 .. @sql;
	is(changes(), '', 'nothing is decoded before the decision');
	mip_sql($node, "SELECT * FROM mip.commit('$xid', $winner)");
	return changes();
}

my @cases = (
	[ 'update', 'UPDATE t SET v = v + 1 WHERE id = 1' ],
	[ 'update of all rows', 'UPDATE t SET v = v + 1' ],
	[ 'key change', 'UPDATE t SET id = id + 10 WHERE id IN (1, 4)' ],
	[ 'change of the other key', "UPDATE t SET code = 'd' || id" ],
	[ 'delete', 'DELETE FROM t WHERE id IN (2, 4)' ],
	[ 'delete of all rows', 'DELETE FROM t' ],
	[
		'delete and insert again',
		"DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 'c1', 5, 'new')"
	],
	[
		'out-of-line values changed, kept, dropped',
		"UPDATE t SET doc = repeat('n', 6000) WHERE id = 1;
		 UPDATE t SET v = 0 WHERE id = 2;
		 UPDATE t SET doc = NULL WHERE id = 3"
	],
	[
		'twice',
		'UPDATE t SET v = v + 1 WHERE id = 1; UPDATE t SET id = 21 WHERE id = 1;
		 UPDATE t SET v = v + 1 WHERE id = 21'
	],
	[
		'update, then delete',
		'UPDATE t SET v = v + 1 WHERE id = 1; DELETE FROM t WHERE id = 1'
	],
	[
		'savepoints',
		'SAVEPOINT a; UPDATE t SET v = 1 WHERE id = 1; DELETE FROM t WHERE id = 2;
		 ROLLBACK TO a; RELEASE a; UPDATE t SET v = 2 WHERE id = 2;
		 SAVEPOINT b; UPDATE t SET v = 3 WHERE id = 3; SAVEPOINT c;
		 DELETE FROM t WHERE id = 1; RELEASE c; RELEASE b;
		 UPDATE p SET v = 0 WHERE k = 1'
	],
	[
		'upsert and merge',
		"INSERT INTO t VALUES (1, 'c1', 5) ON CONFLICT (id) DO UPDATE SET v = 6;
		 INSERT INTO t VALUES (5, 'c5', 5) ON CONFLICT (id) DO UPDATE SET v = 6;
		 MERGE INTO t USING generate_series(3, 6) i ON t.id = i
			WHEN MATCHED AND i = 3 THEN DELETE
			WHEN MATCHED THEN UPDATE SET v = i
			WHEN NOT MATCHED THEN INSERT (id, code) VALUES (i, 'm' || i)"
	],
	[
		'partitions: update, move, delete',
		'UPDATE p SET v = v + 1 WHERE k = 1; UPDATE p SET k = k + 100 WHERE k = 2;
		 DELETE FROM p WHERE k = 101'
	],
	[ 'no key', 'UPDATE nokey SET v = 5 WHERE v = 1; DELETE FROM nokey WHERE v = 2' ]);

# ---- either winner, each replica identity ----

for my $identity ('DEFAULT', 'FULL', 'USING INDEX t_code_key', 'NOTHING')
{
	my $of_others = $identity =~ /INDEX/ ? 'DEFAULT' : $identity;
	mip_sql(
		$node, qq[ALTER TABLE t REPLICA IDENTITY $identity;
		ALTER TABLE p1 REPLICA IDENTITY $of_others;
		ALTER TABLE p2 REPLICA IDENTITY $of_others;
		ALTER TABLE nokey REPLICA IDENTITY $of_others]);
	for my $case (@cases)
	{
		my ($name, $sql) = @$case;
		my $expected = expected($sql);
		isnt($expected, '', "identity $identity: $name");
		is(decoded(1, $sql, $rival), $expected, '... by heap');
		is(decoded(2, $rival, $sql), $expected, '... by the overlay');
	}
	my $sql = $cases[4][1];
	is(decoded(2, $rival_deletes, $sql), expected($sql),
		"identity $identity: overlay beside a delete");
}
mip_sql($node, 'ALTER TABLE t REPLICA IDENTITY DEFAULT;'
	  . ' ALTER TABLE p1 REPLICA IDENTITY DEFAULT;'
	  . ' ALTER TABLE p2 REPLICA IDENTITY DEFAULT');

# ---- several siblings; rows locked only; one phase ----

my $all = join(';', map { $_->[1] } @cases[ 1, 3, 12 ]);
my $expected = expected($all);
is(decoded(3, $rival, $rival_deletes, $all), $expected, 'the last of three');
is(decoded(2, $rival, $all, $rival_deletes), $expected, 'the second of three');
is(decoded(2, 'SELECT * FROM t FOR UPDATE; SELECT * FROM p FOR UPDATE', $all),
	$expected, 'where the sibling has locks only');

reset_tables();
$s[0]->sql("BEGIN; SELECT mip.begin('one phase', 1)");
$s[0]->sql($rival);
$s[1]->sql("BEGIN; SELECT mip.begin('one phase', 2)");
$s[1]->sql($all);
$s[1]->sql("SELECT * FROM mip.commit_one_phase('', '')");
is(changes(), $expected, 'in one phase');
$s[0] = session($node, 'instance 1');

# ---- a family that is given up shows nothing ----

reset_tables();
$s[0]->sql("BEGIN; SELECT mip.begin('none', 1)");
$s[0]->sql($rival);
$s[1]->sql("BEGIN; SELECT mip.begin('none', 2)");
$s[1]->sql($all);
$s[1]->sql("SELECT * FROM mip.prepare('', '')");
$s[0]->sql('ROLLBACK');
mip_sql($node, "SELECT * FROM mip.rollback('none', 2)");
is(changes(), '', 'no winner, no changes');

# ---- origins ----

reset_tables();
$other->sql("SELECT pg_replication_origin_create('elsewhere')");
$s[1]->sql("SELECT pg_replication_origin_session_setup('elsewhere')");
$s[0]->sql("BEGIN; SELECT mip.begin('origin', 1)");
$s[0]->sql($rival);
$s[1]->sql("BEGIN; SELECT mip.begin('origin', 2)");
$s[1]->sql("UPDATE t SET v = 1 WHERE id = 1; DELETE FROM t WHERE id = 2");
$s[$_]->sql("SELECT * FROM mip.prepare('', '')") for 0, 1;
$s[1]->sql('SELECT pg_replication_origin_session_reset()');
mip_sql($node, "SELECT * FROM mip.commit('origin', 2)");
is(changes(q[, 'only-local', '1']), '', 'changes carry their origin');

# ---- large transactions, streamed in progress ----

mip_sql($node, 'CREATE TABLE big (id int PRIMARY KEY, v text) USING mip');

sub fill_big
{
	mip_sql($node,
		"TRUNCATE big; INSERT INTO big SELECT i, repeat('b', 100)"
		  . ' FROM generate_series(1, 1000) i');
	changes();
	return;
}

my $stream = q[, 'stream-changes', '1'];
my $big = q[UPDATE big SET v = v || 'w' WHERE id % 10 > 1;
	DELETE FROM big WHERE id % 10 = 0; UPDATE big SET id = -id WHERE id % 10 = 1];
sub big_prepared
{
	my ($xid) = @_;
	fill_big();
	$s[0]->sql("BEGIN; SELECT mip.begin('$xid', 1)");
	$s[0]->sql("UPDATE big SET v = 'rival'");
	$s[1]->sql("BEGIN; SELECT mip.begin('$xid', 2)");
	$s[1]->sql($big);
	$s[$_]->sql("SELECT * FROM mip.prepare('', '')") for 0, 1;
	return;
}

fill_big();
$other->sql("BEGIN; $big; COMMIT");
$expected = changes();

# What has been streamed is decoded again by the next call.
big_prepared('streamed before');
like(changes($stream), qr/opening a streamed block/, 'streamed in progress');
mip_sql($node, "SELECT * FROM mip.commit('streamed before', 2)");
is(changes($stream), $expected, '... and the whole at the decision');

big_prepared('streamed');
mip_sql($node, "SELECT * FROM mip.commit('streamed', 2)");
my $ends = join ' ',
  changes($stream) =~ /(committing|preparing) streamed transaction/g;
is($ends, 'committing', 'streamed: the winner only is committed');

big_prepared('spilled');
mip_sql($node, "SELECT * FROM mip.commit('spilled', 2)");
is(changes(), $expected, 'spilled to disk');

# ---- where WAL has an image of the new version's page ----

# Not of the base version's: the new one does not fit there.
my $image = "UPDATE big SET id = 0, v = 'image' WHERE id = 1";
fill_big();
$other->sql("BEGIN; $image; COMMIT");
$expected = changes();
fill_big();
$s[0]->sql("BEGIN; SELECT mip.begin('image', 1)");
$s[0]->sql("UPDATE big SET v = 'rival' WHERE id = 1");
mip_sql($node, 'CHECKPOINT');
$s[1]->sql("BEGIN; SELECT mip.begin('image', 2)");
$s[1]->sql($image);
$s[$_]->sql("SELECT * FROM mip.prepare('', '')") for 0, 1;
mip_sql($node, "SELECT * FROM mip.commit('image', 2)");
is(changes(), $expected, 'the new version is decoded beside an image');

# ---- tables that output plugins use as catalogs ----

mip_sql($node,
	'CREATE TABLE catalog (v int) USING mip WITH (user_catalog_table);'
	  . ' INSERT INTO catalog VALUES (1)');
$s[$_]->sql("BEGIN; SELECT mip.begin('catalog', $_ + 1)") for 0, 1;
$s[0]->sql('UPDATE catalog SET v = 2');
my $error = $s[1]->refused('UPDATE catalog SET v = 3', 'MP006', 'user_catalog_table');
like($error, qr/Output plugins use the table as a catalog/, '... and why');
$_->sql('ROLLBACK') for @s;

# ---- the MIPT ----

mip_sql($node, "SELECT mip.forget('spilled')");
is( mip_sql(
		$node,
		"SELECT DISTINCT data FROM pg_logical_slot_get_changes('s', NULL, NULL)"
		  . " WHERE data LIKE '%mip.mipt%'"),
	'table mip.mipt: DELETE: (no-tuple-data)',
	'rows of the MIPT are not decoded');

# ---- crashes within the decision ----

for my $point ('doomed', 'header', 'chunk', 'link', 'handed over', 'committed', 'loser')
{
	$_->quit for @s, $other;
	@s = map { session($node, "instance $_") } 1 .. 3;
	$other = session($node, 'ordinary');
	$expected = expected($all);
	reset_tables();
	mip_sql($node, 'CHECKPOINT');    # or the slot's position is lost
	$s[0]->sql("BEGIN; SELECT mip.begin('crash $point', 1)");
	$s[0]->sql($rival);
	$s[1]->sql("BEGIN; SELECT mip.begin('crash $point', 2)");
	$s[1]->sql($all);
	$s[$_]->sql("SELECT * FROM mip.prepare('', '')") for 0, 1;
	expect_crash($node, $point, "crash $point", 2);
	my $before = changes();
	mip_sql($node, "SELECT * FROM mip.commit('crash $point', 2)");
	is($before . changes(), $expected, "decoded after a crash at \"$point\"");
}
$_->quit for @s, $other;
is_decided($node, 'all');
is_sound($node, 'all');
unlike(slurp_file($node->logfile), qr/inconsistent page|TRAP/,
	'replay gives the pages as they were');

$node->stop;
done_testing();
