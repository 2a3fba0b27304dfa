# With mip.synchronous_commit_prepared = off, mip.commit does not wait for the
# flush. A crash then finds the winner prepared again, with the same result and
# nothing lost; whatever else has told of the commit has flushed it. [told-is-durable]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my %conf = (
	allows_streaming => 1,
	max_prepared_transactions => 8,
	wal_writer_delay => '10s',
	# a page that is written, to make room or ahead of need, flushes too
	shared_buffers => '32MB',
	bgwriter_lru_maxpages => 0,
	lock_timeout => '60s',
	'mip.synchronous_commit_prepared' => 'off');
my $node = mip_node('unflushed', %conf);

sub commit
{
	my ($xid, $xinst) = @_;
	return mip_sql($node,
		"SELECT xinst, state FROM mip.commit('$xid', $xinst)");
}

# How many commits did not wait?
sub unflushed
{
	return mip_sql($node, 'SELECT committed_unflushed FROM mip.stats');
}

# One instance that changes a row.
sub prepared
{
	my ($xid, $write) = @_;
	prepare_one($node, $xid, 1, $write // 'UPDATE a SET v = v + 1 WHERE id = 1');
	return;
}

# ---- a commit that a crash loses ----

for my $winner (0, 1, 2)
{
	my @order = $winner ? (1, 2) : (1);
	my $xid = "lost-$winner";
	my $k = $winner || 1;
	my $name = $winner ? "$winner of two wins" : 'no siblings';

	fill($node);
	begin_prepared($node, $xid, @order);
	my $before = unflushed();
	hold_walwriter($node);
	is(mip_sql($node, "SELECT state FROM mip.commit('$xid', $k) WHERE xinst = $k"),
		'committed', "$name: the commit is told");
	is(unflushed(), $before + 1, "$name: it did not wait");
	is_rows($node, $k, "$name: before the crash");
	power_cut($node);
	is( states($node, $xid),
		join(', ', map { "$_ prepared" } @order),
		"$name: prepared again");
	is( mip_sql($node, "SELECT DISTINCT request, result ~ '^result' FROM mip.instances('$xid')"),
		'request|t', "$name: with the result");
	commit($xid, $k);
	is_rows($node, $k, "$name: committed again");
	is( mip_sql($node, "SELECT result FROM mip.instances('$xid') WHERE state = 'committed'"),
		"result $k", "$name: with the same result");
	is_decided($node, $name);
	is_released($node, $name);
	is_sound($node, $name);
}

# ---- what is told otherwise is flushed ----

# a family that is forgotten here may be forgotten elsewhere
fill($node);
prepared('forgotten');
hold_walwriter($node);
mip_sql($node, "SET synchronous_commit = off; SELECT * FROM mip.commit('forgotten', 1)");
mip_sql($node, "SET synchronous_commit = off; SELECT mip.forget('forgotten')");
power_cut($node);
is(states($node, 'forgotten'), '', 'mip.forget: stays forgotten');
is_decided($node, 'mip.forget');

# a refusal: others roll the instance back elsewhere
fill($node);
hold_walwriter($node);
is( mip_sql($node, "SET synchronous_commit = off; SELECT mip.refuse('refused', 1, '{}')"),
	't', 'mip.refuse');
power_cut($node);
is(states($node, 'refused'), '1 aborted', 'mip.refuse: stays refused');

# also of what was noted before, and not flushed yet
prepared('noted');
hold_walwriter($node);
mip_sql($node, "SET synchronous_commit = off; SELECT FROM mip.rollback('noted', 1)");
is( mip_sql($node, "SET synchronous_commit = off; SELECT mip.refuse('noted', 1, '{}')"),
	't', 'mip.refuse of what is aborted');
power_cut($node);
is(states($node, 'noted'), '1 aborted', 'mip.refuse of what is aborted: stays so');
is_decided($node, 'mip.refuse');

# a hand-over that has begun, and failed
fill($node);
begin_prepared($node, 'begun', 1, 2);
hold_walwriter($node);
$node->psql('postgres',
	"SET mip.debug_stop_at = 'error:handed over'; SELECT * FROM mip.commit('begun', 2)");
my ($rc, $stdout, $stderr) =
  $node->psql('postgres', "SELECT * FROM mip.commit('begun', 1)");
like($stderr, qr/instance 2 of this family is being committed/, 'a hand-over is told of');
power_cut($node);
($rc, $stdout, $stderr) = $node->psql('postgres', "SELECT * FROM mip.commit('begun', 1)");
like($stderr, qr/instance 2 of this family is being committed/, 'and stays');
commit('begun', 2);
is_decided($node, 'a hand-over');

my %tellers = (
	'mip.instances' => sub { states($node, $_[0]) },
	'MP001' => sub {
		my $s = session($node, 'retry');
		$s->sql('BEGIN');
		$s->refused("SELECT mip.begin('$_[0]', 2)", 'MP001', 'the retry is refused');
		$s->quit;
	},
	'mip.acknowledge' => sub { mip_sql($node, "SELECT mip.acknowledge('$_[0]')") });
for my $teller (sort keys %tellers)
{
	fill($node);
	prepared($teller);
	hold_walwriter($node);
	commit($teller, 1);
	$tellers{$teller}->($teller);
	power_cut($node);
	is(states($node, $teller), '1 committed', "$teller: what it told stays");
}

# a result that is told at once cannot be lost, whatever the session wants
fill($node);
my $careless = session($node, 'careless');
$careless->sql('SET synchronous_commit = off');
attempt($careless, 'one-phase', 1);
hold_walwriter($node);
$careless->sql("SELECT * FROM mip.commit_one_phase('', 'result')");
power_cut($node);
$careless->quit;
is(states($node, 'one-phase'), '1 committed', 'one phase: durable');
is_rows($node, 1, 'one phase');

# ---- what has to go the ordinary way ----

sub waits_for_flush
{
	my ($name, $prepare, $setting) = @_;
	(my $xid = $name) =~ s/\W+/-/g;
	fill($node);
	prepared($xid);
	$prepare->() if $prepare;
	my $before = unflushed();
	hold_walwriter($node);
	mip_sql($node, ($setting // '') . "; SELECT * FROM mip.commit('$xid', 1)");
	is(unflushed(), $before, "$name: not counted");
	power_cut($node);
	is(states($node, $xid), '1 committed', "$name: durable");
	is(mip_sql($node, 'SELECT v FROM a WHERE id = 1'), '101', "$name: the row");
	return;
}

waits_for_flush('by default', undef, 'RESET mip.synchronous_commit_prepared;'
	  . ' SET mip.synchronous_commit_prepared = on');
waits_for_flush('a file since a checkpoint', sub { mip_sql($node, 'CHECKPOINT') });
waits_for_flush('prepared before a restart', sub { $node->restart });
mip_sql($node, "SELECT pg_replication_origin_create('origin')");
waits_for_flush('a replication origin', undef,
	"SELECT pg_replication_origin_session_setup('origin')");

# catalogs, which functions can change: others' caches have to learn of it
fill($node);
my $reader = session($node, 'reader');
my $is_there = "SELECT pg_replication_origin_oid('made') IS NOT NULL";
is($reader->sql($is_there), 'f', 'catalogs: not there');
prepared('catalogs', "SELECT pg_replication_origin_create('made')");
my $so_far = unflushed();
commit('catalogs', 1);
is(unflushed(), $so_far, 'catalogs: not counted');
is($reader->sql($is_there), 't', 'catalogs: seen by others');
$reader->quit;

fill($node);
prepared('standby');
mip_sql($node, "ALTER SYSTEM SET synchronous_standby_names = '*'");
$node->reload;
my $s = session($node, 'standby');
$s->send_sql("SELECT state FROM mip.commit('standby', 1)");
ok( $node->poll_query_until(
		'postgres',
		"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = " . $s->pid),
	'a synchronous standby is waited for');
mip_sql($node, 'ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
my ($out, $err) = $s->finish;
is($out, 'committed', 'and the commit goes on without it');
$s->quit;

# ---- subtransactions; all that a prepared transaction holds is given back ----

fill($node);
my $before = unflushed();
for my $i (1 .. 20)
{
	prepared("many-$i",
		'SAVEPOINT s; UPDATE a SET v = v + 1 WHERE id = 2; RELEASE s;'
		  . ' SAVEPOINT s; UPDATE a SET v = 0 WHERE id = 3; ROLLBACK TO s; RELEASE s');
	commit("many-$i", 1);
}
is(unflushed(), $before + 20, 'more commits than there is room for');
is(mip_sql($node, 'SELECT id, v FROM a ORDER BY id'),
	"1|100\n2|120\n3|100", 'subtransactions');
is_released($node, 'many');
is_sound($node, 'many');

# ---- checkpoints at any moment ----

# Each instance inserts one row. After a power cut it is prepared or committed,
# whatever its client was told.
for my $round (1 .. 5)
{
	my $children = 4;
	my $each = 50;
	fill($node);
	mip_sql($node, 'DROP TABLE IF EXISTS log; CREATE TABLE log (xid text) USING mip');
	my $script = $node->basedir . '/families.sql';
	open(my $out, '>', $script) or die;
	print $out "\\set n random(1, 9000000000000)\n"
	  . "BEGIN\\; SELECT mip.begin('cp-$round-:n', 1)\\; INSERT INTO log VALUES ('cp-$round-:n')"
	  . "\\; SELECT * FROM mip.prepare('', '');\n"
	  . "SELECT * FROM mip.commit('cp-$round-:n', 1);\n";
	close $out;
	my $bench = IPC::Run::start(
		[ 'pgbench', '-n', '-c', $children, '-j', $children, '-t', $each,
			'-f', $script, $node->connstr('postgres') ],
		'>', \my $stdout, '2>', \my $stderr);
	my $checkpoints = 0;
	while (mip_sql($node, 'SELECT count(*) FROM log') < 3 * $each * $round / 5)
	{
		mip_sql($node, 'CHECKPOINT');
		$checkpoints++;
	}
	power_cut($node);
	eval { $bench->finish };
	is( mip_sql(
			$node, q[
			SELECT count(*) FROM pg_prepared_xacts p
			WHERE NOT EXISTS (SELECT FROM mip.in_doubt d WHERE p.gid LIKE '%' || d.xid)]),
		'0', "checkpoints, round $round: what is prepared is known");
	my $in_doubt = mip_sql($node, 'SELECT count(*) FROM mip.in_doubt');
	mip_sql($node, "SELECT * FROM mip.commit('$_', 1)")
	  for split /\n/, mip_sql($node, 'SELECT xid FROM mip.in_doubt');
	is( mip_sql(
			$node, qq[
			SELECT count(*) FROM log FULL JOIN
				(SELECT xid FROM mip.mipt WHERE xid LIKE 'cp-$round-%') m USING (xid)
			WHERE log.xid IS NULL OR m.xid IS NULL]),
		'0', "checkpoints, round $round: each row has its entry ($checkpoints checkpoints)");
	is_decided($node, "checkpoints, round $round");
}

$node->stop;

# ---- a server that keeps prepared transactions in another way ----

# Loaded first, this takes the first entry out of the table's free list.
my $module = module($node, 'other_table', <<'C');
#include "access/twophase.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

static shmem_startup_hook_type prev;

static void
shmem_startup(void)
{
	bool		found;
	void	  **free_list;

	if (prev)
		prev();
	free_list = ShmemInitStruct("Prepared Transaction Table", TwoPhaseShmemSize(), &found);
	*free_list = *(void **) *free_list;
}

void		_PG_init(void);

void
_PG_init(void)
{
	prev = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}
C
my $known = 'pg_mip does not know how this server keeps prepared transactions';
unlike(slurp_file($node->logfile), qr/$known/, 'stock PostgreSQL is known');
$node = mip_node('other', %conf, shared_preload_libraries => "$module, pg_mip");
like(slurp_file($node->logfile), qr/$known/, 'another table is noticed');
waits_for_flush('another table');

done_testing();
