# A SERIALIZABLE transaction that fails because of an instance in doubt, and will
# fail again, is told of whom; and that family is pushed at once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

# nothing is pushed for its age
my $node = mip_node('pivots', 'mip.push_after' => '1h');
mip_sql(
	$node, q[
	CREATE TABLE s (k int PRIMARY KEY, v int) USING mip WITH (fillfactor = 50);
	INSERT INTO s SELECT k, 0 FROM generate_series(1, 1000) k;
	ANALYZE s;
	CREATE ROLE other;
	GRANT ALL ON s TO other;]);

sub begin
{
	my ($name, $xid) = @_;
	my $s = session($node, $name);
	$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
	$s->sql($xid ? "SELECT mip.begin('$xid', 1)" : 'SELECT');
	return $s;
}

# Prepares the instance of a family that has read one row and written another one.
sub in_doubt
{
	my ($xid, $read, $write) = @_;
	my $s = begin("instance of $xid", $xid);
	$s->sql("SELECT v FROM s WHERE k = $read") if $read;
	$s->sql("UPDATE s SET v = 1 WHERE k = $write");
	$s->sql("SELECT FROM mip.prepare('', '')");
	$s->quit;
	return;
}

sub write_and_commit
{
	my ($k) = @_;
	mip_sql($node, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE s SET v = 2 WHERE k = $k; COMMIT");
	return;
}

sub pushes { return mip_sql($node, 'SELECT sum(pushes) FROM mip.stats'); }

# The statement fails, and names this family, or that there is one; and somebody is told.
sub is_told
{
	my ($s, $sql, $xid, $name) = @_;
	my $whose = $xid ? "Instance 1 of family \"$xid\"" : 'An instance of a request of another role';
	my $pushes = pushes();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $error = $s->refused($sql, '40001', "$name fails");
	like($error,
		qr/^DETAIL:  Reason code: [^\n]+\n$whose is in doubt.+^HINT:  Retry [^\n]+ pause.+^SCHEMA NAME:  mip\n.*^TABLE NAME:  in_doubt/ms,
		"$name is told why");
	ok(wait_until(sub { pushes() > $pushes }), "$name: pushed at once");
	return $error;
}

# ---- a writer that is prepared, and has read what was overwritten ----

in_doubt('read', 2, 1);
write_and_commit(2);
my $read = 'SELECT v FROM s WHERE k = 1';
my $u = begin('u');
for my $try (1 .. 2)
{
	is_told($u, $read, 'read', "an outsider that reads what a pivot in doubt has written, try $try");
	$u->sql('ROLLBACK');
	$u->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
}

# once, whoever has called it
mip_sql(
	$node, q[
	CREATE FUNCTION look() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT v FROM s WHERE k = 1); END';
	CREATE FUNCTION call() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT look()); END';]);
my $once = is_told($u, 'SELECT call()', 'read', 'who reads in a function');
is(scalar(() = $once =~ /Instance 1 of/g), 1, 'once');
$u->sql('ROLLBACK');
$u->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');

# another role is not told whose it is
$u->sql('SET LOCAL ROLE other');
my $error = is_told($u, $read, undef, 'one of another role');
unlike($error, qr/family/, 'but not whose it is');
$u->sql('ROLLBACK');

# an instance of another family, and in a block that catches it
$u = begin('another instance', 'another');
is_told($u, $read, 'read', 'an instance of another family');
$u->sql('ROLLBACK');
is( mip_sql(
		$node, q[
	SET default_transaction_isolation = serializable;
	DO $$
	DECLARE
		t text;
	BEGIN
		PERFORM v FROM s WHERE k = 1;
	EXCEPTION WHEN serialization_failure THEN
		GET STACKED DIAGNOSTICS t = TABLE_NAME;
		PERFORM set_config('my.table', t, false);
	END $$;
	SELECT current_setting('my.table')]),
	'in_doubt',
	'an exception handler knows, too');

# at other levels nobody fails
$u = session($node, 'snapshot');
$u->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($u->sql($read), '0', 'REPEATABLE READ does not fail');
$u->sql('ROLLBACK');

mip_sql($node, "SELECT FROM mip.commit('read', 1)");
$u = begin('afterwards');
is($u->sql($read), '1', 'nor does anybody once the family is decided');
$u->sql('COMMIT');

# ---- a writer that is a pivot before what is prepared ----

in_doubt('write', undef, 1);
my $reader = begin('reader');
$reader->sql('SELECT v FROM s WHERE k = 2');
$reader->sql('COMMIT');
$reader->quit;
for my $try (1 .. 2)
{
	$u = begin("writer $try");
	$u->sql($read);
	is_told($u, 'UPDATE s SET v = 3 WHERE k = 2', 'write',
		"an outsider that has read, and writes, beside what is in doubt, try $try");
	$u->quit;
}

# COPY is no query
$u = begin('copy');
$u->sql($read);
mip_sql($node, 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(v) FROM s; COMMIT');
is_told($u, q[COPY s FROM PROGRAM 'echo 2000,0' (FORMAT csv)], 'write', 'one that copies');
$u->sql('ROLLBACK');

# who is no instance is PostgreSQL's own
mip_sql($node, "SELECT FROM mip.rollback('write', 1)");
mip_sql($node, "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE s SET v = 1 WHERE k = 1; PREPARE TRANSACTION 'plain'");
$reader = begin('reader of 2');
$reader->sql('SELECT v FROM s WHERE k = 2');
$reader->sql('COMMIT');
$reader->quit;
$u = begin('beside a plain one');
$u->sql($read);
unlike(
	$u->refused('UPDATE s SET v = 3 WHERE k = 2', '40001', 'beside a prepared transaction that is no instance, too'),
	qr/doubt/,
	'but nothing is in doubt');
$u->sql('ROLLBACK');
mip_sql($node, "ROLLBACK PREPARED 'plain'");

# ---- a pivot that only the end meets ----

my %ends = (
	'COMMIT' => undef,
	"PREPARE TRANSACTION 'end'" => undef,
	"SELECT FROM mip.prepare('', '')" => 'prepares',
	"SELECT FROM mip.commit_one_phase('', '')" => 'commits');
my $n = 0;
for my $end (sort keys %ends)
{
	my $xid = 'end ' . ++$n;
	in_doubt($xid, 2, 3);
	$reader = begin('reader of 3');
	$reader->sql('SELECT v FROM s WHERE k = 3');
	$u = begin('end', $ends{$end});
	$u->sql('UPDATE s SET v = 4 WHERE k = 2');
	is_told($u, $end, $xid, $end);
	$_->quit for $reader, $u;
	mip_sql($node, "SELECT FROM mip.rollback('$xid', 1)");
}

# ---- one of which a crash has left nothing but that it may be a pivot ----

in_doubt('crash', undef, 1);
$node->stop('immediate');
$node->start;
is(mip_sql($node, 'SELECT count(*) FROM mip.in_doubt'), '1', 'a crash leaves it in doubt');
for my $try (1 .. 2)
{
	$u = begin("after the crash $try");
	is_told($u, $read, 'crash', "an outsider behind a crash, try $try");
	$u->quit;
}
mip_sql($node, "SELECT FROM mip.rollback('crash', 1)");

done_testing();
