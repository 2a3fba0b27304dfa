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
mip_sql($node, 'CREATE DATABASE other');
my ($rc, $out, $err) = $node->psql('other', 'CREATE EXTENSION pg_mip');
ok($rc == 0 || $err =~ /shared_preload_libraries/,
	'not preloaded: CREATE EXTENSION succeeds or says why not');

# ---- no prepared transactions ----

set('shared_preload_libraries', "'pg_mip'");
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
