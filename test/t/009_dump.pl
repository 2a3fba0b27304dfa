# pg_dump and pg_restore of a database with mip tables, while siblings are
# prepared, into another cluster: schema and committed data come back, with the
# access method; so does the MIPT, so that no request runs a second time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = mip_node('dump');
my $target = mip_node('restore');
my $dir = $node->basedir;
my $partitioned_am = $node->pg_version >= 17;

# Same roles, with other OIDs
$node->safe_psql('postgres', 'CREATE ROLE app; CREATE ROLE other');
$target->safe_psql('postgres', 'CREATE ROLE x; CREATE ROLE other; CREATE ROLE app');

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
	CREATE MATERIALIZED VIEW seen_too USING mip AS SELECT id FROM a;
	CREATE INDEX child_a ON child (a);
	GRANT ALL ON a TO app]);
mip_sql($node, 'CREATE TABLE split (id int) PARTITION BY RANGE (id) USING mip')
  if $partitioned_am;

# A request that has committed, one whose first attempt was rolled back, and
# one whose MIPT row still has links, which mean nothing in another database.
mip_sql(
	$node, q[
	SET ROLE app;
	BEGIN; SELECT mip.begin('done', 5, '{x,y}');
	SELECT FROM mip.prepare('request', E'tab\t"1"');
	SELECT FROM mip.commit('done', 5);
	BEGIN; SELECT mip.begin('tried', 1);
	SELECT FROM mip.prepare('request', NULL);
	SELECT FROM mip.rollback('tried', 1);
	RESET ROLE;
	ALTER TABLE mip.mipt DISABLE TRIGGER keep_links;
	INSERT INTO mip.mipt VALUES ('linked', 1, '', '', '{}', 'other', now(), false,
		'\x0102');
	ALTER TABLE mip.mipt ENABLE ALWAYS TRIGGER keep_links]);
begin_prepared($node, 'dumped', 2);

my $tables = q[SELECT c.relname, m.amname FROM pg_class c
	JOIN pg_am m ON m.oid = c.relam
	WHERE m.amtype = 't' AND c.relnamespace = 'public'::regnamespace
	ORDER BY 1];
my $expected = join("\n",
	qw(a|mip b|mip child|mip parts_1|mip parts_2|mip plain|heap seen|heap
	  seen_too|mip), $partitioned_am ? 'split|mip' : ());
is(mip_sql($node, $tables), $expected, 'access methods before');
my $mipt = q[SELECT xid, xinst, request, result, sites, owner, aborted,
	links IS NOT NULL FROM mip.mipt ORDER BY xid];
my @rows = split /\n/, mip_sql($node, $mipt);
is(scalar @rows, 3, 'what the MIPT shows to a snapshot');
s/t$/f/ for grep { /^linked/ } @rows;

sub restore
{
	my ($name, $file, @options) = @_;

	mip_sql($target, "CREATE DATABASE \"$name\"");
	$target->command_ok(
		$file =~ /plain$/
		? [ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-d',
			$target->connstr($name) ]
		: [ 'pg_restore', '-e', @options, '-d', $target->connstr($name), $file ],
		"$name: restore");
	return;
}

for my $format ('plain', 'custom', 'directory')
{
	my $file = "$dir/dump.$format";
	$node->command_ok(
		[
			'pg_dump', '-F', $format,
			($format eq 'directory' ? ('-j', 2) : ()),
			'-f', $file, $node->connstr('postgres')
		],
		"$format: pg_dump");
	restore($format, $file, $format eq 'plain' ? () : ('-j', 2));

	is($target->safe_psql($format, $tables),
		$expected, "$format: access methods");
	is($target->safe_psql($format, 'SELECT id, v, note FROM a ORDER BY id'),
		(after(0))[0], "$format: committed rows");
	is($target->safe_psql($format, 'SELECT count(*), sum(length(doc)) FROM b'),
		'3|60000', "$format: out-of-line values");
	is($target->safe_psql($format, 'SELECT string_agg(v, $$ $$ ORDER BY id) FROM parts'),
		'p0 p50 p100 p150', "$format: partitions");

	# the MIPT: whoever owned a request does so again, and it has been dealt with
	is($target->safe_psql($format, $mipt), join("\n", @rows), "$format: MIPT");
	is($target->safe_psql($format, 'SELECT * FROM mip.in_doubt'),
		'', "$format: what was prepared is not there");
	my ($rc, $out, $err) = $target->psql($format,
		q[\set VERBOSITY verbose
		SET ROLE app; BEGIN; SELECT mip.begin('done', 6, '{x,y}')]);
	like($err, qr/ERROR:  MP001:.*DETAIL:  \{"xinst": 5, "result": "tab\\t\\"1\\""\}/s,
		"$format: a committed request does not run again");
	unlike(slurp_file($target->logfile), qr/"result": "tab/,
		"$format: its result is not in the log");
	is($target->safe_psql($format, q[SELECT owner, state FROM mip.commit('linked', 1)]),
		'other|committed', "$format: links of another database are not followed");
	($rc, $out, $err) = $target->psql($format,
		q[SET ROLE other; SELECT * FROM mip.instances('done')]);
	like($err, qr/belongs to another role/, "$format: and stays its owner's");

	# the restored tables work
	($rc, $out, $err) = $target->psql(
		$format,
		q[BEGIN; SELECT mip.begin('dumped', 1);
		UPDATE a SET v = 7 WHERE id = 1;
		INSERT INTO parts VALUES (1, 'new');
		SELECT xinst, state FROM mip.commit_one_phase('', '')]);
	is($err, '', "$format: an instance runs");
	like($out, qr/^1\|committed$/m, "$format: and commits");
	is($target->safe_psql($format, 'SELECT v FROM a WHERE id = 1'),
		'7', "$format: its changes");
	($rc, $out, $err) = $target->psql($format, 'DELETE FROM a WHERE id = 2');
	like($err, qr/violates foreign key constraint/,
		"$format: foreign keys hold");
	($rc, $out, $err) = $target->psql(
		$format,
		q[BEGIN; SELECT mip.begin('other', 3); INSERT INTO plain VALUES (1)]);
	like($err, qr/cannot write to table "plain" in a MIP transaction/,
		"$format: a table that had not opted in has not");
}

# Whoever dumps has to be able to read the MIPT.
mip_sql(
	$node, q[
	CREATE ROLE dumper LOGIN;
	GRANT pg_read_all_data TO dumper;
	CREATE ROLE half_blind LOGIN;
	GRANT SELECT ON ALL TABLES IN SCHEMA public TO half_blind]);
my @as = ('pg_dump', '-f', "$dir/dump.sql", '-d', $node->connstr('postgres'), '-U');
$node->command_ok([ @as, 'dumper' ], 'a dump with pg_read_all_data');
$node->command_fails_like([ @as, 'half_blind' ],
	qr/permission denied for table mipt/, 'a dump without');

# Into a database in which requests run, as a tool for data alone does it: in one transaction or not, without triggers
for my $how ('', '-1')
{
	mip_sql($target, "CREATE DATABASE beside");
	$target->safe_psql('beside', 'CREATE EXTENSION pg_mip');
	my $running = $target->background_psql('beside', on_error_stop => 0);
	$running->query_safe(q[SET ROLE app; BEGIN; SELECT mip.begin('done', 6, '{x,y}')]);
	$target->command_ok(
		[ 'pg_restore', '-e', '--data-only', '--disable-triggers', (grep { $_ } $how), '-n', 'mip',
			'-d', $target->connstr('beside'), "$dir/dump.custom" ],
		"beside a request: pg_restore --disable-triggers $how");
	$running->query(q[SELECT FROM mip.prepare('', '')]);
	$running->quit;
	is($target->safe_psql('beside', q[SELECT xinst, state FROM mip.instances('done')]),
		'5|committed', '... and it is not run again');
	is($target->safe_psql('beside', q[SELECT count(*), count(links) FROM mip.mipt]), '3|0', '... with links of nobody else');
	is($target->safe_psql('beside', q[SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'mip.mipt'::regclass ORDER BY 1]),
		"ignore_replicated|R\nkeep_links|A", '... nor of who comes later');
	mip_sql($target, 'DROP DATABASE beside');
}

# Without the access method: heap tables, which can opt in later
restore('as heap', "$dir/dump.custom", '--no-table-access-method');
is($target->safe_psql('as heap', $tables) =~ s/mip/heap/gr,
	$target->safe_psql('as heap', $tables), 'as heap: access methods');
$target->safe_psql('as heap', "SELECT mip.enable('a')");
is($target->safe_psql('as heap', 'SELECT id, v, note FROM a ORDER BY id'),
	(after(0))[0], 'as heap: committed rows');

# The extension's own objects cannot be dropped under the tables.
my ($rc, $out, $err) = $target->psql('plain', 'DROP EXTENSION pg_mip');
like($err, qr/other objects depend on it/, 'tables depend on the extension');
$target->safe_psql('plain',
	"DROP MATERIALIZED VIEW seen_too;"
	  . " SELECT mip.disable(oid) FROM pg_class WHERE relam ="
	  . " (SELECT oid FROM pg_am WHERE amname = 'mip') AND relkind IN ('r', 'p')");
$target->safe_psql('plain', 'DROP EXTENSION pg_mip');
is($target->safe_psql('plain', 'SELECT v FROM a WHERE id = 1'),
	'7', 'tables turned back into heap outlive the extension');
$target->stop;

mip_sql($node, "SELECT * FROM mip.commit('dumped', 2)");
is_decided($node, 'dumped');
is_rows($node, 2, 'dumped');

$node->stop;
done_testing();
