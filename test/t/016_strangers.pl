# Prepared transactions with names like those of instances, made while the
# library was not loaded, are nobody's instances; without it, nothing is
# written that only the library can replay.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('strangers');

sub preload
{
	my ($library) = @_;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$library'");
	$node->restart;
	return;
}

mip_sql(
	$node, q[
	CREATE ROLE stranger;
	CREATE DATABASE elsewhere;
	CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
	CREATE TABLE child (t int REFERENCES t) USING mip;
	INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i;
	GRANT ALL ON t TO stranger]);
my ($here, $there) = map {
	mip_sql($node, "SELECT oid FROM pg_database WHERE datname = '$_'")
} ('postgres', 'elsewhere');

# Two siblings on one row: an update that leaves the key alone, and a delete
my ($t1, $t2) = map { session($node, "instance $_") } (1, 2);
$t1->sql("BEGIN");
$t1->sql("SELECT mip.begin('real', 1)");
$t1->sql('UPDATE t SET v = 1 WHERE id = 20');
$t2->sql("BEGIN");
$t2->sql("SELECT mip.begin('real', 2)");
$t2->sql('DELETE FROM t WHERE id = 20');
$t1->sql("SELECT * FROM mip.prepare('', '')");
$t2->sql("SELECT * FROM mip.prepare('', '')");
$_->quit for ($t1, $t2);

# An instance whose role is gone
mip_sql(
	$node, q[
	CREATE ROLE gone;
	SET ROLE gone;
	BEGIN; SELECT mip.begin('orphan', 1); SELECT FROM mip.prepare('', 'r');
	RESET ROLE;
	DROP ROLE gone]);

# ---- without the library ----

preload('');

my @names = (
	'mip:', 'mip:garbage', 'mip:::', "mip:$here:1:", "mip:$here:x:stray",
	"mip:0$here:1:stray", "mip: $here:1:stray", "mip:$here:+1:stray",
	"mip:$here:0:stray", "mip:$here:-1:stray",
	"mip:$here:99999999999999999999:stray", 'mip:99999999999:1:stray',
	"mip:$there:1:stray", "mip:0:1:stray", "mip:$here:1:stray",
	"mip:$here:1:" . ('x' x 129));
for my $i (0 .. $#names)
{
	mip_sql($node, "SET ROLE stranger; BEGIN; UPDATE t SET v = -1 WHERE id = $i + 1;"
		  . " PREPARE TRANSACTION '$names[$i]'");
}

# It takes the library to finish what is there. Without it, the loser can be
# dropped, but its traces cannot be removed.
mip_sql($node, "ROLLBACK PREPARED 'mip:$here:2:real'");
my ($rc, $out, $err) = $node->psql('postgres', 'INSERT INTO child VALUES (20)');
like($err, qr/pg_mip must be loaded when the server starts/,
	'no WAL that nobody can replay');

# ---- with the library ----

preload('pg_mip');

# whatever stands in front in the search path
mip_sql(
	$node, q[
	CREATE SCHEMA evil;
	CREATE FUNCTION evil.starts_with(text, text) RETURNS boolean LANGUAGE plpgsql AS
		$$ BEGIN RAISE 'evil'; END $$;
	CREATE FUNCTION evil.eq(name, name) RETURNS boolean LANGUAGE plpgsql AS
		$$ BEGIN RAISE 'evil'; END $$;
	CREATE OPERATOR evil.= (LEFTARG = name, RIGHTARG = name, FUNCTION = evil.eq);
	CREATE TABLE evil.pg_prepared_xacts AS SELECT 1 AS x;
	CREATE TABLE evil.pg_roles AS SELECT 1 AS x;
	CREATE TABLE evil.mipt AS SELECT 1 AS x]);
is( mip_sql(
		$node,
		"SET search_path = evil, pg_catalog; SELECT xid, xinst FROM mip.in_doubt ORDER BY 1"),
	"orphan|1\nreal|1", 'only the instances are in doubt');
is(mip_sql($node, 'SET ROLE stranger; SELECT count(*) FROM mip.in_doubt'),
	'0', 'nor are they for strangers, if the role is gone');
is(mip_sql($node, "SELECT owner, state, result FROM mip.commit('orphan', 1)"),
	'unknown|committed|r', 'a superuser finishes what no role owns');
is(mip_sql($node, 'INSERT INTO child VALUES (20) RETURNING t'),
	'20', 'the traces of the dropped loser are no obstacle any more');

my $s = session($node, 'instance 3');
$s->refused("PREPARE TRANSACTION 'mip:garbage'", 'MP006', 'no more such names');
$s->refused("ROLLBACK PREPARED 'mip:$here:1:real'",
	'MP006', 'no rollback of an instance by hand');
$s->refused("COMMIT PREPARED 'mip:$here:1:real'",
	'MP006', 'no commit of an instance by hand');
$s->refused("COMMIT PREPARED 'mip:$here:2:real'",
	'42704', 'nor of one that is gone');
$s->refused("COMMIT PREPARED 'mip:$there:1:other'", '42704', 'nor elsewhere');

# where the extension is not, a schema of its name may be anybody's
$node->safe_psql('elsewhere', 'CREATE SCHEMA mip; CREATE VIEW mip.mipt AS SELECT 1 AS xid');
($rc, $out, $err) = $node->psql('elsewhere', "COMMIT PREPARED 'mip:$there:1:other'");
like($err, qr/prepared transaction .* does not exist/, 'nothing of it is looked at');

# the stranger has taken this name from everybody, until somebody rolls back
$s->sql('BEGIN');
$s->refused("SELECT mip.begin('stray', 1)", '42501', 'a stray name');
$s->sql('ROLLBACK');
is(states($node, 'stray'), '', 'but it is no entry of the MIPT');

for my $i (0 .. $#names)
{
	my $how = $i % 2 ? 'COMMIT' : 'ROLLBACK';
	my ($rc, $out, $err) = $node->psql('postgres', "$how PREPARED '$names[$i]'");
	is($err, '', "$how PREPARED '$names[$i]'");
}
is(mip_sql($node, 'SELECT gid FROM pg_prepared_xacts'),
	"mip:$here:1:real", 'only the instance is left');
$s->sql('BEGIN');
$s->sql("SELECT mip.begin('stray', 1)");
$s->sql('UPDATE t SET v = 1 WHERE id = 15');
$s->sql("SELECT * FROM mip.prepare('', '')");
is(mip_sql($node, "SELECT state FROM mip.commit('stray', 1)"),
	'committed', 'the name can be used again');
$s->quit;
is(mip_sql($node, "SELECT string_agg(state::text, ' ' ORDER BY xinst) FROM mip.commit('real', 1)"),
	'committed', 'the instance commits');
is(mip_sql($node, 'SELECT v FROM t WHERE id = 20'), '1', 'and has its row');
is_decided($node, 'strangers');

$node->stop;
done_testing();
