# The standby takes over while siblings are prepared and one hand-over has
# begun, asynchronously and synchronously. They are finished there; the old
# primary, which went on and decided otherwise, comes back by pg_rewind.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

# A family of its own row, which goes through a hand-over: 1 is the native
# updater of row $id, 2 has an overlay.
sub small_family
{
	my ($node, $xid, $id) = @_;
	for my $k (1, 2)
	{
		prepare_one($node, $xid, $k,
			"UPDATE c SET v = $k, doc = repeat('$k', 5000) WHERE id = $id");
	}
	return;
}

sub small_rows
{
	my ($node) = @_;
	return mip_sql($node, "SELECT string_agg(v || left(doc, 1), ' ' ORDER BY id) FROM c");
}

sub fail_over
{
	my ($mode) = @_;
	my $old = mip_node(
		"${mode}_old",
		allows_streaming => 1,
		wal_log_hints => 'on',
		wal_keep_size => '1GB',
		wal_consistency_checking => 'all');
	fill($old);
	mip_sql(
		$old, q[
		CREATE TABLE c (id int PRIMARY KEY, v int, doc text) USING mip;
		ALTER TABLE c ALTER doc SET STORAGE external;
		INSERT INTO c SELECT i, 0, repeat('o', 5000) FROM generate_series(1, 4) i]);
	my $new = standby_of($old, "${mode}_new");
	if ($mode eq 'sync')
	{
		$old->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
		$old->reload;
	}

	begin_prepared($old, 'prepared', 1, 2);
	small_family($old, "begun $_", $_) for 1, 2;
	small_family($old, 'decided', 3);
	small_family($old, 'half decided', 4);
	mip_sql($old, "SELECT * FROM mip.commit('decided', 2)");

	# two hand-overs stop half-way, and a commit before its losers
	my $gate = session($old, 'gate');
	my %s = map { $_ => session($old, "committer of $_") } 1, 2, 4;
	$gate->sql('SELECT pg_advisory_lock(1)');
	$s{1}->sql("SET mip.debug_stop_at = 'wait:header'");
	$s{2}->sql("SET mip.debug_stop_at = 'wait:link'");
	$s{4}->sql("SET mip.debug_stop_at = 'wait:committed'");
	$s{$_}->send_sql("SELECT * FROM mip.commit('begun $_', 2)") for 1, 2;
	$s{4}->send_sql("SELECT * FROM mip.commit('half decided', 2)");
	ok($s{$_}->waits, "$mode: a commit is under way") for 1, 2, 4;
	catch_up($old, $new);

	# The network is cut. The old primary decides otherwise, and then dies.
	$new->promote;
	if ($mode eq 'sync')
	{
		# nobody confirms any more: the client does not get an answer
		$gate->sql('SELECT pg_advisory_unlock(1)');
		my $pid = $s{1}->pid;
		ok( $old->poll_query_until(
				'postgres',
				"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
			"$mode: the old primary waits for its standby");
	}
	else
	{
		mip_sql($old, "SELECT * FROM mip.commit('prepared', 1)");
		$gate->sql('SELECT pg_advisory_unlock(1)');
		$s{$_}->finish for 1, 2, 4;
		is(small_rows($old), '22 22 22 22',
			"$mode: the old primary goes on");
		mip_sql($old, 'VACUUM a, b, c');
	}
	crash_server($old);
	$_->quit for $gate, values %s;

	# the new one
	is(states($new, 'prepared'), '1 prepared, 2 prepared',
		"$mode: both are prepared");
	is(states($new, "begun $_"), '1 prepared, 2 prepared',
		"$mode: the family whose hand-over has begun, too")
	  for 1, 2;
	is(states($new, 'decided'), '1 aborted, 2 committed', "$mode: decided");
	is(states($new, 'half decided'), '2 committed',
		"$mode: committed, but for a note of its loser");
	is_rows($new, 0, "$mode: before");
	is(small_rows($new), '0o 0o 22 22', "$mode: before, c");
	my $s = session($new, 'another');
	for my $k (1, 2)
	{
		$s->refused("SELECT * FROM mip.commit('begun $k', 1)",
			'MP001', "$mode: another winner of a hand-over that has begun");
		$s->refused("SELECT * FROM mip.rollback('begun $k', 2)",
			'MP006', "$mode: or its rollback");
		$s->sql("SELECT * FROM mip.commit('begun $k', 2)");
	}
	$s->refused("SELECT * FROM mip.commit('half decided', 1)",
		'MP001', "$mode: another winner of a decided family");
	$s->sql("SELECT * FROM mip.commit('half decided', 2)");
	$s->sql("SELECT * FROM mip.commit('prepared', 2)");
	$s->quit;
	is_decided($new, $mode);
	is_rows($new, 2, "$mode: the new primary");
	is(small_rows($new), '22 22 22 22', "$mode: the new primary, c");

	# the old one comes back; pg_rewind looks for the new timeline in the
	# control file
	mip_sql($new, 'CHECKPOINT');
	command_ok(
		[
			'pg_rewind', '--no-sync',
			'--target-pgdata', $old->data_dir,
			'--source-server', $new->connstr('postgres'),
			'--config-file', $old->data_dir . '/postgresql.conf'
		],
		"$mode: pg_rewind");
	$old->append_conf(
		'postgresql.conf', "synchronous_standby_names = ''\nport = "
		  . $old->port
		  . "\nprimary_conninfo = '"
		  . $new->connstr
		  . " application_name=" . $old->name . "'\nunix_socket_directories = '"
		  . $old->host . "'");
	$old->set_standby_mode;
	$old->start;
	catch_up($new, $old);
	is_rows($old, 2, "$mode: the old primary as a standby");
	is(small_rows($old), '22 22 22 22', "$mode: the old primary as a standby, c");
	fill($new);
	begin_prepared($new, 'later', 2, 1);
	mip_sql($new, "SELECT * FROM mip.commit('later', 1)");
	catch_up($new, $old);
	is_rows($old, 1, "$mode: it follows");
	is_sound($new, $mode);
	is(chunks($new), 33, "$mode: no out-of-line value too many");
	catch_up($new, $old);
	unlike(slurp_file($_->logfile), qr/inconsistent page|PANIC/,
		"$mode: wal_consistency_checking found nothing")
	  for $old, $new;
	$_->stop for $old, $new;
	return;
}

fail_over($_) for 'async', 'sync';

done_testing();
