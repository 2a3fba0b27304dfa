# pg_upgrade of a cluster with mip tables: refused while instances are in
# doubt; afterwards tables, indexes and the MIPT are as before. From this
# major, or from the one whose installation the variable oldinstall names.

use strict;
use warnings FATAL => 'all';

use Cwd qw(getcwd);
use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $path = $ENV{oldinstall};
my $old = mip_node('old', $path ? (install_path => $path) : ());
my $new = PostgreSQL::Test::Cluster->new('new');
$new->init(extra => [
		$new->pg_version >= 18 && $old->pg_version < 18 ? '--no-data-checksums' : ()
	]);
$new->append_conf('postgresql.conf',
	"shared_preload_libraries = 'pg_mip'\nmax_prepared_transactions = 20");

fill($old);
mip_sql(
	$old, q[
	CREATE ROLE app;
	CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100) USING mip;
	CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (200);
	INSERT INTO parts SELECT i, 'p' || i FROM generate_series(0, 199, 50) i;
	CREATE TABLE enabled (id int PRIMARY KEY, v int);
	INSERT INTO enabled SELECT i, 0 FROM generate_series(1, 100) i;
	SELECT mip.enable('enabled');
	GRANT ALL ON enabled TO app;
	CREATE MATERIALIZED VIEW seen USING mip AS SELECT id FROM enabled]);

# dead versions, multixacts and handed over headers; a row of the MIPT whose
# links have not been dealt with
begin_prepared($old, 'done', 2, 1);
mip_sql($old, "SELECT * FROM mip.commit('done', 1)");
mip_sql(
	$old, q[
	SET ROLE app;
	BEGIN; SELECT mip.begin('mine', 1); UPDATE enabled SET v = 1;
	SELECT FROM mip.prepare('request', 'result'); SELECT FROM mip.commit('mine', 1);
	RESET ROLE;
	ALTER TABLE mip.mipt DISABLE TRIGGER keep_links;
	UPDATE mip.mipt SET links = '\x00' WHERE xid = 'mine';
	ALTER TABLE mip.mipt ENABLE ALWAYS TRIGGER keep_links]);
mip_sql(
	$old, q[
	BEGIN; SELECT mip.begin('doubt', 1); UPDATE enabled SET v = 2;
	SELECT FROM mip.prepare('', '')]);

my @upgrade = (
	'pg_upgrade', '--no-sync',
	'-d' => $old->data_dir, '-D' => $new->data_dir,
	'-b' => $old->config_data('--bindir'), '-B' => $new->config_data('--bindir'),
	'-s' => $new->host, '-p' => $old->port, '-P' => $new->port);
my $cwd = getcwd();
chdir $new->basedir or die "chdir: $!";

$old->stop;
command_checks_all([ @upgrade, '--check' ],
	1, [qr/prepared transactions/], [],
	'no upgrade while instances are in doubt');
$old->start;
mip_sql($old, "SELECT * FROM mip.rollback('doubt', 1)");

my $state = q[
	SELECT c.oid::regclass, relfilenode, relkind, amname FROM pg_class c
		JOIN pg_am m ON m.oid = c.relam AND m.amtype = 't' WHERE c.oid >= 16384 ORDER BY c.oid;
	SELECT * FROM a ORDER BY id;
	SELECT id, v, md5(doc) FROM b ORDER BY id;
	SELECT * FROM parts ORDER BY id;
	SELECT count(*), sum(v) FROM enabled;
	SELECT count(*) FROM seen;
	SELECT * FROM mip.mipt ORDER BY xid, xinst;
	SELECT objid::regclass FROM pg_depend WHERE classid = 'pg_class'::regclass
		AND refclassid = 'pg_am'::regclass ORDER BY objid;
	SELECT tgenabled FROM pg_trigger WHERE tgname = 'keep_links'];
$state =~ s/relfilenode, // if $old->pg_version < 16;
my $before = mip_sql($old, $state);
like($before, qr/mine\|1\|request\|result\|\{\}\|app\|/, 'the MIPT before');
$old->stop;

command_ok(\@upgrade, 'pg_upgrade');
$new->start;
is(mip_sql($new, $state), $before, 'everything is as before');
is_rows($new, 1, 'upgraded');
is_sound($new, 'upgraded');

# requests are remembered, and new ones work, siblings among them
my ($rc, $out, $err) = $new->psql('postgres',
	q[\set VERBOSITY verbose
	SET ROLE app; BEGIN; SELECT mip.begin('mine', 2)]);
like($err, qr/MP001/, 'what had committed does not run again');
is(mip_sql($new, "SET ROLE app; SELECT result FROM mip.commit('mine', 1)"),
	'result', 'its result');
mip_sql($new, 'DROP TABLE a, b');
fill($new);
begin_prepared($new, 'new', 2, 1, 3);
mip_sql($new, "SELECT * FROM mip.commit('new', 2)");
is_decided($new, 'a new request');
is_rows($new, 2, 'a new request');
is_sound($new, 'a new request');

$new->stop;
chdir $cwd or die "chdir: $!";
done_testing();
