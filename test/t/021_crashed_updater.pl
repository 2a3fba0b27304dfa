# A server crash ends an updater without leaving a trace of its abort. Beside
# a prepared transaction that has a foreign key's lock on the same version,
# the update of an older minor release (15.18; not 15.20) takes that updater for
# committed; it must be retried, not fail.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('crashed_updater');

mip_sql(
	$node, q[
	SET default_table_access_method = mip;
	CREATE TABLE parent (id int PRIMARY KEY, v int);
	CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
	INSERT INTO parent VALUES (1, 0)]);

my $prepared = session($node, 'prepared');
$prepared->sql('BEGIN');
$prepared->sql(q[SELECT mip.begin('child', 1)]);
$prepared->sql('INSERT INTO child VALUES (1, 1)');
$prepared->sql(q[SELECT * FROM mip.prepare('', '')]);

# Both updates of the row are on disk, with nothing about the updater's end.
sub crash_an_updater
{
	my $updater = session($node, 'updater');
	$updater->sql('BEGIN');
	$updater->sql('UPDATE parent SET v = -1');
	mip_sql($node, 'CHECKPOINT');
	power_cut($node);
	return;
}

crash_an_updater();
is( mip_sql(
		$node, q[
		BEGIN ISOLATION LEVEL REPEATABLE READ;
		UPDATE parent SET v = v + 1 WHERE id = 1 RETURNING v;
		COMMIT]),
	1, 'an outsider updates the row');

crash_an_updater();
is( mip_sql(
		$node, q[
		BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT FROM mip.begin('parent', 1);
		UPDATE parent SET v = v + 1 WHERE id = 1 RETURNING v;
		SELECT FROM mip.commit_one_phase('', '')]) =~ s/\s//gr,
	2, 'an instance updates the row');

is(mip_sql($node, 'SELECT v FROM parent'), 2, 'both are there');

mip_sql($node, q[SELECT * FROM mip.commit('child', 1)]);
is(mip_sql($node, 'SELECT count(*) FROM parent JOIN child ON parent = parent.id'),
	1, 'the foreign key holds');

$node->stop;
done_testing();
