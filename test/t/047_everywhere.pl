# mip.serializable = everywhere: a cycle that no site sees by itself; what a site
# says of its setting; and who is in doubt behind a crash or a restart, or when
# PostgreSQL has summarized the conflicts.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

# LOCK TABLE takes an XID where there may be standbys
my $node = mip_node('everywhere', allows_streaming => 1);
my @sites = ('a', 'b');
mip_sql($node, 'CREATE ROLE stranger');
for my $site (@sites)
{
	mip_sql($node, "CREATE DATABASE $site");
	$node->safe_psql(
		$site, q[
		CREATE EXTENSION pg_mip;
		CREATE TABLE s (k int PRIMARY KEY, v int) USING mip WITH (fillfactor = 50);
		INSERT INTO s SELECT k, 0 FROM generate_series(1, 300) k;
		CREATE TABLE h (k int PRIMARY KEY, v int);
		INSERT INTO h VALUES (1, 0), (2, 0);
		GRANT ALL ON s TO stranger;
		CREATE TABLE filler (n int PRIMARY KEY);
		CREATE TABLE gaps (k int PRIMARY KEY) USING mip;
		ANALYZE s;]);
}

sub set_everywhere
{
	my (%setting) = @_;
	mip_sql($node, "ALTER DATABASE $_ SET mip.serializable = $setting{$_}") for keys %setting;
	return;
}

sub session_at
{
	my ($site, $name) = @_;
	my $s = session($node, "$name at $site");
	$s->sql("\\c $site");
	$s->sql('\set VERBOSITY verbose');
	return $s;
}

# A SERIALIZABLE transaction at a site; an instance of these sites if there is an XID
sub begin
{
	my ($site, $name, $xid, $sites, $promise) = @_;
	my $s = session_at($site, $name);
	$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
	$s->sql("SET LOCAL enable_seqscan = off; SET LOCAL lock_timeout = '20s'");
	return $s unless $xid;
	$sites //= '{a,b}';
	$promise //= $sites eq '{a,b}' ? ", serializable => 'everywhere'" : '';
	$s->sql("SELECT mip.begin('$xid', 1, '$sites'$promise)");
	return $s;
}

sub prepare { return $_[0]->sql("SELECT state FROM mip.prepare('', '')") }

sub decide
{
	my ($what, $xid, @at) = @_;
	$node->safe_psql($_, "SELECT FROM mip.$what('$xid', 1)") for @at ? @at : @sites;
	return;
}

# One reads at a and writes at b, the other one likewise from b to a. The number of
# those that are prepared at both sites.
sub cross
{
	my ($xid, $promise) = @_;
	my %s;
	for my $site (@sites)
	{
		$s{$_}{$site} = begin($site, $_, "$xid $_", '{a,b}', $promise) for 'one', 'other';
	}
	$s{one}{a}->sql('SELECT v FROM s WHERE k = 1');
	$s{other}{b}->sql('SELECT v FROM s WHERE k = 1');
	$s{one}{b}->sql('UPDATE s SET v = v + 1 WHERE k = 1');
	$s{other}{a}->sql('UPDATE s SET v = v + 1 WHERE k = 1');
	my %ended;
	for my $which ('one', 'other')
	{
		$ended{$which} = grep { ($s{$which}{$_}->send_sql("SELECT FROM mip.prepare('', '')")->finish)[1] !~ /40001/ } @sites;
		decide('commit', "$xid $which") if $ended{$which} == 2;
		next if $ended{$which} == 2;
		$s{$which}{$_}->sql('ROLLBACK') for @sites;
		$node->safe_psql($_, "SELECT FROM mip.in_doubt i, LATERAL mip.rollback(i.xid, i.xinst)") for @sites;
	}
	$_->quit for map { values %$_ } values %s;
	return scalar grep { $_ == 2 } values %ended;
}

# ---- settings ----

is(cross('each', ''), 2, 'a cycle over two sites, which none sees');
set_everywhere(a => 'everywhere', b => 'everywhere');
is(cross('all', undef), 1, 'one of the two fails where both are serializable everywhere');

my $s = session_at('a', 'a driver');
$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
$s->refused("SELECT mip.begin('m', 1, '{a,b}')", 'MP006', 'a driver has to say that all sites are so');
$s->sql('ROLLBACK');
$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
$s->refused("SELECT mip.begin('m', 1, '{a,b}', serializable => 'site')", 'MP006', 'and nothing else');
$s->sql('ROLLBACK');
$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
$s->refused("SELECT mip.begin('m', 1, '{a,b}', serializable => 'maybe')", '22023', 'nor what there is not');
$s->sql('ROLLBACK');
$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
$s->sql("SELECT mip.begin('m', 1, '{a}')");
$s->sql('ROLLBACK');
pass('not where this is the only site');
$s->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
$s->sql("SELECT mip.begin('m', 1, '{a,b}')");
$s->sql('ROLLBACK');
pass('nor at another isolation level');
$s->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
$s->refused("SELECT mip.begin('m', 1, '{a,b}', serializable => 'everywhere')",
	'MP006', 'at which there is nothing to say');
$s->sql('ROLLBACK');
$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY');
$s->refused("SELECT mip.begin('m', 1, '{a,b}', serializable => 'everywhere')", 'MP006', 'not READ ONLY');
$s->sql('ROLLBACK');
$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY');
$s->sql("SELECT mip.begin('m', 1, '{a}')");
$s->sql('ROLLBACK');
pass('but for a single site');

$node->safe_psql('a', 'CREATE ROLE plain LOGIN');
$s->sql('SET ROLE plain');
$s->refused("SET mip.serializable = site", '42501', 'nobody leaves that to himself');
$s->quit;

set_everywhere(b => 'site');
$s = session_at('b', 'a driver');
$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
like($s->refused("SELECT mip.begin('m', 1, '{a,b}', serializable => 'everywhere')", 'MP006',
	'a site that differs is found'), qr/mip.serializable is "site" here/, 'and says so');
$s->quit;
set_everywhere(b => 'everywhere');

# ---- snapshots of others ----

my $exporter = begin('a', 'exporter');
my $snapshot = $exporter->sql('SELECT pg_export_snapshot()');
my $importer = session_at('a', 'importer');
my $busy = begin('a', 'busy');
$busy->sql('SELECT v FROM s WHERE k = 70');
for my $mode ('READ ONLY', 'READ WRITE')
{
	$importer->sql("BEGIN ISOLATION LEVEL SERIALIZABLE, $mode");
	$importer->sql("SET TRANSACTION SNAPSHOT '$snapshot'");
	is($importer->sql('SELECT v FROM s WHERE k = 70'), '0', "$mode: as current as one's own");
	$importer->sql('COMMIT');
}
$node->safe_psql('a', 'UPDATE s SET v = 1 WHERE k = 70');
for my $mode ('READ ONLY', 'READ WRITE')
{
	$importer->sql("BEGIN ISOLATION LEVEL SERIALIZABLE, $mode");
	$importer->refused("SET TRANSACTION SNAPSHOT '$snapshot'", '55000', "$mode: older than what was over before");
	$importer->sql('ROLLBACK');
}
$importer->sql('SET mip.serializable = site');
$importer->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
$importer->sql("SET TRANSACTION SNAPSHOT '$snapshot'");
is($importer->sql('SELECT v FROM s WHERE k = 70'), '0', 'but at a single site');
$importer->sql('ROLLBACK');
$_->quit for $busy, $importer, $exporter;

# ---- who has an XID before his snapshot ----

my $early = session_at('a', 'early');
$early->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
$early->sql('LOCK TABLE filler IN ACCESS EXCLUSIVE MODE');
$early->sql('UPDATE s SET v = v + 1 WHERE k = 50');
my $late = begin('a', 'late', 'late');
$late->sql('SELECT v FROM s WHERE k = 50');
$late->sql('UPDATE s SET v = v + 1 WHERE k = 51');
$early->sql('COMMIT');
$late->refused("SELECT FROM mip.prepare('', '')", '40001', 'he is known to who reads later');

$_->quit for $early, $late;

# also at a single site, where PostgreSQL by itself keeps for ever what it has prepared
sub begin_early
{
	my ($name, $reach) = @_;
	my $s = session_at('a', $name);
	$s->sql("SET mip.serializable = $reach");
	$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
	return $s;
}

# there may be no more of a statement than its snapshot
sub nothing_is_left
{
	my ($reach, $how) = @_;
	$early = begin_early('early', $reach);
	$early->sql('LOCK TABLE filler IN ACCESS EXCLUSIVE MODE');
	$how->($early);
	$early->sql("PREPARE TRANSACTION 'early'");
	$early->sql("ROLLBACK PREPARED 'early'");
	$early->quit;
	return is(
		$node->safe_psql(
			'a', q[SET mip.serializable = site; SET statement_timeout = '10s';
			BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE; SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock']),
		'0', "$reach: nothing is left of what has been prepared");
}

for my $reach ('site', 'everywhere')
{
	$early = begin_early('early', $reach);
	$early->sql('LOCK TABLE filler IN ACCESS EXCLUSIVE MODE');
	$early->sql('SELECT v FROM s WHERE k = 61');
	$early->sql('UPDATE s SET v = v + 1 WHERE k = 60');
	$late = begin_early('late', $reach);
	$late->sql('SET LOCAL enable_seqscan = off');
	$late->sql('SELECT v FROM s WHERE k = 60');
	$late->sql('UPDATE s SET v = v + 1 WHERE k = 61');
	$early->sql('COMMIT');
	$late->refused('COMMIT', '40001', "$reach: of two that have read what the other one writes one fails");
	$_->quit for $early, $late;

	nothing_is_left($reach, sub { $_[0]->sql('SELECT count(*) FROM filler') });
	nothing_is_left(
		$reach, sub
		{
			my ($s) = @_;
			$s->sql('SAVEPOINT a');
			$s->refused('SELECT nowhere FROM filler', '42703', 'a statement that is not executed');
			$s->sql('ROLLBACK TO a');
		});
}

# ---- who is in doubt behind a crash, or a restart ----

# fails, and names the request to its owner, and what to wait for
sub fails
{
	my ($session, $how, $xid, $name) = @_;
	my $whose = $xid ? "Instance 1 of family \"$xid\"" : 'An instance of a request of another role';
	like($session->refused($how, '40001', $name),
		qr/^DETAIL:  \Q$whose\E, which is in doubt,.*^SCHEMA NAME:  mip\n.*^TABLE NAME:  in_doubt/ms,
		'it is named');
	$session->sql('ROLLBACK');
	return;
}

# No worker tells the registry who is in doubt [rebuilt-first].
$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
for my $mode ('fast', 'immediate')
{
	my $reads = begin('a', 'reader', "$mode reads");
	$reads->sql('SELECT v FROM s WHERE k = 10');
	$reads->sql('SELECT v FROM h WHERE k = 1');
	$reads->sql('SELECT v FROM s WHERE k BETWEEN 100 AND 110');
	$reads->sql('UPDATE s SET v = 1 WHERE k = 20');
	is(prepare($reads), 'prepared', 'prepared');
	$node->stop($mode);
	$node->start;

	my $u = begin('a', 'writer');
	$u->sql('UPDATE s SET v = 2 WHERE k = 10');
	fails($u, 'COMMIT', "$mode reads", "behind a restart ($mode) nobody replaces what was read");
	$u = begin('a', 'writer');
	$u->sql('UPDATE h SET v = 2 WHERE k = 1');
	fails($u, 'COMMIT', "$mode reads", 'nor in a heap table');
	$u = begin('a', 'writer');
	$u->sql('DELETE FROM s WHERE k = 105');
	fails($u, 'COMMIT', "$mode reads", 'nor of a range');
	$u = begin('a', 'stranger');
	$u->sql('SET LOCAL ROLE stranger');
	$u->sql('UPDATE s SET v = 2 WHERE k = 10');
	fails($u, 'COMMIT', undef, 'nor another role');
	$u = begin('a', 'writer', 'other');
	$u->sql('UPDATE s SET v = 2 WHERE k = 10');
	fails($u, "SELECT FROM mip.prepare('', '')", "$mode reads", 'nor is prepared');
	$u = begin('a', 'reader');
	$u->refused('SELECT v FROM s WHERE k = 20', '40001', 'nobody reads what is about to be replaced');
	$u->sql('ROLLBACK');
	$u = begin('a', 'elsewhere');
	$u->sql("INSERT INTO filler VALUES (length('$mode'))");
	$u->sql('COMMIT');
	pass('everything else goes on');

	decide('commit', "$mode reads", 'a');
	$u = begin('a', 'writer');
	$u->sql('UPDATE s SET v = 2 WHERE k = 10');
	$u->sql('COMMIT');
	pass('and all of it when that has been decided');
}

# ---- pages that have been split off what was read ----

$node->safe_psql('a', 'INSERT INTO gaps SELECT 2 * k FROM generate_series(1, 150) k');
my $range = begin('a', 'range', 'range');
$range->sql('SET LOCAL enable_bitmapscan = off');
is($range->sql('SELECT k FROM gaps WHERE k BETWEEN 201 AND 203'), '202', 'a range');
is(prepare($range), 'prepared', 'prepared');
$node->safe_psql('a', 'INSERT INTO gaps SELECT -k FROM generate_series(1, 3000) k');
my $locked = q[SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND relation = 'gaps_pkey'::regclass];
my $before = $node->safe_psql('a', $locked);
$node->stop('immediate');
$node->start;
cmp_ok($node->safe_psql('a', $locked), '<', $before, 'behind a crash PostgreSQL knows of fewer pages');
for my $xid ('of several', undef)
{
	my $u = begin('a', 'writer', $xid);
	$u->sql('INSERT INTO gaps VALUES (201)');
	fails($u, $xid ? "SELECT FROM mip.prepare('', '')" : 'COMMIT', 'range', 'and still nobody inserts there');
}
decide('rollback', 'range', 'a');
my $into = begin('a', 'writer');
$into->sql('INSERT INTO gaps VALUES (201)');
$into->sql('COMMIT');
pass('until it has been decided');

# ---- what DDL has moved ----

# the table is not locked any more when it has been read in a block that has failed
$node->safe_psql(
	'a', q[
	CREATE TABLE moved (k int, v int) USING mip WITH (fillfactor = 50);
	INSERT INTO moved SELECT k, 0 FROM generate_series(1, 100) k;
	CREATE INDEX by_k ON moved (k);
	CREATE FUNCTION look_up(how text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE how;
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
	END $$]);
my $absent = 'SELECT FROM moved WHERE k = 500';
my @moves = (
	['DROP INDEX by_k', $absent, 'INSERT INTO moved VALUES (500, 1)', 'CREATE INDEX by_k ON moved (k)'],
	['REINDEX INDEX CONCURRENTLY by_k', $absent, 'INSERT INTO moved VALUES (500, 1)', ''],
	['VACUUM FULL moved', "SELECT FROM moved WHERE ctid = '(0,50)'", 'UPDATE moved SET v = v + 1 WHERE k = 50', '']);
for my $move (@moves)
{
	my ($ddl, $read, $write, $undo) = @$move;
	my $r = begin('a', 'reader', $ddl);
	$r->sql("SELECT look_up(\$\$$read\$\$)");
	is(prepare($r), 'prepared', 'prepared');
	$node->safe_psql('a', 'DELETE FROM moved WHERE k < 5');
	$node->safe_psql('a', $ddl);
	$node->stop('immediate');
	$node->start;
	my $u = begin('a', 'writer');
	$u->sql($write);
	fails($u, 'COMMIT', $ddl, "$ddl, and a crash: nobody replaces what was read");
	$u = begin('a', 'reader');
	$u->sql('SELECT v FROM moved');
	$u->sql('COMMIT');
	pass('everybody may read');
	decide('rollback', $ddl, 'a');
	$u = begin('a', 'writer');
	$u->sql($write);
	$u->sql('COMMIT');
	$node->safe_psql('a', "$undo; DELETE FROM moved WHERE k = 500");
}

# ---- on a promoted standby ----

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
my $reads = begin('a', 'reader', 'promoted');
$reads->sql('SELECT v FROM s WHERE k = 10');
$reads->sql('SELECT v FROM h WHERE k = 1');
$reads->sql('UPDATE s SET v = 1 WHERE k = 20');
is(prepare($reads), 'prepared', 'prepared');
catch_up($node, $standby);
$standby->promote;
for my $to ('s SET v = 2 WHERE k = 10', 'h SET v = 2 WHERE k = 1')
{
	my ($status, $out, $error) = $standby->psql('a', "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL enable_seqscan = off; UPDATE $to; COMMIT");
	like($error, qr/"promoted", which is in doubt, has read/, "behind a promotion nobody replaces what was read: $to");
}
$standby->safe_psql('a', "SELECT FROM mip.commit('promoted', 1)");
$standby->safe_psql('a', 'BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE s SET v = 2 WHERE k = 10; COMMIT');
$standby->stop;
decide('rollback', 'promoted', 'a');

# ---- no room for what is read ----

$node->append_conf('postgresql.conf',
	"max_pred_locks_per_transaction = 10\nmax_pred_locks_per_relation = 1000000");
$node->restart;
$node->safe_psql('a', q[
	CREATE TABLE wide (k int PRIMARY KEY, filler text) WITH (fillfactor = 10);
	INSERT INTO wide SELECT k, repeat('x', 700) FROM generate_series(1, 10000) k]);

# PostgreSQL takes for noted what it had no room for: who goes on behind a savepoint fails
sub read_in_vain
{
	my ($statement) = @_;
	my $s = begin('a', 'reader');
	$s->sql('SELECT v FROM s WHERE k = 200');
	my $hog = begin('a', 'hog');
	$hog->sql('SAVEPOINT reads');
	$hog->refused('SELECT count(filler) FROM wide WHERE k > 0', '53200', 'somebody reads as much as there is room for');
	$hog->sql('ROLLBACK TO reads');
	$s->sql('SAVEPOINT here');
	if ($statement =~ /EXCEPTION/)
	{
		$s->sql($statement);
	}
	else
	{
		$s->refused($statement, '53200', "no room: $statement");
	}
	$s->sql('ROLLBACK TO here');
	$hog->sql('ROLLBACK');
	$s->sql($statement);
	$s->sql('ROLLBACK TO here');
	$s->sql('UPDATE s SET v = 1 WHERE k = 201');
	like($s->refused('COMMIT', '40001', "and it could not be noted: $statement"), qr/not all that has been read could be noted/, 'which is told');
	$_->quit for $s, $hog;
	return;
}

read_in_vain('INSERT INTO gaps VALUES (100000)');
for my $reach ('site', 'everywhere')
{
	set_everywhere(a => $reach);
	read_in_vain($_)
	  for 'SELECT v FROM h WHERE k = 1', 'COPY h TO STDOUT',
	  'DO $$ BEGIN PERFORM v FROM h WHERE k = 1; EXCEPTION WHEN out_of_memory THEN END $$',
	  q[DO $$ DECLARE x text; BEGIN x := mip.relation_checksum('h'); EXCEPTION WHEN out_of_memory THEN END $$];
}
my $short = begin('a', 'short');
$short->sql(q[DO $$ BEGIN RAISE out_of_memory; EXCEPTION WHEN out_of_memory THEN END $$]);
$short->sql('COMMIT');
pass('what was short for other things is no matter');
my $again = begin('a', 'again');
$again->sql('SELECT v FROM s WHERE k = 200');
$again->sql('UPDATE s SET v = 1 WHERE k = 201');
$again->sql('COMMIT');
pass('the next transaction starts anew');

# ---- what is not known any more ----

my $old = begin('a', 'old', 'old');
$old->sql('SELECT v FROM s WHERE k = 30');
$old->sql('UPDATE s SET v = 1 WHERE k = 31');
my $reader = begin('a', 'old reader');
$reader->sql('SELECT v FROM s WHERE k = 30');
my $other = begin('a', 'other', 'not in the way');
$other->sql('SELECT v FROM s WHERE k = 40');
$other->sql('UPDATE s SET v = 1 WHERE k = 41');
$node->safe_psql('a',
	join("\n", "SET default_transaction_isolation = serializable; SET enable_seqscan = off; ",
		map { $_ < 3 ? "UPDATE s SET v = $_ WHERE k = 30;" : "INSERT INTO filler VALUES ($_ + 10);" } 1 .. 1500));
like($old->refused("SELECT FROM mip.prepare('', '')", '40001', 'a conflict that has been summarized counts'),
	qr/of which no more is known/, 'of whomever it is');
$reader->refused('COMMIT', '40001', 'also for a reader');
is(prepare($other), 'prepared', 'but not for who has read something else');
my $new = begin('a', 'new', 'new');
$new->sql('SELECT v FROM s WHERE k = 30');
$new->sql('UPDATE s SET v = 2 WHERE k = 32');
is(prepare($new), 'prepared', 'nor for who has seen all of them, though they are noted');
decide('rollback', 'new', 'a');
decide('rollback', 'not in the way', 'a');

done_testing();
