# pg_dump and pg_restore of a database with mip tables, while siblings are
# prepared: schema and committed data come back, with the access method.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('dump');
my $dir = $node->basedir;

fill($node);
mip_sql(
	$node, q[
	CREATE TABLE plain (id int PRIMARY KEY);
	CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
	CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (200);
	INSERT INTO parts SELECT i, 'p' || i FROM generate_series(0, 199, 50) i;
	SELECT mip.enable('parts');
	CREATE TABLE child (a int REFERENCES a, CHECK (a > 0)) USING mip;
	INSERT INTO child VALUES (1), (2);
	CREATE MATERIALIZED VIEW seen AS SELECT count(*) FROM a;
	CREATE INDEX child_a ON child (a)]);
begin_prepared($node, 'dumped', 2);

my $tables = q[SELECT c.relname, m.amname FROM pg_class c
	JOIN pg_am m ON m.oid = c.relam
	WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
	ORDER BY 1];
my $expected =
  "a|mip\nb|mip\nchild|mip\nparts_1|mip\nparts_2|mip\nplain|heap";
is(mip_sql($node, $tables), $expected, 'access methods before');

for my $format ('plain', 'custom')
{
	my $file = "$dir/dump.$format";
	$node->command_ok(
		[ 'pg_dump', '-F', $format, '-f', $file, $node->connstr('postgres') ],
		"$format: pg_dump");
	mip_sql($node, "CREATE DATABASE $format");
	my @restore =
	  $format eq 'plain'
	  ? ('psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-d',
		$node->connstr($format))
	  : ('pg_restore', '-e', '-j', '2', '-d', $node->connstr($format), $file);
	$node->command_ok(\@restore, "$format: restore");

	is($node->safe_psql($format, $tables),
		$expected, "$format: access methods");
	is($node->safe_psql($format, 'SELECT id, v, note FROM a ORDER BY id'),
		(after(0))[0], "$format: committed rows");
	is($node->safe_psql($format, 'SELECT count(*), sum(length(doc)) FROM b'),
		'3|60000', "$format: out-of-line values");
	is($node->safe_psql($format, 'SELECT string_agg(v, $$ $$ ORDER BY id) FROM parts'),
		'p0 p50 p100 p150', "$format: partitions");
	is($node->safe_psql($format, 'SELECT * FROM mip.in_doubt'),
		'', "$format: another database's instances are not in doubt here");

	# the restored tables work
	my ($rc, $out, $err) = $node->psql(
		$format,
		q[BEGIN; SELECT mip.begin('dumped', 1);
		UPDATE a SET v = 7 WHERE id = 1;
		INSERT INTO parts VALUES (1, 'new');
		SELECT xinst, state FROM mip.commit_one_phase('', '')]);
	is($err, '', "$format: an instance runs");
	like($out, qr/^1\|committed$/m, "$format: and commits");
	is($node->safe_psql($format, 'SELECT v FROM a WHERE id = 1'),
		'7', "$format: its changes");
	($rc, $out, $err) = $node->psql($format, 'DELETE FROM a WHERE id = 2');
	like($err, qr/violates foreign key constraint/,
		"$format: foreign keys hold");
	($rc, $out, $err) = $node->psql(
		$format,
		q[BEGIN; SELECT mip.begin('other', 3); INSERT INTO plain VALUES (1)]);
	like($err, qr/cannot write to table "plain" in a MIP transaction/,
		"$format: a table that had not opted in has not");
}

# The extension's own objects cannot be dropped under the tables.
my ($rc, $out, $err) = $node->psql('plain', 'DROP EXTENSION pg_mip');
like($err, qr/other objects depend on it/, 'tables depend on the extension');
$node->safe_psql('plain',
	"SELECT mip.disable(oid) FROM pg_class WHERE relam ="
	  . " (SELECT oid FROM pg_am WHERE amname = 'mip') AND relkind = 'r'");
$node->safe_psql('plain', 'DROP EXTENSION pg_mip');
is($node->safe_psql('plain', 'SELECT v FROM a WHERE id = 1'),
	'7', 'tables turned back into heap outlive the extension');

mip_sql($node, "SELECT * FROM mip.commit('dumped', 2)");
is_decided($node, 'dumped');
is_rows($node, 2, 'dumped');

$node->stop;
done_testing();
