# With wal_level = logical a row that a sibling has in use cannot be written:
# decoding would not see the change as it was made. Nothing else is lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('logical', wal_level => 'logical');
fill($node);
mip_sql($node,
	"SELECT pg_create_logical_replication_slot('s', 'test_decoding')");

# Instances on their own are ordinary transactions.
begin_prepared($node, 'alone', 1);
mip_sql($node, "SELECT * FROM mip.commit('alone', 1)");
is_rows($node, 1, 'alone');
my $changes = mip_sql($node,
	"SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)"
	  . " WHERE data LIKE 'table public.a:%'");
like($changes, qr/UPDATE: id\[integer\]:1 v\[integer\]:101/,
	'an update is decoded');
like($changes, qr/DELETE: id\[integer\]:3/, 'a delete is decoded');

# Two: the second is refused where it would need an overlay.
fill($node);
mip_sql($node, "SELECT count(*) FROM pg_logical_slot_get_changes('s', NULL, NULL)");
my $one = session($node, 'instance 1');
my $two = session($node, 'instance 2');
attempt($one, 'both', 1);
for my $sql (
	'UPDATE a SET v = 0 WHERE id = 1',
	'UPDATE a SET id = 9 WHERE id = 2',
	'DELETE FROM a WHERE id = 3')
{
	$two->sql('BEGIN');
	$two->sql("SELECT mip.begin('both', 2)");
	my $err = $two->refused($sql, 'MP006', "refused: $sql");
	like($err, qr/wal_level is "logical"/, 'and why');
	$two->sql('ROLLBACK');
}

# Its other rows, and locks, are fine.
$two->sql('BEGIN');
$two->sql("SELECT mip.begin('both', 3)");
$two->sql('SELECT * FROM a WHERE id = 1 FOR UPDATE');
$two->sql('INSERT INTO a VALUES (5, 3, \'other\')');
$one->sql("SELECT * FROM mip.prepare('', '')");
$two->sql("SELECT * FROM mip.prepare('', '')");
mip_sql($node, "SELECT * FROM mip.commit('both', 1)");
is_decided($node, 'both');
is_rows($node, 1, 'both');
is_sound($node, 'both');
$changes = mip_sql($node,
	"SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)"
	  . " WHERE data LIKE 'table public.a:%'");
like($changes, qr/UPDATE: id\[integer\]:1 v\[integer\]:101/,
	'the winner is decoded');
unlike($changes, qr/other/, 'the loser is not');

$_->quit for $one, $two;
$node->stop;
done_testing();
