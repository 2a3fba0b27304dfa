# A replicated site: what a definition comes to is compared, and one that fails everywhere can be left out.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use PostgreSQL::Test::Utils;
use Test::More;

first_replica('a', q[
	CREATE ROLE joe LOGIN;
	CREATE SCHEMA s1;
	CREATE SCHEMA s2;
	CREATE SCHEMA joes AUTHORIZATION joe;
	SET default_table_access_method = mip;
	CREATE TABLE acct (id int PRIMARY KEY, n int);
	INSERT INTO acct SELECT i, 0 FROM generate_series(1, 20) i;
	CREATE TABLE parted (id int, n int) PARTITION BY LIST (n);
	CREATE TABLE part1 PARTITION OF parted FOR VALUES IN (1);
	CREATE TABLE part2 (id int, n int);
	CREATE TABLE s1.t (id int, n int);
	CREATE TABLE s2.t (id int, n int);
	CREATE UNIQUE INDEX "x = 1" ON s2.t (id);
	CREATE TABLE joes.pairs (a int, b int);
	CREATE VIEW sized AS SELECT pg_relation_size('acct_pkey'::regclass);
	CREATE FUNCTION here() RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT current_setting('mip.member')$$;
	CREATE FUNCTION full_disk(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS
		$$BEGIN IF current_setting('check_function_bodies')::bool THEN RETURN true; END IF; RAISE 'no room' USING ERRCODE = '53100'; END$$;
	CREATE FUNCTION slow(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS
		$$BEGIN IF current_setting('mip.member') <> 'a' THEN PERFORM pg_sleep(0.2); END IF; RETURN true; END$$;
	CREATE FUNCTION moment() RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT clock_timestamp()::text';]);
my $b = 'b';
join_site($b, 'a');

my $ddl = session($node{a}, 'ddl');
my $s = session($node{a}, 'client');

# What is `b`'s own is noticed, and it is done once that has gone.
sub noticed
{
	my ($own, $command, $kinds, $gone, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	mip_sql($node{$b}, $_) for @$own;
	executed($ddl, $command, $name);
	waits($b, "55000.*Not the same are: $kinds\\.", $name);
	mip_sql($node{$b}, $_) for @$gone;
	receive($b);
	all_are_same("$name, when that has gone", 'acct');
	return;
}

# ---- names that PostgreSQL chooses, and what they mean ----

noticed(['CREATE INDEX CONCURRENTLY part2_id_n_idx ON part2 (n)'], 'ALTER TABLE parted ATTACH PARTITION part2 FOR VALUES IN (2);
	CREATE UNIQUE INDEX parted_u ON parted (id, n)', 'indexes', ['DROP INDEX CONCURRENTLY part2_id_n_idx'], 'a name that is taken');
executed($ddl, 'DROP INDEX parted_u; ALTER TABLE parted DETACH PARTITION part2', 'it goes again');
receive($b);
noticed(['CREATE INDEX CONCURRENTLY own ON part2 (id)'], 'ALTER TABLE parted ATTACH PARTITION part2 FOR VALUES IN (2); CREATE INDEX parted_id ON parted (id)',
	'indexes', ['DROP INDEX CONCURRENTLY own'], 'an index that becomes a part of one');
$ddl->sql('SET search_path = s1, s2, public');
noticed(['CREATE INDEX CONCURRENTLY "x = 1" ON s1.t (n)'], 'DROP INDEX "x = 1"', 'indexes', ['DROP INDEX CONCURRENTLY s1."x = 1"'], 'another one of that name');
$ddl->sql('RESET search_path');

my $joe = session($node{$b}, 'joe');
$joe->sql('SET ROLE joe; CREATE TEMP TABLE q (a int, b int); CREATE STATISTICS joes.pairs_a_b_stat ON a, b FROM q');
executed($ddl, 'CREATE STATISTICS IF NOT EXISTS joes.pairs_a_b_stat ON a, b FROM joes.pairs', 'statistics');
receive($b);
$joe->refused('SELECT 1', '57P01', 'who has statistics of that name, of what is temporary, is ended for it');
is(mip_sql($node{$b}, 'SELECT stxname FROM pg_statistic_ext'), 'pairs_a_b_stat', 'it has the name it is to have');

# who has all names without that
executed($ddl, 'CREATE TABLE made (id serial PRIMARY KEY, n int UNIQUE, CHECK (n > 0)); ALTER TABLE made ADD CHECK (n < 10);
	CREATE VIEW seen AS SELECT id FROM made; CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1; CREATE DOMAIN d AS int CHECK (value > 0)', 'much else');
receive($b);
mip_sql($node{$b}, $_) for ('ALTER SEQUENCE made_id_seq MAXVALUE 100', 'REINDEX INDEX CONCURRENTLY made_pkey', 'REINDEX INDEX CONCURRENTLY acct_pkey', 'VACUUM FULL acct', 'CREATE INDEX CONCURRENTLY mine ON made (n)');
executed($ddl, 'ALTER TABLE made ADD m int DEFAULT 1', 'a column');
receive($b);
mip_sql($node{$b}, 'VACUUM FULL made');
executed($ddl, 'ALTER TABLE made ALTER m SET DEFAULT 2', 'its default');
executed($ddl, 'ALTER TABLE made RENAME m TO renamed', 'its name');
executed($ddl, 'ALTER TABLE made RENAME TO made2; ALTER TABLE made2 SET SCHEMA s1', 'its table\'s');
executed($ddl, 'DROP VIEW sized', 'what looks otherwise there');
receive($b);
pass('numbers, and how rows and indexes are stored, are each replica\'s own');

# ---- files of an extension ----

sub finds_extension
{
	my ($member, $version) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	mkdir "$dir/extension";
	append_to_file("$dir/extension/versioned.control", "default_version = '$version'\n");
	append_to_file("$dir/extension/versioned--$version.sql", "CREATE TABLE versioned (i int);\n");
	mip_sql($node{$member}, "ALTER SYSTEM SET extension_control_path = '$dir:\$system'");
	$node{$member}->reload;
	wait_until(sub { mip_sql($node{$member}, 'SHOW extension_control_path') =~ $dir });
	return;
}

if ($node{a}->pg_version >= 18)
{
	finds_extension('a', '1.0');
	finds_extension($b, '2.0');
	executed($ddl, 'CREATE EXTENSION versioned', 'an extension');
	waits($b, '55000.*Not the same are: extensions\.', 'another version of it');
	finds_extension($b, '1.0');
	receive($b);
	all_are_same('with the same version', 'acct');
}

# ---- rows, by a function that lies ----

for my $case (['ALTER TABLE acct ADD z text DEFAULT here()', 'z'], [q[ALTER TABLE acct ALTER n TYPE text USING here()], 'n'],
	[q[ALTER TABLE acct ADD z text DEFAULT here(); ALTER TABLE acct ALTER z DROP DEFAULT], 'z'])
{
	my ($command, $column) = @$case;
	executed($ddl, $command, $command);
	waits($b, '55000.*Not the same are: rows\.', $command);
	leave_site($b);
	delete $node{$b};
	join_site(++$b, 'a');
	is(mip_sql($node{$b}, "SELECT DISTINCT $column FROM acct"), 'a', '... until it is made anew');
	executed($ddl, $column eq 'z' ? 'ALTER TABLE acct DROP z' : 'ALTER TABLE acct ALTER n TYPE int USING 0', 'it goes again');
	receive($b);
}

# ---- one that fails everywhere ----

define($ddl, 'ALTER TABLE acct ADD z text DEFAULT moment()');
take('a');
my $stuck = @log;
waits($_, '55000.*Not the same are: rows\.', 'what is another value each time') for ('a', $b);
my $t = session($node{a}, 'operator');
$t->sql('SET ROLE joe');
$t->refused("SELECT mip.replica_skip($stuck)", '42501', 'who is no superuser leaves nothing out');
$t->sql('RESET ROLE');
$t->refused("SELECT mip.replica_skip($_)", '55000', "nor is position $_") for (0, -1, $stuck - 1, $stuck + 1, '9223372036854775807');
waits('a', '55000', 'nothing is left out by that');
$t->sql("SELECT mip.replica_skip($stuck)");
like(receive('a'), qr/left out$/, 'it is left out');
$ddl->ends_refused('55000', 'its session is told');
waits($b, '55000', 'as it is not at others');
mip_sql($node{$b}, "SELECT mip.replica_skip($stuck)");
like(receive($b), qr/left out$/, '... until they do');
$t->refused("SELECT mip.replica_skip($stuck)", '55000', 'what is done is done');
all_are_same('without it', 'acct');
start_applier($b);
all_are_same('read again', 'acct');
done($s, 'UPDATE acct SET n = n + 1', 'they go on', 'acct');
executed($ddl, 'ALTER TABLE acct ADD z int', 'so does what defines');
receive($b);

# who was told that he is refused for it is refused
my $waits = session($node{$b}, 'who is at his COMMIT');
my $runs = session($node{$b}, 'who is not');
$waits->send_sql('UPDATE acct SET n = 50 WHERE id = 1');
my ($late) = map { (split / /)[1] } published($b);
$runs->sql('BEGIN; UPDATE acct SET n = 51 WHERE id = 2');
define($ddl, 'ALTER TABLE acct ADD x text DEFAULT moment()');
take('a');
$stuck = @log;
waits($_, '55000', 'one behind which there is more') for ('a', $b);
$waits->ends_refused('40001', 'who waits is refused');
$runs->refused('SELECT 1', '40001|57P01', '... and who is in the way');
push @log, $late;
mip_sql($node{$_}, "SELECT mip.replica_skip($stuck)") for ('a', $b);
like(receive($_), qr/left out refused$/, "... as he has been told, at $_") for ('a', $b);
$ddl->ends_refused('55000', 'its session is told');
all_are_same('all the same', 'acct');

# whatever it fails by
define($ddl, 'ALTER TABLE acct ADD CHECK (full_disk(id))');
take('a');
$stuck = @log;
waits($_, '53100', 'one that might be executed later') for ('a', $b);
mip_sql($node{$_}, "SELECT mip.replica_skip($stuck)") for ('a', $b);
like(receive($_), qr/left out$/, "... is left out, too, at $_") for ('a', $b);
$ddl->ends_refused('55000', 'its session is told');

# two, one right behind the other, of which the first one's session knows nothing yet
define($ddl, 'ALTER TABLE acct ADD x text DEFAULT moment()');
take('a');
kill 'STOP', $ddl->pid;
$stuck = @log;
for my $last (0, 1)
{
	waits($_, '55000', 'one of two') for ('a', $b);
	mip_sql($node{$_}, "SELECT mip.replica_skip($stuck)") for ('a', $b);
	like(receive($_), qr/left out$/, "... is left out at $_") for ('a', $b);
	last if $last;
	define($t, 'ALTER TABLE acct ADD x text DEFAULT moment()');
	take('a');
	$stuck = @log;
}
kill 'CONT', $ddl->pid;
$_->ends_refused('55000', 'both sessions are told') for ($ddl, $t);
all_are_same('without the two', 'acct');

# what knows of it, and what does not, when it is read again
$s->sql('BEGIN; UPDATE acct SET n = 60 WHERE id = 3');
start_applier($_) for ('a', $b);
receive($_) for ('a', $b);
commit($s, 'a');
like(receive('a'), qr/committed$/, 'what has begun behind it stays');
is(($s->finish)[1], '', 'and is told so');
all_are_same('behind what is left out, and read again', 'acct');

# a crash forgets what is to be left out
define($ddl, 'ALTER TABLE acct ADD y text DEFAULT moment()');
take('a');
$stuck = @log;
waits($b, '55000', 'another one');
mip_sql($node{$b}, "SELECT mip.replica_skip($stuck)");
$node{$b}->stop('immediate');
$node{$b}->start;
start_applier($b);
waits($b, '55000', 'a crash forgets what is to be left out');
waits('a', '55000', '... and which has failed');
mip_sql($node{$_}, "SELECT mip.replica_skip($stuck)") for ('a', $b);
like(receive($_), qr/left out$/, "both leave it out: $_") for ('a', $b);
$ddl->ends_refused('55000', 'its session is told again');
all_are_same('without both', 'acct');

# ---- one that only one replica leaves out ----

$s->sql('CREATE ROLE here');
executed($ddl, 'ALTER TABLE acct ADD CONSTRAINT takes_long CHECK (slow(id)); GRANT SELECT ON acct TO here', 'a role that one replica has');
waits($b, '42704', 'without the role');
mip_sql($node{$b}, 'CREATE ROLE here');
receive($b, @log - 1);
$applier{$b}->send_sql(receive_sql($behind{$b} + 1));
$node{$b}->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
mip_sql($node{$b}, 'SELECT mip.replica_skip(' . @log . ')');
$applier{$b}->ends_refused('55000', 'what could be executed by now has not been when somebody has left it out meanwhile');
start_applier($b);
like(receive($b), qr/left out$/, 'it is left out there');
$s->send_sql('UPDATE acct SET n = 5');
take('a');
receive('a');
is(($s->finish)[1], '', 'who has executed it goes on');
$applier{$b}->refused(receive_sql($behind{$b} + 1), 'MP030', '... and not with one that has not');

# ---- a snapshot that is older than what is compared ----

$ddl->sql('SET default_transaction_isolation = \'repeatable read\'');
my $ddl2 = session($node{a}, 'ddl beside');
my $known = @log;
define($ddl2, 'CREATE TABLE first (i int)');
take('a');
define($ddl, 'CREATE TABLE second (i int)');
wait_until(sub { take('a'); @log == $known + 2 });
receive('a');
is(($ddl2->finish)[1], '', 'of two the first is done');
wait_until(sub { take('a'); @log == $known + 3 });
receive('a');
is(($ddl->finish)[1], '', 'the other one, tried out anew, by what is there then');

done_testing();
