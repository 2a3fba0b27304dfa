# SERIALIZABLE beside a sibling that a crash has left prepared: PostgreSQL knows
# no more of its conflicts than that there may be some, and fails whoever reads
# what it has written. A sibling passes, and an outsider does not.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('serializable');
mip_sql(
	$node, q[
	CREATE TABLE s (k int PRIMARY KEY, v int) USING mip WITH (fillfactor = 50);
	INSERT INTO s SELECT k, 0 FROM generate_series(1, 1000) k;
	ANALYZE s;]);

# begins a SERIALIZABLE transaction, an instance if there is an xinst
sub begin
{
	my ($name, $xinst) = @_;
	my $s = session($node, $name);
	$s->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
	$s->sql("SELECT mip.begin('crash', $xinst)") if $xinst;
	return $s;
}

my $first = begin('first', 1);
$first->sql('SELECT v FROM s WHERE k = 2');
$first->sql('UPDATE s SET v = 1 WHERE k = 1');
$first->sql("SELECT FROM mip.prepare('', '')");
$node->stop('immediate');
$node->start;

for my $xinst (2, 3)
{
	my $sibling = begin("sibling $xinst", $xinst);
	is($sibling->sql('SELECT v FROM s WHERE k = 1'),
		'0', 'a sibling reads what it has written');
	$sibling->sql("UPDATE s SET v = $xinst WHERE k = 1");
	$sibling->sql("UPDATE s SET v = $xinst WHERE k = 2");
	is($sibling->sql("SELECT state FROM mip.prepare('', '') WHERE xinst = $xinst"),
		'prepared', 'and writes, and is prepared');

	my $outsider = begin("outsider $xinst");
	$outsider->refused('SELECT v FROM s WHERE k = 1',
		'40001', 'an outsider does not');
}

mip_sql($node, "SELECT FROM mip.commit('crash', 2)");
my $after = begin('after');
is($after->sql('SELECT v FROM s WHERE k < 3'), "2\n2", 'nor does it matter any more');
$after->sql('COMMIT');
is(mip_sql($node, "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid IS NULL"),
	'0', 'all that was in doubt is gone');

done_testing();
