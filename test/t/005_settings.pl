# A server without shared_preload_libraries, or without prepared transactions,
# says what is missing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
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
my ($rc, $out, $err) = $node->psql('other',
	'CREATE EXTENSION pg_mip; DROP EXTENSION pg_mip; CREATE EXTENSION pg_mip');
is($rc, 0, 'not preloaded: CREATE EXTENSION succeeds');
my $warning =
  qr/WARNING:  pg_mip must be loaded.*?HINT:  Add pg_mip to shared_preload_libraries/s;
like($err, qr/$warning.*$warning/s, 'not preloaded: but it warns');
# so that a dump can be restored first, the server be set up afterwards
mip_sql($node, 'CREATE DATABASE restored');
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ],
	'not preloaded: a dump');
$node->command_checks_all(
	[
		'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d',
		$node->connstr('restored')
	],
	0, [], [$warning],
	'not preloaded: it can be restored, with the warning');

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

# ---- a minor release whose bitmap scans trust the visibility map ----

SKIP:
{
	my $oldest = { 15 => 13, 17 => 5 }->{ $node->pg_version->major };
	skip 'there is none of this major', 2 unless $oldest;
	my $module = module($node, 'older', <<'C');
#include "utils/guc.h"
#include "utils/guc_tables.h"

void		_PG_init(void);

/* The first release of this major, as far as the settings say. */
void
_PG_init(void)
{
	struct config_generic *version = NULL;

#if PG_VERSION_NUM >= 160000
	version = find_option("server_version_num", false, false, ERROR);
#else
	for (int i = 0; i < GetNumConfigOptions(); i++)
	{
		if (strcmp(get_guc_variables()[i]->name, "server_version_num") == 0)
			version = get_guc_variables()[i];
	}
#endif
	*((struct config_int *) version)->variable = PG_VERSION_NUM / 10000 * 10000;
}
C
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = '$module, pg_mip'");
	ok(!$node->start(fail_ok => 1), 'an old minor release: refused');
	my $major = $node->pg_version->major;
	like(
		slurp_file($node->logfile),
		qr/pg_mip needs PostgreSQL $major\.$oldest or later, not $major\.0/,
		'an old minor release: the reason');
}

done_testing();
