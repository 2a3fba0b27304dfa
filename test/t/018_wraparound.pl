# Siblings on both sides of the wraparound of transaction ids and multixacts:
# the first instance has one of the last ids before it, the later ones have
# ids after it. VACUUM FREEZE, a crash and either winner.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = mip_node(
	'wraparound',
	vacuum_freeze_min_age => 0,
	vacuum_freeze_table_age => 0,
	vacuum_multixact_freeze_min_age => 0,
	vacuum_multixact_freeze_table_age => 0);

use constant { LAST => 2**32, XIDS_PER_SEGMENT => 32 * 32768,
	MULTIS_PER_SEGMENT => 32 * 2048 };

# Sets the next ids. The segments that hold them have to be there.
sub set_ids
{
	my ($xid, $multi, $oldest_multi) = @_;
	$node->stop;
	for my $segment (
		[ 'pg_xact', $xid / XIDS_PER_SEGMENT ],
		[ 'pg_multixact/offsets', $multi / MULTIS_PER_SEGMENT ])
	{
		my $file = sprintf('%s/%s/%04X', $node->data_dir, @$segment);
		next if -e $file;
		open(my $fh, '>', $file) or die "$file: $!";
		print $fh "\0" x (32 * 8192);
		close $fh;
	}
	command_ok(
		[
			'pg_resetwal', '-x', $xid, '-m', "$multi,$oldest_multi", '-D',
			$node->data_dir
		],
		"pg_resetwal to $xid");
	$node->start;
	return;
}

sub freeze_all
{
	mip_sql($node, 'ALTER DATABASE template0 ALLOW_CONNECTIONS true');
	command_ok(
		[ 'vacuumdb', '--freeze', '--all', '-q', '-h', $node->host, '-p', $node->port ],
		'freeze everything');
	return;
}

# Up to shortly before the wraparound, in steps of less than half of all ids.
my $oldest = 1;
for my $step (1_500_000_000, 3_000_000_000)
{
	freeze_all();
	set_ids($step, $step, $oldest);
	$oldest = $step;
}
freeze_all();

# A schema for each family: (winner, order of writing)
my @cases = ([ 1, 1, 2 ], [ 2, 1, 2 ], [ 1, 2, 1 ], [ 2, 2, 1 ], [ 2, 1, 3, 2 ]);

sub use_schema
{
	my ($i) = @_;
	$ENV{PGOPTIONS} = "-c search_path=s$i,public";
	return;
}

for my $i (0 .. $#cases)
{
	use_schema($i);
	mip_sql($node, "CREATE SCHEMA s$i");
	fill($node);
}
set_ids(LAST - 40, LAST - 4, $oldest);

# The first of each family before the wraparound, the others behind it
my @sessions;
sub begins
{
	my ($i, $k) = @_;
	use_schema($i);
	$sessions[$i]{$k} = session($node, "instance $k of family $i");
	attempt($sessions[$i]{$k}, "wrap-$i", $k);
	return;
}
begins($_, $cases[$_][1]) for 0 .. $#cases;
is( mip_sql(
		$node,
		"SELECT count(*) FROM pg_stat_activity WHERE backend_xid::text::bigint > 4294967000"
	),
	scalar(@cases),
	'the first instances have old ids');
mip_sql(
	$node, q[DO $$ BEGIN
		FOR i IN 1..60 LOOP
			PERFORM pg_current_xact_id();
			COMMIT;
		END LOOP;
	END $$]);
for my $i (0 .. $#cases)
{
	my ($winner, $first, @others) = @{ $cases[$i] };
	begins($i, $_) for @others;
	$sessions[$i]{$_}->sql("SELECT * FROM mip.prepare('', '')")
	  for sort $first, @others;
	$_->quit for values %{ $sessions[$i] };
}
cmp_ok(
	mip_sql($node, 'SELECT pg_current_xact_id()::text::bigint'),
	'>', LAST, 'transaction ids have wrapped around');
is( mip_sql(
		$node,
		q[SELECT count(*) FROM pg_prepared_xacts
			WHERE transaction::text::bigint > 4294967000]),
	scalar(@cases),
	'so there are siblings on both sides');
mip_sql($node, 'CHECKPOINT');
cmp_ok(
	mip_sql($node, 'SELECT next_multixact_id::text::bigint FROM pg_control_checkpoint()'),
	'<', 1000, 'multixacts have wrapped around');

sub check_all
{
	my ($name) = @_;
	for my $i (0 .. $#cases)
	{
		use_schema($i);
		is_rows($node, 0, "family $i, $name");
		my $s = session($node, 'outsider');
		$s->refused('SET lock_timeout = 100; UPDATE a SET v = 0 WHERE id = 1',
			'55P03', "family $i, $name: an outsider waits");
		$s->quit;
	}
	return;
}

check_all('prepared');
mip_sql($node, 'VACUUM (FREEZE)');
check_all('frozen');
power_cut($node);
check_all('after a crash');
for my $i (0 .. $#cases)
{
	my $winner = $cases[$i][0];
	use_schema($i);
	mip_sql($node, "SELECT * FROM mip.commit('wrap-$i', $winner)");
	is_rows($node, $winner, "family $i, decided");
}
is_decided($node, 'in the end');
is_sound($node, 'in the end');
for my $i (0 .. $#cases)
{
	use_schema($i);
	is_rows($node, $cases[$i][0], "family $i, frozen in the end");
}
freeze_all();
is( mip_sql(
		$node,
		q[SELECT c.oid::regclass, age(relfrozenxid), mxid_age(relminmxid)
		FROM pg_class c WHERE relkind IN ('r', 't', 'm')
		AND (age(relfrozenxid) > 1000 OR mxid_age(relminmxid) > 1000)]),
	'',
	'relfrozenxid and relminmxid have followed');

$node->stop;
done_testing();
