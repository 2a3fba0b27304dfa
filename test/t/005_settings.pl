# A server without shared_preload_libraries, or without prepared transactions,
# says what is missing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('settings');
fill($node);

sub set
{
	my ($name, $value) = @_;
	$node->append_conf('postgresql.conf', "$name = $value");
	$node->restart;
	return;
}

sub fails
{
	my ($sql, $error, $hint, $name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql);
	isnt($rc, 0, "$name: fails");
	like($err, $error, "$name: error");
	like($err, $hint, "$name: hint");
	return;
}

my @calls = (
	"BEGIN; SELECT mip.begin('x', 1)",
	"BEGIN; SELECT * FROM mip.prepare('', '')",
	"BEGIN; SELECT * FROM mip.commit_one_phase('', '')",
	"SELECT * FROM mip.commit('x', 1)",
	"SELECT * FROM mip.rollback('x', 1)",
	"SELECT * FROM mip.instances('x')",
	"SELECT * FROM mip.in_doubt",
	"SELECT mip.forget('x')",
	"SELECT mip.enable('a')",
	"SELECT mip.disable('a')");

# ---- not preloaded ----

# beside instance 1, which leaves the key alone, a foreign key's check mends what
# the DELETE of instance 2 has left in the header
mip_sql($node,
	'CREATE TABLE child (a int REFERENCES a) USING mip');
my @siblings = map { session($node, "instance $_") } 1, 2;
my @changes =
  ("UPDATE a SET note = 'new' WHERE id = 1", 'DELETE FROM a WHERE id = 1');
for my $k (1, 2)
{
	$siblings[ $k - 1 ]->sql('BEGIN');
	$siblings[ $k - 1 ]->sql("SELECT mip.begin('mend', $k)");
	$siblings[ $k - 1 ]->sql($changes[ $k - 1 ]);
}
for my $s (@siblings)
{
	$s->sql("SELECT * FROM mip.prepare('', '')");
	$s->quit;
}
mip_sql($node, "SELECT * FROM mip.rollback('mend', 2)");

set('shared_preload_libraries', "''");
for my $sql (@calls)
{
	fails($sql,
		qr/pg_mip must be loaded when the server starts/,
		qr/Add pg_mip to shared_preload_libraries and restart/,
		"not preloaded: $sql");
}
is(mip_sql($node, 'SELECT count(*) FROM a'),
	'3', 'not preloaded: tables can be read');
fails(
	'INSERT INTO child VALUES (1)',
	qr/pg_mip must be loaded when the server starts/,
	qr/Add pg_mip to shared_preload_libraries and restart/,
	'not preloaded: a header that only our WAL can mend');
mip_sql($node, 'CREATE DATABASE other');
my ($rc, $out, $err) = $node->psql('other', 'CREATE EXTENSION pg_mip');
ok($rc == 0 || $err =~ /shared_preload_libraries/,
	'not preloaded: CREATE EXTENSION succeeds or says why not');

# ---- no prepared transactions ----

set('shared_preload_libraries', "'pg_mip'");
mip_sql($node, 'INSERT INTO child VALUES (1)');
mip_sql($node, "SELECT * FROM mip.commit('mend', 1)");
is(mip_sql($node, 'SELECT note FROM a JOIN child ON a = id'),
	'new', 'preloaded again: it is mended');
mip_sql($node, 'DROP TABLE child');
fill($node);
set('max_prepared_transactions', 0);
fails("BEGIN; SELECT mip.begin('x', 1)",
	qr/pg_mip needs prepared transactions, which are disabled/,
	qr/Set max_prepared_transactions to a nonzero value and restart/,
	'max_prepared_transactions = 0');
is(mip_sql($node, "SELECT * FROM mip.instances('x')"),
	'', 'max_prepared_transactions = 0: the MIPT can be read');

# ---- too few of them: a refused prepare leaves nothing behind ----

set('max_prepared_transactions', 1);
begin_prepared($node, 'x', 1);
my $s = session($node, 'instance 2');
attempt($s, 'x', 2);
my $message =
  $s->refused("SELECT * FROM mip.prepare('', '')", '\w+',
	'one prepared transaction too many');
like($message, qr/max_prepared_transactions/, 'and a hint');
is(states($node, 'x'), '1 prepared', 'the refused one is gone');
attempt($s, 'x', 3);
mip_sql($node, "SELECT * FROM mip.rollback('x', 1)");
$s->sql("SELECT * FROM mip.prepare('', '')");
mip_sql($node, "SELECT * FROM mip.commit('x', 3)");
$s->quit;
is_decided($node, 'few prepared transactions');
is_rows($node, 3, 'few prepared transactions');
is_sound($node, 'few prepared transactions');

$node->stop;
done_testing();
