# A replicated site: what a role, a statement or a setting could do to make replicas differ, or to stop one.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use PostgreSQL::Test::Cluster;
use Test::More;

first_replica('a', q[
	CREATE EXTENSION postgres_fdw;
	CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw;
	CREATE USER MAPPING FOR CURRENT_USER SERVER other;
	CREATE FOREIGN TABLE far (n int) SERVER other;
	CREATE ROLE joe LOGIN;
	CREATE SCHEMA joe AUTHORIZATION joe;
	CREATE TABLE acct (id int PRIMARY KEY, n int) USING mip;
	INSERT INTO acct SELECT i, 0 FROM generate_series(1, 20) i;
	CREATE TABLE above (n int) USING mip;
	CREATE TABLE below () INHERITS (above) USING heap;
	INSERT INTO below VALUES (1);
	CREATE TABLE heap (acct int REFERENCES acct) USING heap;
	CREATE TABLE plain (id int PRIMARY KEY) USING heap;
	CREATE UNLOGGED TABLE unlogged (id int) USING mip;
	CREATE TABLE parts (id int) PARTITION BY RANGE (id);
	CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10) USING mip;
	CREATE TABLE other_part PARTITION OF parts FOR VALUES FROM (10) TO (20) USING heap;
	CREATE SEQUENCE numbers;
	CREATE TABLE computed (id int PRIMARY KEY, f float8, b bytea, t text GENERATED ALWAYS AS (f::text) STORED,
		h text GENERATED ALWAYS AS (b::text) STORED) USING mip;
	CREATE TABLE loaded (id int PRIMARY KEY, t text) USING mip;
	INSERT INTO loaded SELECT i, repeat('x', 1000) FROM generate_series(1, 5000) i;
	CREATE TABLE shapes (id int PRIMARY KEY, c circle, z timetz, j jsonb) USING mip;
	CREATE TABLE named (id int PRIMARY KEY, r regclass) USING mip;
	CREATE TABLE external (id int PRIMARY KEY, t text UNIQUE) USING mip;
	ALTER TABLE external ALTER t SET STORAGE EXTERNAL;
	CREATE TABLE compressed (t text);
	INSERT INTO compressed VALUES (repeat('a', 5000));
	CREATE TABLE audit (n int) USING mip;
	CREATE FUNCTION vol(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.audit VALUES ($1); RETURN $1; END';
	CREATE FUNCTION imm(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN public.vol($1); END';
	CREATE TABLE lies (n int PRIMARY KEY) USING mip;
	CREATE INDEX lies_n ON lies (imm(n));
	TRUNCATE audit;
	CREATE SCHEMA evil AUTHORIZATION joe;
	CREATE FUNCTION size(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN abs($1); END';
	CREATE TABLE sized (id int PRIMARY KEY) USING mip;
	CREATE UNIQUE INDEX ON sized (size(id));
	CREATE FUNCTION joe.sets(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
		$$ BEGIN PERFORM set_config('search_path', 'evil, pg_catalog, public', false); RETURN $1; END $$;
	CREATE FUNCTION joe.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
		BEGIN
			IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
				ALTER ROLE joe SUPERUSER;
			END IF;
			RETURN $1;
		END $$;
	SET ROLE joe;
	CREATE FUNCTION evil.abs(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'found by a search_path of joe''s'; END $$;
	CREATE TABLE joe.set (n int PRIMARY KEY) USING mip;
	CREATE INDEX ON joe.set (joe.sets(n));
	CREATE DOMAIN joe.d AS int CHECK (joe.f(value) IS NOT NULL);
	CREATE TABLE joe.mine (n int PRIMARY KEY CHECK (joe.f(n) IS NOT NULL), d joe.d, a joe.d[], who name CHECK (who = current_user)) USING mip;
	CREATE UNIQUE INDEX mine_f ON joe.mine (joe.f(n));
	CREATE FUNCTION joe.t() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM joe.f(1); RETURN NULL; END $$;
	CREATE TABLE joe.emptied (n int PRIMARY KEY) USING mip;
	CREATE TRIGGER t AFTER TRUNCATE ON joe.emptied EXECUTE FUNCTION joe.t();
	ALTER TABLE joe.emptied ENABLE ALWAYS TRIGGER t;
	RESET ROLE;]);
join_site('b', 'a');

my $s = session($node{a}, 'client');
my $joe = session($node{a}, 'joe');
$joe->sql('SET ROLE joe');

# ---- refused ----

$s->refused($_, '0A000', $_) for (
	'INSERT INTO plain VALUES (1)', 'INSERT INTO unlogged VALUES (1)', 'INSERT INTO parts VALUES (1)',
	'INSERT INTO far VALUES (1)', 'TRUNCATE above', 'TRUNCATE acct CASCADE', 'TRUNCATE plain', 'TRUNCATE joe.emptied',
	q[COPY plain FROM PROGRAM 'echo 1'], 'CREATE TABLE x (i int)', 'SELECT * INTO x FROM acct', 'ALTER TABLE acct ADD x int',
	'DROP TABLE acct', 'CREATE INDEX ON acct (n)', 'GRANT SELECT ON acct TO joe', q[COMMENT ON TABLE acct IS ''],
	'CREATE INDEX CONCURRENTLY acct_n_key ON acct (n)', 'CREATE INDEX CONCURRENTLY x_pkey1 ON acct (n)',
	'CREATE UNIQUE INDEX CONCURRENTLY ON acct (n)', 'CREATE INDEX CONCURRENTLY ON part (id)', 'DROP INDEX CONCURRENTLY joe.mine_f', 'LOCK TABLE acct',
	'ALTER SEQUENCE numbers OWNED BY acct.n', 'ALTER SEQUENCE numbers OWNED BY NONE RESTART',
	'SELECT lo_create(0)', q[SELECT mip.enable('plain')], q[SELECT mip.disable('acct')],
	q[SELECT mip.writeset_apply('')],
	'BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE acct SET n = 1 WHERE id = 1');
$s->sql('ROLLBACK');
$s->sql('BEGIN; SELECT FROM acct WHERE id = 1 FOR UPDATE');
$s->refused(q[PREPARE TRANSACTION 'p'], '0A000', 'PREPARE TRANSACTION, though it has locks only');
$s->sql(q[SELECT pg_replication_origin_create('o'); SELECT pg_replication_origin_session_setup('o')]);
$s->refused('UPDATE acct SET n = 1 WHERE id = 1', '0A000', 'a subscription');
$s->sql('SELECT pg_replication_origin_session_reset()');
$joe->refused($_, '0A000', "joe: $_") for 'CREATE INDEX CONCURRENTLY ON joe.mine (d)', 'DROP INDEX CONCURRENTLY joe.mine_f';
$joe->refused($_, '42501', "joe: $_") for ('SELECT * FROM mip.replica_start()', "SELECT mip.replica_receive(1, '')",
	'SELECT FROM mip.replica_take()', q[SELECT mip.replica_leave('b')], 'SET mip.replicated_database = a')[ 0 .. 3 ];

# what there is, and could not be made where it is applied
$s->refused($_->[0], $_->[1], $_->[0]) for (
	[ 'INSERT INTO shapes (id, c) VALUES (1, circle(point(0, 0), -1))', '22P03' ],
	[ q[INSERT INTO shapes (id, z) VALUES (1, timetz '10:00+00' AT TIME ZONE interval '100 hours')], '22P03' ],
	[ q[INSERT INTO named VALUES (1, 'acct')], '0A000' ],
	[ 'INSERT INTO external SELECT 1, t FROM compressed', '54000' ],
	[ q[INSERT INTO shapes (id, j) SELECT 1, (repeat('[', 10000) || repeat(']', 10000))::jsonb], '54001' ],
	[ 'INSERT INTO lies VALUES (1)', '25006' ]);
is(scalar waiting('a'), 0, 'nothing of that is published');

# each replica's own
$s->sql($_) for ('CREATE TEMP TABLE x (i int)', 'INSERT INTO x VALUES (1)', 'CREATE INDEX ON x (i)', 'ALTER TABLE x ADD y int',
	'TRUNCATE x', 'DROP TABLE x', q[SELECT nextval('numbers')], 'VACUUM FULL acct', 'REINDEX TABLE acct', 'ANALYZE',
	'ALTER SEQUENCE numbers RESTART 10', 'CREATE TEMP SEQUENCE x', 'ALTER SEQUENCE x OWNED BY NONE',
	'CREATE INDEX CONCURRENTLY n ON acct (n)', 'DROP INDEX CONCURRENTLY n', 'CREATE ROLE jim');
pass('what is each replica\'s own is not');

# ---- the same, whatever the settings, and whoever does it ----

done($s, q[SET extra_float_digits = -10; SET bytea_output = escape; INSERT INTO computed (id, f, b) VALUES (1, 1 / 3.0::float8, '\x01ff')],
	'generated columns by settings', 'computed');
done($s, 'RESET ALL; UPDATE computed SET f = 2 WHERE id = 1', 'generated columns that stay', 'computed');
is(mip_sql($node{b}, 'SELECT t, h FROM computed'), '2|\001\377', 'as they are where they come from');
done($joe, q[INSERT INTO joe.mine VALUES (1, 2, '{3}', current_user)], 'checks and code of a table\'s owner', 'joe.mine');
done($joe, 'UPDATE joe.mine SET n = 2, d = 3', 'in updates', 'joe.mine');
is(mip_sql($node{b}, q[SELECT rolsuper FROM pg_roles WHERE rolname = 'joe']), 'f', 'it has run with his rights');

done($joe, 'INSERT INTO joe.set VALUES (1)', 'a setting that code of a table\'s owner makes', 'joe.set');
done($s, 'INSERT INTO sized VALUES (-1)', 'is not there for that of others', 'sized');

# ---- who keeps others waiting ----

my $other = session($node{b}, 'in the way');

sub ended
{
	return mip_sql($node{b}, 'SELECT ended FROM mip.replication');
}

sub does_not_wait
{
	my ($name) = @_;
	my $before = ended();
	$s->send_sql('UPDATE acct SET n = n + 1 WHERE id = 2');
	take('a');
	all_are_same("in the way: $name", 'acct');
	$s->finish;
	is(ended() - $before, 1, '... and is counted once');
	return;
}

$other->sql('BEGIN; UPDATE acct SET n = 0 WHERE id = 2');
$other->{psql}{stdin} .= "COPY acct FROM STDIN;\n";
$other->{psql}{run}->pump_nb;
$node{b}->poll_query_until('postgres', "SELECT wait_event_type = 'Client' AND query ~ 'COPY' FROM pg_stat_activity WHERE pid = " . $other->pid);
does_not_wait('who sends rows, and no more');
$other->quit;

$other = session($node{b}, 'in the way');
$other->sql('BEGIN; UPDATE acct SET n = 0 WHERE id = 2');
$other->send_sql(q[DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$])->begun;
does_not_wait('who catches errors');
$other->quit;

# ---- answers ----

# what fails behind the verdict, and nothing of it is to be logged
$s->sql("SET log_min_messages = panic; BEGIN; UPDATE acct SET n = 7 WHERE id = 3; SET mip.debug_stop_at = 'error:certified'");
commit($s, 'a');
is(receive('a'), 'applied', 'what fails behind its verdict');
$s->ends_refused('08007', 'is told as not known, whatever is logged');
$s->sql('RESET ALL');

SKIP:
{
	skip 'no transaction_timeout before 17', 4 if $node{a}->pg_version < 17;
	$s->sql("SET transaction_timeout = '1s'; BEGIN; UPDATE acct SET n = 8 WHERE id = 3");
	$s->send_sql('COMMIT');
	$s->ends_refused('25P04', 'a timeout before the message is taken: nothing has happened');
	is(scalar waiting('a'), 0, 'and it is not there to be taken');
	$s = session($node{a}, 'client again');
	$s->sql("SET transaction_timeout = '2s'; BEGIN; UPDATE acct SET n = 9 WHERE id = 3");
	commit($s, 'a');
	$s->ends_refused('08007', 'behind that it is not known');
	is(receive('a'), 'applied', 'and it has happened');
	$s = session($node{a}, 'client again');
}

# an applier is replaced while a session is about to commit what is certified
my $lock = session($node{a}, 'lock');
$lock->sql('SELECT pg_advisory_lock(1)');
$s->sql("BEGIN; INSERT INTO acct VALUES (30, 1); UPDATE acct SET n = n + 1 WHERE id = 4; SET mip.debug_stop_at = 'wait:certified'");
commit($s, 'a');
$applier{a}->send_sql(receive_sql($behind{a} + 1));
$s->waits_for("locktype = 'advisory'");
mip_sql($node{a}, 'SELECT pg_terminate_backend(' . $applier{a}->pid . ')');
eval { $applier{a}->finish };
$node{a}->poll_query_until('postgres', 'SELECT applier_pid IS NULL FROM mip.replication');
start_applier('a');
receive('a', @log - 1);
$applier{a}->send_sql(receive_sql(++$behind{a}))->begun;
$lock->sql('SELECT pg_advisory_unlock(1)');
$s->finish;
my ($out) = $applier{a}->finish;
is($out, 'committed', 'the next applier waits for who commits');
all_are_same('another applier', 'acct');
$s->sql('RESET ALL');

# a leave is told until it has come back
mip_sql($node{a}, q[SELECT mip.replica_leave('nobody')]);
for (1, 2)
{
	my @found;
	wait_until(sub {
		@found = grep { kind($_) eq 'L' } split /\n/, mip_sql($node{a}, "SELECT encode(message, 'hex') FROM mip.replica_take(timeout_ms => 100)");
	});
	is(scalar @found, 1, 'a leave that nobody has received is told again');
}

# ---- a standby of a replica is promoted ----

$node{a}->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node{a}, 'standby', has_streaming => 1);
$standby->append_conf('postgresql.conf', "mip.member = 'c'");
$standby->start;
my $before = mip_sql($standby, 'SELECT applied FROM mip.replication');
my $waits = session($standby, 'who waits at a standby');
$waits->send_sql("SELECT mip.wait_for($before + 1)");
done($s, 'UPDATE acct SET n = n + 1', 'beside a standby', 'acct');
is(($waits->finish)[1], '', 'a position may be waited for there');
catch_up($node{a}, $standby);
cmp_ok(mip_sql($standby, 'SELECT applied FROM mip.replication'), '>', $before, 'a standby shows how far it is');
$standby->promote;
$node{c} = $standby;
start_applier('c');
receive('c');
all_are_same('promoted', 'acct');
done($s, 'UPDATE acct SET n = n + 1', 'behind that', 'acct');

done_testing();
