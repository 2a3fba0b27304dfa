# A replicated site: changes of definitions, which all replicas make at the same position.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use PostgreSQL::Test::Cluster;
use Test::More;

first_replica('a', q[
	CREATE ROLE joe LOGIN;
	CREATE TABLE acct (id int PRIMARY KEY, n int, s text) USING mip;
	INSERT INTO acct SELECT i, 0, i::text FROM generate_series(1, 20) i;
	CREATE TABLE other (id int PRIMARY KEY, n int) USING mip;
	INSERT INTO other SELECT i, 0 FROM generate_series(1, 20) i;
	CREATE DOMAIN now AS timestamptz DEFAULT now();
	CREATE SCHEMA odd;
	SET default_table_access_method = mip;], deadlock_timeout => '1s');
join_site('b', 'a');

my $ddl = session($node{a}, 'ddl');
my $s = session($node{a}, 'client');
my $t = session($node{b}, 'client of b');

sub send_ddl
{
	my ($command, $session) = @_;
	($session // $ddl)->send_sql(qq[SELECT mip.replicate_ddl(\$ddl\$$command\$ddl\$)]);
	return;
}

# ... and all replicas receive it; what its session is told
sub replicate
{
	my ($command) = @_;
	send_ddl($command);
	take('a');
	receive($_) for qw(b a);
	return $ddl->finish;
}

sub replicated
{
	my ($command, $name) = @_;
	my ($position, $error) = replicate($command);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($error, '', "$name: done");
	is($position, scalar @log, '... at its position');
	return;
}

sub both
{
	my ($sql, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(mip_sql($node{$_}, $sql), $expected, "$name, at $_") for qw(a b);
	return;
}

sub published
{
	my ($sql, $name, @tables) = @_;
	$s->send_sql($sql);
	take('a');
	all_are_same($name, @tables);
	my (undef, $error) = $s->finish;
	is($error, '', "$name: published");
	return;
}

# ---- what is done ----

replicated('ALTER TABLE acct ADD x int NOT NULL DEFAULT 7', 'a column');
both('SELECT sum(x) FROM acct', 140, 'rows have it');
published('UPDATE acct SET x = 8 WHERE id = 1', 'the new column', 'acct');

$ddl->sql(q[SET search_path = odd; SET default_table_access_method = mip; SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Tokyo']);
replicated(q[CREATE TABLE made (id serial PRIMARY KEY, d date DEFAULT '02.01.2026', z timestamptz DEFAULT '2026-01-02 03:04');
	CREATE TABLE child (id int REFERENCES made); ALTER TABLE made OWNER TO joe; GRANT SELECT ON made TO PUBLIC;
	COMMENT ON TABLE made IS 'a;b';], 'several statements, by the settings of the session');
$ddl->sql('RESET ALL');
both(q[SELECT amname, relowner::regrole, obj_description(c.oid) FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE c.oid = 'odd.made'::regclass],
	'mip|joe|a;b', 'a table');
published('INSERT INTO odd.made DEFAULT VALUES', 'rows of a new table', 'odd.made');
both('SELECT d, extract(epoch FROM z) FROM odd.made', '2026-01-02|1767290640.000000', 'as its settings had it');
both('SHOW search_path', '"$user", public', 'whose settings do not stay');
is($applier{$_}->sql(q[SELECT current_user = session_user, current_setting('search_path'), current_setting('session_replication_role')]),
	't|"$user", public|origin', "... nor in the session that applies, at $_") for qw(a b);

replicated('ALTER TABLE acct ALTER n TYPE bigint, ALTER s TYPE int USING s::int', 'columns of another type');
published('UPDATE acct SET n = 10000000000, s = 500 WHERE id = 2', 'rows that were rewritten', 'acct');
replicated(q[CREATE FUNCTION odd.f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 1'], 'a function');
replicated('CREATE UNIQUE INDEX ON acct (odd.f(s)); ALTER TABLE acct ADD CHECK (x > 0); ALTER TABLE acct RENAME x TO y', 'an index, a check, a name');
$s->refused('INSERT INTO acct VALUES (30, 0, 500, 1)', '23505', 'the index is there');
replicated('DROP TABLE odd.child', 'a table that goes');
both(q[SELECT to_regclass('odd.child')], '', 'it is gone');

# ---- what is refused, before anything is sent ----

sub refused
{
	my ($command, $state, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$ddl->refused(qq[SELECT mip.replicate_ddl(\$ddl\$$command\$ddl\$)], $state, $name // $command);
	return;
}

refused($_, '0A000') for (
	'INSERT INTO acct VALUES (40)', 'SELECT 1', 'TRUNCATE acct', 'CREATE TABLE x AS SELECT 1 AS i', 'SELECT 1 AS i INTO x',
	'DO $$ BEGIN END $$', 'CREATE INDEX CONCURRENTLY ON acct (n)', 'DROP INDEX CONCURRENTLY acct_f_idx', 'VACUUM acct',
	'SET search_path = odd', 'CREATE MATERIALIZED VIEW v AS SELECT 1', 'CREATE DATABASE x', 'COPY acct TO STDOUT', 'BEGIN', 'LOCK acct',
	'CREATE TEMP TABLE x (i int)', 'CREATE TABLE pg_temp.x (i int)', 'ALTER TABLE acct SET UNLOGGED',
	'ALTER TABLE acct ADD x timestamptz DEFAULT now()', 'ALTER TABLE acct ADD x uuid DEFAULT gen_random_uuid()',
	'ALTER TABLE acct ADD x timestamptz DEFAULT CURRENT_TIMESTAMP', q[ALTER TABLE acct ADD x timestamptz DEFAULT 'now'::text::timestamptz],
	'ALTER TABLE acct ADD x now', 'ALTER TABLE acct ADD x serial', 'ALTER TABLE acct ADD x int GENERATED ALWAYS AS IDENTITY',
	'ALTER TABLE acct ALTER n TYPE float8 USING random()', 'ALTER TABLE acct ALTER s TYPE name USING current_user',
	'ALTER TABLE acct ADD x int; ALTER TABLE acct ADD z float8 DEFAULT random()');
refused('ALTER TABLE nowhere ADD x int', '42P01', 'a table that is not there');
refused('CREATE TABLE x (', '42601', 'no SQL');
refused('', '42601', 'nothing');
refused('ALTER TABLE acct ADD CHECK (id > 10)', '23514', 'rows that do not fit');
refused(q[COMMIT; DROP TABLE acct], '0A000', 'the end of a transaction');
$ddl->sql('CREATE TEMP TABLE other (i int)');
refused('ALTER TABLE other ADD x int', '0A000', 'a temporary table in place of another one');
$ddl->sql('DROP TABLE other');
$ddl->sql('BEGIN');
refused('ALTER TABLE acct ADD x int', '25001', 'in a transaction block');
$ddl->sql('ROLLBACK');
$ddl->refused($_, 'MP006', $_) for (
	q[SELECT 1, mip.replicate_ddl('ALTER TABLE acct ADD x int')],
	q[DO $$ BEGIN PERFORM mip.replicate_ddl('ALTER TABLE acct ADD x int'); END $$]);
my $joe = session($node{a}, 'joe');
$joe->sql('SET ROLE joe');
$joe->refused(q[SELECT mip.replicate_ddl('CREATE TABLE x (i int)')], '42501', 'who is no superuser');
is(scalar waiting('a', 0), 0, 'nothing of that is published');
both(q[SELECT count(*) FROM pg_attribute WHERE attrelid = 'acct'::regclass AND attnum > 0], 4, 'nor done');

# ---- beside transactions ----

# one that has changed something before, at the other replica
$t->sql('BEGIN; UPDATE other SET n = 1 WHERE id = 1');
replicated('ALTER TABLE acct ADD beside int', 'beside a transaction of another table');
commit($t, 'b');
receive($_) for qw(a b);
$t->ends_refused('40001', 'it began before, and is refused');
$t->sql('ROLLBACK');

# one that is in the way
$t->sql('BEGIN; UPDATE acct SET n = 1 WHERE id = 1');
send_ddl('ALTER TABLE acct DROP beside');
take('a');
receive('b');
receive('a');
is(($ddl->finish)[1], '', '... and it is done');
$t->refused('SELECT 1', '40001|57P01', 'who has locked the table has been ended');
$t = session($node{b}, 'another client of b');

# one that is in the log before it
$t->send_sql('UPDATE acct SET n = 5 WHERE id = 3');
take('b');
replicated('ALTER TABLE acct ADD behind int DEFAULT 3', 'behind a transaction that is in the log');
is(($t->finish)[1], '', 'which is committed');
all_are_same('behind it', 'acct');

# one that is on its way
$t->send_sql('UPDATE acct SET n = 6 WHERE id = 3');
my @ids = map { [ split / / ] } waiting('b', 10000);
send_ddl('ALTER TABLE acct DROP behind');
take('a');
receive('b');
$t->ends_refused('40001', 'who waits for his verdict has it as soon as the definition is there');
push @log, $ids[0][1];
receive($_) for qw(a b);
is(($ddl->finish)[1], '', '... which is done');
all_are_same('before one that comes too late', 'acct');

# two at the same time
my $ddl2 = session($node{b}, 'ddl at b');
send_ddl('CREATE TABLE x (i int)');
send_ddl('CREATE TABLE x (i int)', $ddl2);
take($_) for qw(a b);
receive($_) for qw(a b);
is(($ddl->finish)[1], '', 'of two the first is done');
$ddl2->ends_refused('40001', 'the other one, which has been tried without it, not');
$ddl2->refused(q[SELECT mip.replicate_ddl('CREATE TABLE x (i int)')], '42P07', 'nor if it is tried again');

# rows that come in between
$t->send_sql('INSERT INTO other VALUES (100, -1)');
my @row = map { [ split / / ] } waiting('b', 10000);
my $u = session($node{b}, 'who waits meanwhile');
$u->send_sql('UPDATE other SET n = 9 WHERE id = 5');
my @late = map { [ split / / ] } waiting('b', 10000);
send_ddl('ALTER TABLE other ADD CHECK (n >= 0)');
push @log, $row[0][1];
take('a');
receive('a');
$ddl->ends_refused('40001', 'rows that have come since do not fit');
receive('b');
is(($t->finish)[1], '', 'they stay');
$u->ends_refused('40001', 'who began before has to go all the same');
push @log, $late[0][1];
is(receive($_), 'refused', "... as is his message, at $_") for qw(a b);
all_are_same('rows before a definition', 'other');
both(q[SELECT count(*) FROM pg_constraint WHERE conrelid = 'other'::regclass AND contype = 'c'], 0, 'and it is not done');
$ddl->refused(q[SELECT mip.replicate_ddl('ALTER TABLE other ADD CHECK (n >= 0)')], '23514', 'and then it says why');

# ---- what is missing at one replica ----

$s->sql('CREATE ROLE here');
send_ddl('GRANT SELECT ON acct TO here');
take('a');
receive('a');
is(($ddl->finish)[1], '', 'a role that one replica has');
$applier{b}->refused(receive_sql($behind{b} + 1), '42704', 'and the other one not: it waits');
mip_sql($node{b}, 'CREATE ROLE here');
start_applier('b');
receive('b');
all_are_same('once it is there', 'acct');

# ---- interrupted, crashed, read again ----

send_ddl('ALTER TABLE acct ADD z int');
ok(scalar(grep { kind((split / /)[1]) eq 'D' } waiting('a', 10000)), 'its message is taken');
mip_sql($node{a}, q[SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT mip.replicate_ddl%' AND pid <> pg_backend_pid()]);
$ddl->ends_refused('08007', 'cancelled: it is not known what becomes of it');

send_ddl('ALTER TABLE acct ADD q int');
take('a');
receive('b');
$node{b}->stop('immediate');
$node{b}->start;
start_applier('b');
receive($_) for qw(a b);
is(($ddl->finish)[1], '', 'a crash of the other replica');
both(q[SELECT count(*) FROM pg_attribute WHERE attrelid = 'acct'::regclass AND attname = 'q'], 1, 'it is there once');
start_applier('a');
receive('a');
published('UPDATE acct SET q = 1 WHERE id = 1', 'behind all that', 'acct', 'other');

# who joins has it, and knows of it
$s->sql('BEGIN; UPDATE other SET n = 2 WHERE id = 2');
replicated('ALTER TABLE acct ADD late int', 'the last one');
join_site('c', 'b');
commit($s, 'a');
is(receive('c'), 'refused', 'who joins refuses, too, what began before it');
receive($_) for qw(a b);
$s->ends_refused('40001', 'as all do');
$s->sql('ROLLBACK');
all_are_same('three', 'acct', 'other');

# ---- what has been applied before is read again, many at once ----

sub load_sql { my ($first, @messages) = @_; return "SELECT mip.replica_load($first, ARRAY[" . join(',', map { "'\\x$_'" } @messages) . ']::bytea[])'; }
published('UPDATE acct SET q = 2 WHERE id = 1', 'one more', 'acct');
$s->send_sql('UPDATE acct SET q = 3 WHERE id = 1');
take('a');
my $known = @log - 1;
start_applier('b');
is($applier{b}->sql(load_sql(1, @log[ 0 .. 4 ])), 5, 'some of them');
is($applier{b}->sql(load_sql(6, @log[ 5 .. $#log ])), $known - 5, 'and the others, but not what is new');
$behind{b} = $known;
is(receive('b'), 'applied', '... which is received as ever');
receive($_) for qw(a c);
is(($s->finish)[1], '', 'there, too');
all_are_same('behind that', 'acct');
start_applier('b');
$applier{b}->refused(load_sql(2, @log[ 1 .. 3 ]), '22023', 'those before are first');
start_applier('b');
$applier{b}->refused(load_sql(1, @log[ 0, 1, 3 ]), 'MP030', 'another log is noticed');
start_applier('b');
my $lag = session($node{b}, 'no applier');
$lag->refused(load_sql(1, $log[0]), '55000', 'who does not apply it does not read it');
is($applier{b}->sql(load_sql(1)), 0, 'none');

leave_site($_) for sort keys %node;
done_testing();
