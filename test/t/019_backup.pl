# Base backups, point-in-time recovery to moments within a decision, and
# incremental backups: what was prepared is prepared again, and no changed page
# is missed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = mip_node(
	'node',
	allows_streaming => 1,
	has_archiving => 1);
my $incremental = $node->pg_version >= 17;
if ($incremental)
{
	$node->append_conf('postgresql.conf', 'summarize_wal = on');
	$node->reload;
}
# A family of its own: with its native updater gone the page with the base versions
# is all-visible, until the hand-over.
mip_sql(
	$node, q[
	CREATE EXTENSION pg_visibility;
	CREATE TABLE c (id int PRIMARY KEY, v int) USING mip;
	INSERT INTO c SELECT i, 0 FROM generate_series(1, 100) i]);
prepare_one($node, 'map', $_, 'DELETE FROM c WHERE id <= 50') for 1, 2;
mip_sql($node, "SELECT * FROM mip.rollback('map', 1)");
# hint bits wait for the flush of the notes that are not waited for
mip_sql($node, 'CHECKPOINT');
mip_sql($node, 'VACUUM (ANALYZE) c');
is(mip_sql($node, "SELECT all_visible FROM pg_visibility('c')"),
	't', 'an all-visible page with base versions');

fill($node);
begin_prepared($node, 'f', 1, 2);
$node->backup('prepared');

# What an instance 2 of it has left, also by the visibility map
sub is_map_right
{
	my ($where, $name) = @_;
	is( mip_sql(
			$where,
			'SET enable_seqscan = off; SET enable_bitmapscan = off;'
			  . ' SELECT count(*), min(id) FROM c WHERE id > 0'),
		'50|51',
		"$name: rows by index-only scan");
	is(mip_sql($where, "SELECT count(*) FROM pg_check_visible('c')"),
		'0', "$name: visibility map");
	return;
}

sub restore_point
{
	my ($name) = @_;
	mip_sql($node, "SELECT pg_create_restore_point('$name'), pg_current_xact_id()");
	return;
}

# The decision, with a pause within the hand-over and one before the losers
my $gate = session($node, 'gate');
my $committer = session($node, 'committer');
restore_point('before');
for my $point ('header', 'committed')
{
	$gate->sql('SELECT pg_advisory_lock(1)');
	$committer->sql("SET mip.debug_stop_at = 'wait:$point'");
	$committer->send_sql("SELECT * FROM mip.commit('f', 2)");
	ok($committer->waits, "within the decision: $point");
	restore_point($point);
	if ($point eq 'header')
	{
		# it will be repeated from the start
		my $pid = $committer->pid;
		mip_sql($node, "SELECT pg_cancel_backend($pid)");
		$committer->ends_refused('57014', 'the commit is cancelled');
	}
	$gate->sql('SELECT pg_advisory_unlock(1)');
}
my ($out, $err) = $committer->finish;
is($err, '', 'the decision is made');
mip_sql($node, "SELECT * FROM mip.commit('map', 2)");
restore_point('after');
$_->quit for $gate, $committer;
is_rows($node, 2, 'decided');
is_map_right($node, 'decided');

# ---- an incremental backup holds the pages that the hand-over has changed ----

if ($incremental)
{
	$node->command_ok(
		[
			'pg_basebackup', '--no-sync', '-cfast',
			'-D', $node->backup_dir . '/incremental',
			'--incremental', $node->backup_dir . '/prepared/backup_manifest',
			'-d', $node->connstr('postgres')
		],
		'incremental backup');
	my $restored = PostgreSQL::Test::Cluster->new('restored');
	$restored->init_from_backup(
		$node, 'incremental',
		combine_with_prior => ['prepared']);
	$restored->start;
	is(states($restored, 'f'), '1 aborted, 2 committed', 'combined: MIPT');
	is_decided($restored, 'combined');
	is_rows($restored, 2, 'combined');
	is_map_right($restored, 'combined');
	is(chunks($restored), 22, 'combined: no out-of-line value too many');
	is_sound($restored, 'combined');
	$restored->stop;
}

mip_sql($node, 'SELECT pg_switch_wal()');
$node->stop;

# ---- points in time ----

sub restored_at
{
	my ($point, $winner) = @_;
	my $restored = PostgreSQL::Test::Cluster->new("at_${point}_$winner");
	$restored->init_from_backup($node, 'prepared', has_restoring => 1);
	$restored->append_conf('postgresql.conf',
		"recovery_target_name = '$point'\nrecovery_target_action = 'promote'\n"
		  . "recovery_target_timeline = 'current'\narchive_mode = off");
	$restored->start;
	$restored->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
	return $restored;
}

# any of the two may win, if the hand-over has not begun
for my $case (
	[ 'before', 1, 0 ], [ 'before', 2, 0 ],
	[ 'header', 2, 0 ], [ 'committed', 2, 2 ], [ 'after', 2, 2 ])
{
	my ($point, $winner, $rows) = @$case;
	my $name = "restored at \"$point\", $winner wins";
	my $restored = restored_at($point, $winner);
	my %expected = (
		before => '1 prepared, 2 prepared',
		header => '1 prepared, 2 prepared',
		committed => '2 committed',
		after => '1 aborted, 2 committed');

	is(states($restored, 'f'), $expected{$point}, "$name: MIPT");
	is_rows($restored, $rows, "$name: before");
	if ($point ne 'before')
	{
		my $s = session($restored, 'another');
		$s->refused("SELECT * FROM mip.commit('f', 1)",
			'MP001', "$name: another winner is refused");
		$s->quit;
	}
	mip_sql($restored, "SELECT * FROM mip.commit('f', $winner)");
	mip_sql($restored, "SELECT * FROM mip.commit('map', 2)");
	is_map_right($restored, $name);
	is_complete($restored, $winner, $name);
	$restored->stop;
	$restored->clean_node;
}

done_testing();
