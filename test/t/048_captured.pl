# The writesets of prepared instances, siblings' among them, are what they were before
# the prepare: after VACUUM, after crashes, on a promoted standby; until the family is
# decided. What a crash has left of their places is emptied.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

# No room for a worker that would empty places at the start
my $node = mip_node('captured', allows_streaming => 1, max_worker_processes => 3,
	wal_keep_size => '2GB',
	'mip.capture_writeset' => 'on');
my %before;

# Instances 1 and 2 change the same rows, with values out of line; the second one's
# changes are an overlay, but for some.
sub prepare_family
{
	my ($xid, $n) = @_;
	mip_sql($node, qq[
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS a, b;
		CREATE TABLE a (id int PRIMARY KEY, v int, doc text) USING mip;
		CREATE TABLE b (x int, doc text) USING mip;
		ALTER TABLE a ALTER doc SET STORAGE external;
		ALTER TABLE b ALTER doc SET STORAGE external;
		INSERT INTO a SELECT i, 0, repeat(i::text, 5000) FROM generate_series(1, $n) i;
		INSERT INTO b SELECT 1, repeat('o', 5000) FROM generate_series(1, 3);]);
	for my $k (1, 2)
	{
		$before{"$xid $k"} = (split /\n/, mip_sql($node, qq[
			BEGIN;
			SELECT mip.begin('$xid', $k);
			UPDATE a SET v = $k WHERE id % 2 = 0;
			UPDATE a SET v = v + 1 WHERE id % 4 = 0;
			UPDATE a SET doc = repeat('$k', 4000) WHERE id % 10 = 3;
			DELETE FROM a WHERE id % 10 = 5;
			SAVEPOINT s;
			DELETE FROM a;
			ROLLBACK TO s;
			RELEASE s;
			INSERT INTO a SELECT 1000000 + i, $k, repeat('n', 3000) FROM generate_series(1, 20) i;
			UPDATE b SET doc = doc || '$k';
			SELECT 'w' || md5(mip.writeset());
			SELECT 'p' FROM mip.prepare(NULL, NULL)]))[1];
		like($before{"$xid $k"}, qr/^w[0-9a-f]{32}$/, "$xid $k: prepared");
	}
	return;
}

sub is_as_before
{
	my ($server, $xid, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(mip_sql($server, "SELECT 'w' || md5(mip.writeset('$xid', $_))"), $before{"$xid $_"}, "$name: $_")
	  for 1, 2;
	return;
}

# To be decided by instance 2.
sub is_gone
{
	my ($server, $xid, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $k (1, 2)
	{
		my ($status, $out, $error) = $server->psql('postgres', "SELECT mip.writeset('$xid', $k)");
		like($error, qr/there is no prepared instance $k of family "$xid"/, "$name: $k");
	}
	return;
}

sub places
{
	my ($server) = @_;
	return mip_sql($server, 'SELECT xid, xinst FROM mip.mipt WHERE places IS NOT NULL OR links IS NOT NULL');
}

# Memory does not grow with the number of changes, but for the writeset's own. In kB
sub peak
{
	my ($sql) = @_;
	return (split /\n/, mip_sql($node, "$sql; SELECT (regexp_match(pg_read_file('/proc/self/status'), 'VmHWM:\\s+(\\d+)'))[1]"))[-1];
}
SKIP:
{
	skip 'there is no /proc', 3 if !-e '/proc/self/status';
	mip_sql($node, 'CREATE TABLE many (id int PRIMARY KEY, '
		  . join(', ', map { "c$_ text DEFAULT 'some text'" } 1 .. 20) . ') USING mip;'
		  . ' INSERT INTO many SELECT i FROM generate_series(1, 150000) i');
	my $change = "SET work_mem = '1MB'; BEGIN; UPDATE many SET c1 = 'x'";
	my $without = peak("SET mip.capture_writeset = off; $change");
	my $with = peak("$change; SELECT 1 FROM mip.writeset()");
	# the writeset has 20 bytes for each, and is made in three parts
	cmp_ok($with - $without, '<', 40_000, 'memory of capture and extraction');
	mip_sql($node, 'DROP TABLE many');

	# nor does that of applying one, with the rows that are looked at on the way to one without a key
	mip_sql($node, q[CREATE TABLE docs (doc jsonb) USING mip;
		INSERT INTO docs SELECT jsonb_build_object('a', repeat(md5(i::text), 300)) FROM generate_series(1, 8000) i;
		INSERT INTO docs VALUES ('{"z": 1}');
		CREATE TABLE taken (w bytea);
		BEGIN;
		DELETE FROM docs WHERE doc ? 'z';
		INSERT INTO taken SELECT mip.writeset();
		COMMIT;
		INSERT INTO docs VALUES ('{"z": 1}');]);
	$without = peak(q[SELECT count(*) FROM docs WHERE doc ? 'z']);
	$with = peak('SELECT mip.writeset_apply(w) FROM taken');
	cmp_ok($with - $without, '<', 30_000, 'memory of application');
	mip_sql($node, 'DROP TABLE docs, taken');

	# nor that of compaction with the columns of what it looks at on the way
	mip_sql($node, 'CREATE TABLE columns (' . join(', ', map { "c$_ int" } 1 .. 1600) . q[) USING mip;
		INSERT INTO columns VALUES (0);
		CREATE TABLE taken (w bytea);
		BEGIN;
		DO $$ BEGIN FOR i IN 1..2000 LOOP UPDATE columns SET c1 = i; END LOOP; END $$;
		INSERT INTO taken SELECT mip.writeset();
		COMMIT]);
	$without = peak('SELECT sum(length(w)) FROM taken');
	$with = peak('SELECT length(mip.writeset_compact(w)) FROM taken');
	cmp_ok($with - $without, '<', 20_000, 'memory of compaction');
	mip_sql($node, 'DROP TABLE columns, taken');
}

prepare_family('crashed', 2000);
is_as_before($node, 'crashed', 'prepared');

# Who wants a lock of what a prepared instance has changed waits until the family is decided:
# nobody stands behind him to read its writeset, as who is to decide the family may want to.
sub is_refused_behind
{
	my ($statement, $relation, $xid, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $locker = $node->background_psql('postgres', on_error_stop => 0);
	my $waits = "FROM pg_locks WHERE NOT granted AND relation = '$relation'::regclass";
	$locker->query_until(qr/asked/, "\\echo asked\n$statement;\n");
	ok(wait_until(sub { mip_sql($node, "SELECT count(*) $waits") == 1 }), "somebody waits for $relation");
	my ($status, $out, $error) =
	  $node->psql('postgres', "SET statement_timeout = '60s'; SELECT mip.writeset('$xid', 1)", extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($error, qr/55P03: .*waits for a lock on $message/, 'the writeset is not read behind him');
	mip_sql($node, "SELECT pg_cancel_backend(pid) $waits");
	$locker->quit;
	return;
}

is_refused_behind('BEGIN; LOCK a IN ACCESS EXCLUSIVE MODE; COMMIT', 'a', 'crashed', 'table "a"');
is_as_before($node, 'crashed', 'without him');

# So with an index that a foreign key refers to, on which there is no lock of the table; with
# values out of line; and with another table whose rows are values.
mip_sql($node, q[CREATE TABLE referred (id int PRIMARY KEY); INSERT INTO referred VALUES (1);
	CREATE TABLE held (x int, y text) USING mip;
	CREATE TYPE pair AS (h held, i int);
	CREATE DOMAIN pairs AS pair[];
	CREATE TABLE behind (id int REFERENCES referred, ps pairs, big text) USING mip;
	ALTER TABLE behind ALTER big SET STORAGE external;
	BEGIN; SET LOCAL mip.capture_writeset = on; SELECT mip.begin('behind', 1);
	SELECT FROM held;
	INSERT INTO behind VALUES (1, ARRAY[ROW(ROW(1, 'x')::held, 1)]::pair[], repeat('x', 9000)); SELECT mip.prepare('x', 'r')]);
my $toast = mip_sql($node, q[SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'behind']);
is_refused_behind('REINDEX INDEX referred_pkey', 'referred_pkey', 'behind', 'index "referred_pkey"');
is_refused_behind("VACUUM FULL $toast", $toast, 'behind', 'table "pg_toast_\d+"');
is_refused_behind('TRUNCATE held', 'held', 'behind', 'table "held"');
is(mip_sql($node, "SELECT count(*) FROM mip.writeset_changes(mip.writeset('behind', 1))"), 1, 'without them');
mip_sql($node, "SELECT mip.rollback('behind', 1); DROP TABLE behind, held, referred CASCADE");

# Who reads while the instance is rolled back, and VACUUM cuts its pages off, reads nothing
# behind the end of the file: of buffers that have been there, the next page would be made.
{
	mip_sql($node, q[CREATE TABLE short (id int, v int) USING mip; CREATE TABLE others (id int, v int) USING mip;
		SET mip.capture_writeset = off;
		INSERT INTO short SELECT i, 0 FROM generate_series(1, 226) i;
		INSERT INTO others SELECT 100000 + i, -666 FROM generate_series(1, 50000) i]);
	mip_sql($node, 'VACUUM others');
	mip_sql($node, q[BEGIN; SELECT mip.begin('cut', 1);
		INSERT INTO short SELECT i, 1 FROM generate_series(1001, 4000) i; SELECT mip.prepare(NULL, NULL)]);
	my $gate = session($node, 'gate');
	my $reader = session($node, 'reader');
	$gate->sql('SELECT pg_advisory_lock(1)');
	$reader->sql("SET mip.debug_stop_at = 'wait:places'");
	$reader->send_sql("SELECT mip.writeset('cut', 1)");
	ok(wait_until(sub { mip_sql($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 1 }),
		'a reader of what is rolled back');
	mip_sql($node, "SELECT mip.rollback('cut', 1)");
	mip_sql($node, 'VACUUM short');
	is(mip_sql($node, "SELECT pg_relation_size('short')"), 8192, 'its pages are cut off');
	mip_sql($node, 'DROP TABLE others');
	$gate->sql('SELECT pg_advisory_unlock(1)');
	$reader->ends_refused('42704', 'the reader is told that it is gone');
	$_->quit for $reader, $gate;
	mip_sql($node, 'INSERT INTO short SELECT i, 2 FROM generate_series(1001, 4000) i');
	is(mip_sql($node, 'SELECT v, count(*) FROM short GROUP BY v ORDER BY v'), "0|226\n2|3000", 'its next pages are new');
	mip_sql($node, 'DROP TABLE short');
}
my $standby = standby_of($node, 'standby');
power_cut($node);
is_as_before($node, 'crashed', 'after a crash');
mip_sql($node, 'VACUUM (FREEZE) a');
mip_sql($node, 'VACUUM (FREEZE) b');
mip_sql($node, 'CHECKPOINT');
# outsiders go on
mip_sql($node, 'INSERT INTO a SELECT i, 9, NULL FROM generate_series(5001, 9000) i; DELETE FROM a WHERE id > 5000 AND id < 1000000');
mip_sql($node, 'VACUUM a');
power_cut($node);
is_as_before($node, 'crashed', 'after VACUUM and another crash');

catch_up($node, $standby);
my ($status, $out, $error) = $standby->psql('postgres', "SELECT mip.writeset('crashed', 1)");
like($error, qr/mip.writeset/, 'a standby says that it cannot');
$node->stop;
$standby->promote;
is_as_before($standby, 'crashed', 'promoted');
mip_sql($standby, "SELECT FROM mip.commit('crashed', 2)");
is_gone($standby, 'crashed', 'decided');
is(places($standby), '', 'no places are left');
is(mip_sql($standby, 'SELECT sum(v), count(*) FROM a WHERE v > 0 AND id < 1000000'), '2500|1000',
	'and its changes are there');

# A crash between the commit and the note
$node = $standby;
prepare_family('left', 50);
expect_crash($node, 'committed', 'left', 2);
is_gone($node, 'left', 'crash behind the commit');
is(places($node), 'left|2', 'its places are still there');
mip_sql($node, 'SELECT mip.expire()');
is(places($node), '', 'mip.expire has emptied them');
$node->stop;

done_testing();
