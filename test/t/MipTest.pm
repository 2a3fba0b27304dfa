# What the TAP scenarios share: servers, sessions, one set of tables with the
# writes of an attempt on them, crashes, and the checks that end a scenario.
package MipTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use MipTest::Session;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(mip_node module session mip_sql fill attempt begin_prepared
  prepare_one after standby_of catch_up crash_server hold_walwriter power_cut postmaster_pid expect_crash starts_again
  is_rows is_decided is_sound is_released is_complete chunks states wait_until);

# A running server with pg_mip; %conf are settings, but for what init() takes.
sub mip_node
{
	my ($name, %conf) = @_;
	my %init = map { $_ => delete $conf{$_} } 'allows_streaming',
	  'has_archiving', 'extra';
	my $path = delete $conf{install_path};
	my $node = PostgreSQL::Test::Cluster->new($name,
		$path ? (install_path => $path) : ());

	$node->init(%init);
	%conf = (
		shared_preload_libraries => 'pg_mip',
		max_prepared_transactions => 20,
		max_connections => 20,
		autovacuum => 'off',
		jit => 'off',		# pages of a few rows are not worth it, whatever planners think
		checkpoint_timeout => '1h',	# only those that a test asks for: the next change of a page is logged in another way
		%conf);
	$node->append_conf('postgresql.conf',
		join('', map { "$_ = '$conf{$_}'\n" } sort keys %conf));
	$node->start;
	$node->safe_psql('postgres',
		'CREATE EXTENSION pg_mip; CREATE EXTENSION amcheck;'
		  . ' CREATE EXTENSION pageinspect');
	return $node;
}

# A standby of a running server, as that is now, with its settings.
sub standby_of
{
	my ($primary, $name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$primary->backup('backup');
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->start;
	return $standby;
}

# A small module for shared_preload_libraries; in it LIBRARY is what it returns.
sub module
{
	my ($node, $name, $source) = @_;
	my $path = $node->basedir . "/$name";
	append_to_file("$path.c",
		"#include \"postgres.h\"\n#include \"fmgr.h\"\n$source\nPG_MODULE_MAGIC;\n");
	system_or_bail($ENV{CC} // 'cc', '-shared', '-fPIC',
		'-I' . $node->config_data('--includedir-server'),
		"-DLIBRARY=\"$path.so\"", '-o', "$path.so", "$path.c");
	return "$path.so";
}

sub session
{
	my ($node, $name) = @_;
	return MipTest::Session->new($node, $name);
}

# One statement in a session of its own: output, or dies with the error.
sub mip_sql
{
	my ($node, $sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# Waits until `$test` is true; false after 60 s.
sub wait_until
{
	my ($test) = @_;
	for (1 .. 6000)
	{
		return 1 if $test->();
		usleep(10_000);
	}
	return 0;
}

# Waits until the standbys (or subscriptions) have all that is visible at $node.
# Without a place to wait for, wait_for_catchup takes what is written by now:
# notes, and whatever else nobody waits for, may not be. A commit flushes them.
sub catch_up
{
	my ($node, @followers) = @_;
	my $lsn = mip_sql($node, "SELECT pg_logical_emit_message(true, '', '')");
	$node->wait_for_catchup($_, 'replay', $lsn) for @followers;
	return;
}

# ---- tables and attempts ----

# Out-of-line values of table b: 20,000 bytes are 11 chunks.
use constant { DOC => 20000, CHUNKS => 11 };

sub fill
{
	my ($node) = @_;
	my $doc = DOC;
	mip_sql(
		$node, qq[
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS a, b;
		CREATE TABLE a (id int, v int, note text,
			PRIMARY KEY (id) INCLUDE (v)) USING mip;
		CREATE TABLE b (id int PRIMARY KEY, v int, doc text) USING mip;
		ALTER TABLE b ALTER doc SET STORAGE external;
		INSERT INTO a VALUES (1, 100, 'x'), (2, 100, 'y'), (3, 100, 'z');
		INSERT INTO b SELECT i, 0, repeat('o', $doc)
			FROM generate_series(1, 3) i;]);
	return;
}

# The writes of instance $k, which is left open in session $s. It is the
# native updater of the rows that no sibling has in use yet. Every kind of
# change is there: of an included column, HOT (twice), delete, key change,
# the same new key, out-of-line values changed, kept and dropped.
sub attempt
{
	my ($s, $xid, $k) = @_;
	my $doc = DOC;
	$s->sql('BEGIN');
	$s->sql("SELECT mip.begin('$xid', $k)");
	$s->sql(
		qq[
		UPDATE a SET v = v + $k WHERE id = 1;
		UPDATE a SET note = 'by $k' WHERE id = 2;
		UPDATE a SET note = note || '!' WHERE id = 2;
		INSERT INTO a VALUES (4, $k, 'new');
		UPDATE b SET doc = repeat('$k', $doc) WHERE id = 1;
		UPDATE b SET v = $k WHERE id = 3;]);
	$s->sql(
		$k % 2
		? "DELETE FROM a WHERE id = 3"
		: "UPDATE a SET id = 30 + $k WHERE id = 3;
		   DELETE FROM b WHERE id = 2");
	return;
}

# Instances @order write one after the other, then all prepare, the smallest
# first. Their sessions are through afterwards.
sub begin_prepared
{
	my ($node, $xid, @order) = @_;
	my %s = map { $_ => session($node, "instance $_") } @order;
	attempt($s{$_}, $xid, $_) for @order;
	for my $k (sort { $a <=> $b } @order)
	{
		$s{$k}->sql("SELECT * FROM mip.prepare('request', 'result $k')");
		$s{$k}->quit;
	}
	return;
}

# An instance executes these statements and prepares, in a session of its own.
sub prepare_one
{
	my ($node, $xid, $k, @sql) = @_;
	my $s = session($node, "instance $k");
	$s->sql("BEGIN; SELECT mip.begin('$xid', $k)");
	$s->sql($_) for @sql;
	$s->sql("SELECT * FROM mip.prepare('request', 'result $k')");
	$s->quit;
	return;
}

# What tables a and b hold after instance $k (0: none) has won.
sub after
{
	my ($k) = @_;
	my $old = 'o';
	return ("1|100|x\n2|100|y\n3|100|z",
		"1|0|o\n2|0|o\n3|0|o") if $k == 0;
	my @a = ('1|' . (100 + $k) . '|x', "2|100|by $k!", "4|$k|new");
	push @a, (30 + $k) . '|100|z' unless $k % 2;
	my @b = ("1|0|$k", ($k % 2 ? '2|0|o' : ()), "3|$k|o");
	return (join("\n", @a), join("\n", @b));
}

# ---- crashes ----

sub _alive
{
	my ($pid) = @_;
	open(my $stat, '<', "/proc/$pid/stat") or return 0;
	my $line = <$stat> // '';
	close $stat;
	return $line !~ /\) [ZX] /;
}

sub _children
{
	my ($pid) = @_;
	my @found;
	for my $file (glob '/proc/[0-9]*/stat')
	{
		open(my $stat, '<', $file) or next;
		my $line = <$stat> // '';
		close $stat;
		push @found, $1 if $line =~ /^(\d+) \(.*\) \S+ $pid /;
	}
	return @found;
}

sub postmaster_pid
{
	my ($node) = @_;
	return (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
}

# kill -9 for the postmaster and all that it started, as a power cut that
# leaves the disks alone. The postmaster goes last, held until then: whoever
# sees it go aborts its transaction, and the abort may reach the disk.
sub crash_server
{
	my ($node) = @_;
	my $pid = postmaster_pid($node);
	kill 'STOP', $pid;
	my @children = _children($pid);
	kill 'KILL', @children;
	$node->kill9;
	_gone($node, $pid, @children);
	return;
}

# Nobody flushes but who has to; until the next crash.
sub hold_walwriter
{
	my ($node) = @_;
	kill 'STOP',
	  mip_sql($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	return;
}

sub power_cut
{
	my ($node) = @_;
	crash_server($node);
	$node->start;
	return;
}

# Waits until the processes are gone. The lock files name a process that may
# stay a zombie for long if init is slow to reap it.
sub _gone
{
	my ($node, @pids) = @_;
	wait_until(sub { !grep { _alive($_) } @pids })
	  or die 'the server is still there';
	unlink $node->data_dir . '/postmaster.pid',
	  $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	return;
}

# mip.commit of <xid, winner> runs into the named point (with its number, if
# it is not the first time), where the server crashes; it is up again
# afterwards.
sub expect_crash
{
	my ($node, $point, $xid, $winner) = @_;
	my $pid = postmaster_pid($node);
	my $stderr = '';
	$node->psql(
		'postgres',
		qq[SET mip.debug_stop_at = 'crash:$point';
		   SELECT * FROM mip.commit('$xid', $winner)],
		stderr => \$stderr);
	(my $where = $point) =~ s/:.*//;
	like($stderr, qr/PANIC:  pg_mip: stopped at "$where"/,
		"the server crashes at \"$point\"");
	starts_again($node, $pid);
	return;
}

# After a crash of its own: waits for the postmaster's end, and starts a new
# one.
sub starts_again
{
	my ($node, $pid) = @_;
	_gone($node, $pid);
	$node->{_pid} = undef;
	$node->start;
	return;
}

# ---- checks ----

# Live out-of-line chunks of table b.
sub chunks
{
	my ($node) = @_;
	my $toast = mip_sql($node,
		"SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'b'");
	return mip_sql($node, "SELECT count(*) FROM $toast");
}

# "1 prepared, 2 active" ...
sub states
{
	my ($node, $xid) = @_;
	return mip_sql($node,
		"SELECT string_agg(xinst || ' ' || state, ', ' ORDER BY xinst)"
		  . " FROM mip.instances('$xid')");
}

my %plans = (
	'sequential scan' => 'SET enable_indexscan = off;'
	  . ' SET enable_bitmapscan = off;',
	'index scan' => 'SET enable_seqscan = off; SET enable_bitmapscan = off;'
	  . ' SET enable_indexonlyscan = off;',
	'bitmap scan' => 'SET enable_seqscan = off; SET enable_indexscan = off;',
	'index-only scan' => 'SET enable_seqscan = off;'
	  . ' SET enable_bitmapscan = off;');

# Tables a and b hold what instance $k (0: none) has written, whichever way
# they are read; $node may be a standby.
sub is_rows
{
	my ($node, $k, $name) = @_;
	my ($a, $b) = after($k);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $plan (sort keys %plans)
	{
		my $order = 'WHERE id > 0 ORDER BY id';
		if ($plan eq 'index-only scan')
		{
			(my $ids = $a) =~ s/\|[^|\n]*$//mg;
			is(mip_sql($node, "$plans{$plan} SELECT id, v FROM a $order"),
				$ids, "$name: a by $plan");
			next;
		}
		is(mip_sql($node, "$plans{$plan} SELECT id, v, note FROM a $order"),
			$a, "$name: a by $plan");
		is( mip_sql(
				$node,
				"$plans{$plan} SELECT id, v, CASE WHEN length(doc) = "
				  . DOC
				  . " THEN rtrim(doc, left(doc, 1)) || left(doc, 1) END"
				  . " FROM b $order"),
			$b,
			"$name: b by $plan");
	}
	return;
}

# Nothing is left of a family that has been decided.
sub is_decided
{
	my ($node, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(mip_sql($node, 'SELECT * FROM mip.in_doubt'),
		'', "$name: nothing in doubt");
	is(mip_sql($node, 'SELECT gid FROM pg_prepared_xacts'),
		'', "$name: nothing prepared");
	return;
}

# Nobody holds a lock any more, and no links are left in the MIPT.
sub is_released
{
	my ($node, $name) = @_;
	my $locks = "SELECT DISTINCT locktype, mode, pid FROM pg_locks"
	  . " WHERE pid IS DISTINCT FROM pg_backend_pid()";
	my $left = '';

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { ($left = mip_sql($node, $locks)) eq '' });
	is($left, '', "$name: no lock is left");
	is(mip_sql($node, 'SELECT xid, xinst FROM mip.mipt WHERE links IS NOT NULL OR places IS NOT NULL'),
		'', "$name: no links are left");
	return;
}

# A family that has written to a and b is over, and nothing is left of it but what
# instance $k (0: none) has written. To be called with no MIP transaction alive.
sub is_complete
{
	my ($node, $k, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_decided($node, $name);
	is_rows($node, $k, $name);
	is_released($node, $name);
	is_sound($node, $name);
	is_rows($node, $k, "$name, after VACUUM FREEZE");
	is(chunks($node), CHUNKS * mip_sql($node, 'SELECT count(*) FROM b'),
		"$name: no out-of-line value too many");
	return;
}

# Indexes and heaps are sound, and there is one version a row. To be called
# with no MIP transaction alive.
sub is_sound
{
	my ($node, $name) = @_;
	my @tables = split /\n/,
	  mip_sql($node,
		"SELECT c.oid::regclass FROM pg_class c JOIN pg_am m ON m.oid = c.relam"
		  . " WHERE m.amname = 'mip' AND c.relkind = 'r' ORDER BY 1");
	my @wrong;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $table (@tables, 'mip.mipt')
	{
		my $check = "SELECT i.indexrelid::regclass FROM pg_index i"
		  . " JOIN pg_class c ON c.oid = i.indexrelid"
		  . " JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree'"
		  . " WHERE i.indrelid = '$table'::regclass";
		for my $index (split /\n/, mip_sql($node, $check))
		{
			my ($rc, $out, $err) = $node->psql('postgres',
				"SELECT bt_index_check('$index', true)");
			push @wrong, "$index: $err" if $rc != 0;
		}
	}
	for my $table (@tables)
	{
		my ($rc, $out, $err) =
		  $node->psql('postgres', "VACUUM (FREEZE) $table");
		push @wrong, "$table: $err" if $rc != 0;
		my $versions = mip_sql(
			$node, qq[
			SELECT count(*) FROM generate_series(0,
				pg_relation_size('$table') / 8192 - 1) b,
				heap_page_items(get_raw_page('$table', b::int)) WHERE lp_flags = 1]);
		my $rows = mip_sql($node, "SELECT count(*) FROM $table");
		push @wrong, "$table: $versions versions of $rows rows"
		  if $versions != $rows;
		# verify_heapam insists on heap, which a mip table is on disk
		my $heap = mip_sql(
			$node, qq[
			SELECT mip.disable('$table');
			SELECT blkno, offnum, msg FROM verify_heapam('$table');
			SELECT mip.enable('$table')]);
		$heap =~ s/^\n+|\n+$//g;
		push @wrong, "$table: $heap" if $heap ne '';
	}
	is(join("\n", @wrong), '', "$name: tables and indexes are sound");
	return;
}

1;
