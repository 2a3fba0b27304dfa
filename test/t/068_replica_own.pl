# A replicated site: what is one replica's own does not make a definition another one there, nor keep it for ever.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

first_replica('a', q[
	CREATE ROLE joe LOGIN;
	CREATE SCHEMA joes AUTHORIZATION joe;
	SET default_table_access_method = mip;
	CREATE TABLE acct (id int PRIMARY KEY, n int);
	INSERT INTO acct SELECT i, 0 FROM generate_series(1, 20) i;
	CREATE TABLE filled (id int PRIMARY KEY);
	INSERT INTO filled SELECT generate_series(1, 5);
	CREATE TABLE seen (id int PRIMARY KEY, n int);
	CREATE TYPE colour AS ENUM ('red', 'green');
	CREATE TABLE moved (id int PRIMARY KEY, t text);
	INSERT INTO moved VALUES (1, 'x');
	CREATE FUNCTION here() RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT current_setting('mip.member')$$;
	CREATE FUNCTION long(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS
		$$BEGIN IF current_setting('mip.member') <> 'a' THEN PERFORM pg_sleep(600); END IF; RETURN true; END$$;
	SET ROLE joe;
	CREATE TABLE joes.t (id int PRIMARY KEY, n int);
	CREATE TABLE joes.child (id int PRIMARY KEY, aid int);], wal_writer_delay => '10s', allow_in_place_tablespaces => 'on');
my $b = 'b';
join_site($b, 'a');

my $ddl = session($node{a}, 'ddl');
$ddl->sql('SET client_min_messages = warning');

# A definition does at both what it is to do.
sub replicated
{
	my ($command, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	executed($ddl, $command, $name);
	receive($b);
	all_are_same($name, 'acct');
	return;
}

sub made_anew { leave_site($b); delete $node{$b}; join_site(++$b, 'a'); return; }

# ---- values that rows do not have ----

mip_sql($node{$_}, "CREATE TABLESPACE ts LOCATION ''") for 'a', $b;
replicated(q[ALTER TABLE filled ADD c colour DEFAULT 'red', ADD d cidr DEFAULT '10.0.0.1/32'], 'values that rows do not have');
mip_sql($node{$b}, 'VACUUM FULL filled');
replicated(q[ALTER TYPE colour RENAME VALUE 'red' TO 'crimson'; ALTER TABLE filled ALTER d TYPE inet], 'what reads otherwise by now');

# ---- rows that are stored anew, and something else besides ----

executed($ddl, 'ALTER TABLE moved ALTER t TYPE text USING here(), SET ACCESS METHOD heap', 'not as a mip table');
waits($b, '55000.*Not the same are: rows\.', 'not as a mip table');
made_anew();
$ddl->refused("SELECT mip.replicate_ddl(\$\$$_\$\$)", '0A000', $_) for ('ALTER TABLE filled SET TABLESPACE ts, ALTER id TYPE bigint',
	'ALTER TABLE filled SET TABLESPACE ts; ALTER TABLE filled ALTER id TYPE bigint');
replicated('ALTER TABLE filled SET TABLESPACE ts', 'rows in another place');

# ---- what REINDEX CONCURRENTLY has left behind ----

my $old = session($node{$b}, 'who has an old snapshot');
my $joe = session($node{$b}, 'joe');
$old->sql('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM acct LIMIT 1');
$joe->sql('SET ROLE joe');
$joe->send_sql('REINDEX INDEX CONCURRENTLY joes.t_pkey');
wait_until(sub { mip_sql($node{$b}, q[SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('joes.t_pkey_ccnew') AND indisready]) eq '1' });
mip_sql($node{$b}, 'SELECT pg_cancel_backend(' . $joe->pid . ')');
like(($joe->finish)[1], qr/57014/, 'REINDEX CONCURRENTLY is cancelled');
$old->quit;
$joe->sql('REINDEX INDEX joes.t_pkey_ccnew');
$joe->sql('REINDEX INDEX CONCURRENTLY joes.t_pkey');
executed($ddl, 'ALTER TABLE joes.child ADD CONSTRAINT fk FOREIGN KEY (aid) REFERENCES joes.t (id)', 'a foreign key');
waits($b, '55000.*Not the same are: constraints\.', 'one by what is left behind there');
mip_sql($node{$b}, 'DROP INDEX CONCURRENTLY joes.t_pkey_ccnew');
receive($b);
replicated('ALTER TABLE joes.t DROP CONSTRAINT t_pkey CASCADE', '... which goes as it has come');

# ---- somebody who gets something temporary as often as it is taken from him ----

my $stop = PostgreSQL::Test::Utils::tempdir() . '/stop';
my $connstr = $node{$b}->connstr('postgres') . ' user=joe';
my $loop = fork();
END { kill 'KILL', $loop if $loop }
if ($loop == 0)
{
	open STDOUT, '>', '/dev/null';
	open STDERR, '>', '/dev/null';
	system('psql', '-XqAt', '-d', $connstr, '-c', "CREATE FUNCTION pg_temp.mine(seen) RETURNS int LANGUAGE sql AS 'SELECT 1'", '-c', 'SELECT pg_sleep(1000)')
	  until -e $stop;
	POSIX::_exit(0);
}
$node{$b}->poll_query_until('postgres', q[SELECT count(*) > 0 FROM pg_proc WHERE proname = 'mine']);
replicated('DROP TABLE seen', 'what somebody has something temporary of, and gets it again at once');
append_to_file($stop, '');
mip_sql($node{$b}, q[SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'joe']);
waitpid $loop, 0;
$joe = session($node{$b}, 'joe again');
$joe->sql('CREATE TEMP TABLE mine (i int)');
pass('afterwards everybody may');

# ---- who has been told of an error is not looked after any longer ----

# How often it has waited for something; undef once it is gone.
sub naps
{
	my ($s) = @_;
	my ($n) = slurp_file('/proc/' . $s->pid . '/status') =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	return $n;
}

for my $told (['BEGIN', 'SELECT 1 / 0', 'SELECT 1'], ['BEGIN', 'SAVEPOINT s', 'SELECT 1 / 0', 'ROLLBACK TO s', 'SELECT 1 / 0', 'SELECT 1'])
{
	my $s = session($node{$b}, 'told');
	$s->send_sql($_), $s->finish for @$told, 'ROLLBACK';
	my $before = naps($s);
	usleep(1_000_000);
	cmp_ok(naps($s) - $before, '<', 3, join('; ', @$told) . ': idle sessions sleep');
	$s->quit;
}

# ---- leaving out what fails in other ways ----

# its session is ended; its process takes some time for that, longer than the applier waits before it has others ended
my $slow = module($node{$b}, 'slow_exit', <<'C');
#include <stdlib.h>

static void
linger(void)
{
	for (int i = 0; i < 10; i++)
		pg_usleep(10000);
}

void
_PG_init(void)
{
	atexit(linger);
}
C
$applier{$b}->sql("LOAD '$slow'");
executed($ddl, 'ALTER TABLE acct ADD CONSTRAINT takes_long CHECK (long(id))', 'one that takes long');
my $stuck = @log;
my $operator = session($node{$b}, 'operator');
receive($b, @log - 1);
$operator->refused("SELECT mip.replica_skip($stuck)", '55000', 'before anything has failed there is nothing to be left out');
$applier{$b}->send_sql(receive_sql($stuck));
$node{$b}->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
$operator->refused("SELECT mip.replica_skip($stuck)", '55000', 'nor while it is executed');
mip_sql($node{$b}, q[SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep']);
$applier{$b}->finish;
start_applier($b);
$operator->sql("SELECT mip.replica_skip($stuck)");
like(receive($b), qr/left out$/, 'one whose session has been ended is left out');
made_anew();

# the server crashes, and nobody applies
executed($ddl, 'ALTER TABLE acct ADD CONSTRAINT takes_longer CHECK (long(id))', 'another one that takes long');
$stuck = @log;
receive($b, @log - 1);
$applier{$b}->send_sql(receive_sql($stuck));
$node{$b}->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
$node{$b}->stop('immediate');
$node{$b}->start;
$operator = session($node{$b}, 'operator again');
$operator->refused("SELECT mip.replica_skip($_)", '55000', "position $_ is not the next one") for $stuck - 1, $stuck + 1, 0;
$operator->sql("SELECT mip.replica_skip($stuck)");
start_applier($b);
like(receive($b), qr/left out$/, 'behind a crash it is left out, as long as nobody applies');

# that is not forgotten, whatever else is
$node{$b}->stop('immediate');
$node{$b}->start;
start_applier($b);
is($behind{$b}, 0, 'the log is read again');
is(receive($b), join(' ', ('loaded') x $stuck), 'a crash does not forget what has been left out');
is(mip_sql($node{$b}, q[SELECT count(*) FROM pg_constraint WHERE conname = 'takes_longer']), 0, '... so that it is not executed after all');

# what fails at the end of its transaction fails where it is tried out
if ($node{a}->pg_version >= 18)
{
	my $dir = PostgreSQL::Test::Utils::tempdir();
	mkdir "$dir/extension";
	append_to_file("$dir/extension/deferred.control", "default_version = '1'\n");
	append_to_file("$dir/extension/deferred--1.sql", q[
		CREATE TABLE deferred (id int);
		CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'at the end'; END$$;
		CREATE CONSTRAINT TRIGGER t AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fails();
		ALTER TABLE deferred ENABLE ALWAYS TRIGGER t;
		INSERT INTO deferred VALUES (1);]);
	mip_sql($node{a}, "ALTER SYSTEM SET extension_control_path = '$dir:\$system'");
	$node{a}->reload;
	wait_until(sub { mip_sql($node{a}, 'SHOW extension_control_path') =~ $dir });
	my $late = session($node{a}, 'one with an extension');
	$late->refused('SELECT mip.replicate_ddl($$CREATE EXTENSION deferred$$)', 'P0001', 'what fails in the end');
}

done_testing();
