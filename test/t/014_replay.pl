# Replay makes of every page what it was, after a crash and on a standby, with
# full page images and without, whatever step of a hand-over it stops at. A
# standby's readers see a family's rows as they were until the winner commits,
# and those with an older snapshot for ever.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = mip_node(
	'primary',
	allows_streaming => 1,
	wal_keep_size => '1GB',
	wal_consistency_checking => 'all');
mip_sql($primary, 'CREATE EXTENSION pg_visibility; CREATE EXTENSION pg_walinspect');
my $standby = standby_of($primary, 'standby');

# All versions on all pages of the tables and their TOAST tables, and the
# visibility map. Hint bits and combo command ids are not logged; of the map a
# crash may lose a bit (heap's replay clears one, and does not set it again if
# the map's page was written later), but must not keep one.
sub pages
{
	my ($node) = @_;
	return mip_sql(
		$node, q[
		SELECT t, b, lp, lp_off, lp_flags, lp_len, t_xmin, t_xmax, t_ctid,
			t_infomask & ~x'0f20'::int, t_infomask2, md5(t_data)
		FROM (SELECT relname, oid FROM pg_class WHERE relname IN ('a', 'b', 'c')
			UNION ALL SELECT 'toast', reltoastrelid FROM pg_class WHERE relname = 'b') r(t, o),
			generate_series(0, pg_relation_size(o::regclass) / 8192 - 1) b,
			heap_page_items(get_raw_page(o::regclass::text, b::int))
		ORDER BY t, b, lp;
		SELECT r, blkno, pd_all_visible, NOT pd_all_visible AND (all_visible OR all_frozen)
		FROM unnest('{a,b,c}'::regclass[]) r, pg_visibility(r)
		ORDER BY r, blkno]);
}

sub same_pages
{
	my ($name) = @_;
	catch_up($primary, $standby);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(pages($standby), pages($primary), "$name: pages of the standby");
	return;
}

sub survives_crash
{
	my ($name) = @_;
	my $before = pages($primary);
	power_cut($primary);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(pages($primary), $before, "$name: pages after a crash");
	return;
}

# A session of the standby with a snapshot of now
sub reader
{
	my ($name) = @_;
	my $s = session($standby, $name);
	$s->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
	$s->sql('SELECT count(*) FROM a');
	return $s;
}

sub reads
{
	my ($s, $k, $name) = @_;
	my ($a, $b) = after($k);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $scan ('seqscan', 'indexscan')
	{
		$s->sql("SET LOCAL enable_$scan = off");
		is($s->sql('SELECT id, v, note FROM a WHERE id > 0 ORDER BY id'),
			$a, "$name, enable_$scan = off");
		is( $s->sql(
				"SELECT id, v, rtrim(doc, left(doc, 1)) || left(doc, 1)"
				  . " FROM b WHERE id > 0 ORDER BY id"),
			$b,
			"$name, enable_$scan = off, out-of-line values");
		$s->sql("SET LOCAL enable_$scan = on");
	}
	return;
}

# An attempt() of each, and 50 rows of the first page of c, whose new versions
# go to other pages
sub family
{
	my ($xid, @order) = @_;
	my %s = map { $_ => session($primary, "instance $_") } @order;
	for my $k (@order)
	{
		attempt($s{$k}, $xid, $k);
		$s{$k}->sql("UPDATE c SET v = $k WHERE id <= 50");
	}
	for my $k (sort @order)
	{
		$s{$k}->sql("SELECT * FROM mip.prepare('', '')");
		$s{$k}->quit;
	}
	return;
}

my $n = 0;

sub replay
{
	my ($full, $point, $alone, $winner, @order) = @_;
	my $xid = 'replay-' . ++$n;
	my $name = "full_page_writes $full, $winner of @order"
	  . ($alone ? ' alone' : '') . ", at $point";
	my $gate = session($primary, 'gate');

	$primary->append_conf('postgresql.conf', "full_page_writes = $full");
	$primary->reload;
	fill($primary);
	mip_sql(
		$primary, q[
		DROP TABLE IF EXISTS c;
		CREATE TABLE c (id int PRIMARY KEY, v int, filler text) USING mip;
		INSERT INTO c SELECT i, 0, repeat('x', 100) FROM generate_series(1, 300) i;
		VACUUM (FREEZE) a, b, c]);
	same_pages("$name, frozen");
	is( mip_sql(
			$standby,
			q[SELECT bool_and(all_visible) FROM pg_visibility_map('a')]),
		't', "$name: all-visible at first");
	mip_sql($primary, 'CHECKPOINT') if $n % 2;
	family($xid, @order);
	same_pages("$name, prepared");
	is( mip_sql(
			$standby,
			q[SELECT bool_or(all_visible OR pd_all_visible) FROM pg_visibility('a')]),
		'f', "$name: no longer");
	if ($alone)
	{
		# the native updater gone, VACUUM takes the rows for all-visible
		mip_sql($primary, "SELECT * FROM mip.rollback('$xid', $order[0])");
		mip_sql($primary, 'VACUUM a, b, c');
		same_pages("$name, VACUUM");
		is( mip_sql(
				$standby,
				q[SELECT all_visible, pd_all_visible FROM pg_visibility('c', 0)]),
			't|t', "$name: all-visible again");
	}
	my $before = reader('reader from before');
	mip_sql($primary, 'CHECKPOINT') if $n % 3 == 0;

	# in the middle of the hand-over
	my $committer = session($primary, 'committer');
	$gate->sql('SELECT pg_advisory_lock(1)');
	$committer->sql("SET mip.debug_stop_at = 'wait:$point'");
	$committer->send_sql("SELECT * FROM mip.commit('$xid', $winner)");
	ok($committer->waits, "$name: it is on its way");
	same_pages("$name, during the hand-over");
	my $during = reader('reader from during the hand-over');
	reads($before, 0, "$name: during, old snapshot");
	reads($during, 0, "$name: during, new snapshot");
	is_rows($standby, 0, "$name: standby during the hand-over");
	if ($n % 2)
	{
		survives_crash("$name: during the hand-over");
		mip_sql($primary, 'CHECKPOINT') if $n % 3 == 1;
		mip_sql($primary, "SELECT * FROM mip.commit('$xid', $winner)");
	}
	else
	{
		$gate->sql('SELECT pg_advisory_unlock(1)');
		my ($out, $err) = $committer->finish;
		is($err, '', "$name: it goes on");
	}

	same_pages("$name, committed");
	is_rows($standby, $winner, "$name: standby");
	reads($before, 0, "$name: after, old snapshot");
	reads($during, 0, "$name: after, snapshot from during the hand-over");
	survives_crash("$name: committed");
	reads($before, 0, "$name: after the primary's crash, old snapshot");
	$_->quit for $gate, $committer, $before, $during;

	mip_sql($primary, 'VACUUM (FREEZE) a, b, c');
	same_pages("$name, frozen again");
	is_rows($standby, $winner, "$name: standby, frozen again");
	is(mip_sql($standby, 'SELECT count(*), sum(v) FROM c'),
		'300|' . 50 * $winner, "$name: standby, c");
	return;
}

for my $full ('on', 'off')
{
	replay($full, 'header', 0, 2, 1, 2);
	replay($full, 'chunk:3', 0, 2, 1, 2);
	replay($full, 'link:3', 0, 1, 2, 1);
	replay($full, 'handed over', 0, 1, 3, 2, 1);
	replay($full, $_, 1, 2, 1, 2) for 'header', 'handed over';
}

# ---- what the records look like ----

my $lsn = mip_sql($primary, 'SELECT pg_current_wal_insert_lsn()');
fill($primary);
begin_prepared($primary, 'records', 1, 2);
mip_sql($primary, "SELECT * FROM mip.commit('records', 2)");
my $end = mip_sql($primary, 'SELECT pg_current_wal_flush_lsn()');
like(
	mip_sql(
		$primary,
		"SELECT record_type, description FROM pg_get_wal_records_info('$lsn', '$end')"
		  . " WHERE resource_manager = 'pg_mip' AND record_type = 'SET_XMAX' LIMIT 1"),
	qr/^SET_XMAX\|off: \d+, xmax: \d+, infomask: 0x/,
	'pg_walinspect describes them');
# pg_waldump cannot load resource managers, but is not confused by them
my ($out, $err) = ('', '');
# (the segments are named, since it looks at any file otherwise, an empty one that is kept for later too)
my ($first, $last) = split /\|/,
  mip_sql($primary, "SELECT pg_walfile_name('$lsn'::pg_lsn + 1), pg_walfile_name('$end')");
IPC::Run::run(
	[
		'pg_waldump', '-s', $lsn, '-e', $end, $primary->data_dir . "/pg_wal/$first", $last
	],
	'>', \$out, '2>', \$err);
is($err, '', 'pg_waldump reads them');
like($out, qr/custom128 .* blkref #0: rel/s, 'and shows their blocks');

# ---- a standby that does not load the library ----

my $without = PostgreSQL::Test::Cluster->new('without');
$without->init_from_backup($primary, 'backup', has_streaming => 1);
$without->append_conf('postgresql.conf', "shared_preload_libraries = ''");
# pg_ctl may find it started, just before it is gone
PostgreSQL::Test::Utils::system_log('pg_ctl', '--no-wait', '-D', $without->data_dir,
	'-l', $without->logfile, 'start');
ok( wait_until(
		sub {
			-e $without->logfile && slurp_file($without->logfile) =~
			  /FATAL:\ \ resource\ manager\ with\ ID\ 128\ not\ registered
				.*HINT:\ \ Include\ the\ extension\ module\ .*\ in\ "?shared_preload_libraries/sx;
		}),
	'recovery stops without the library, and says why');

unlike(slurp_file($standby->logfile),
	qr/inconsistent page|PANIC/, 'wal_consistency_checking found nothing');
is_sound($primary, 'in the end');

$standby->stop;
$primary->stop;
done_testing();
