# An incremental backup (17 and later) contains the pages that WAL records
# refer to. A hand-over that clears bits of the visibility map has to refer to
# its page, or an index-only scan in the restored server finds replaced rows.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $probe = PostgreSQL::Test::Cluster->new('probe');
plan skip_all => 'no incremental backups before PostgreSQL 17'
  if $probe->pg_version < 17;

my $node = mip_node(
	'source',
	allows_streaming => 1,
	summarize_wal => 'on');
# no room for another version on the first page
mip_sql(
	$node, q[
	CREATE TABLE t (id int, v int, pad text) USING mip;
	ALTER TABLE t ALTER pad SET STORAGE plain;
	INSERT INTO t SELECT i, 0, repeat('p', 900) FROM generate_series(1, 10) i;
	CREATE INDEX ON t (v, id)]);

# Instance 2's overlay remains, over a page that VACUUM takes for visible.
my @s = map { session($node, "instance $_") } 1, 2;
for my $k (1, 2)
{
	$s[ $k - 1 ]->sql("BEGIN; SELECT mip.begin('x', $k)");
	$s[ $k - 1 ]->sql("UPDATE t SET v = $k WHERE id = 1");
	$s[ $k - 1 ]->sql("SELECT * FROM mip.prepare('', '')");
}
$_->quit for @s;
mip_sql($node, "SELECT * FROM mip.rollback('x', 1)");
mip_sql($node, 'CREATE EXTENSION pg_visibility; VACUUM t');
is(mip_sql($node, "SELECT all_visible FROM pg_visibility_map('t', 0)"),
	't', 'the page is all-visible');

my $full = $node->backup_dir . '/full';
my $incremental = $node->backup_dir . '/incremental';
$node->command_ok([ 'pg_basebackup', '-D', $full, '--no-sync', '-cfast' ],
	'full backup');
mip_sql($node, "SELECT * FROM mip.commit('x', 2)");
$node->command_ok(
	[
		'pg_basebackup', '-D', $incremental, '--no-sync', '-cfast',
		'--incremental', "$full/backup_manifest"
	],
	'incremental backup');

my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init_from_backup($node, 'incremental',
	combine_with_prior => ['full']);
$restored->start;
is( mip_sql(
		$restored,
		'SET enable_seqscan = off; SET enable_bitmapscan = off;'
		  . ' SELECT v, id FROM t WHERE v >= 0 AND id = 1'),
	'2|1', 'restored: index-only scan');
is(mip_sql($restored, "SELECT * FROM pg_check_visible('t')"),
	'', 'restored: visibility map');

$restored->stop;
$node->stop;
done_testing();
