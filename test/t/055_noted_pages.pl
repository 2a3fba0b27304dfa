# The last page of the MIPT's key and that of the horizon are read where they have been read before, without opening
# their relations: whatever has become of these meanwhile, nobody runs what has been committed, or has expired.
# [looked-once] [entry-or-horizon]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;
use Time::Local qw(timegm);

my $node = mip_node('noted_pages', 'mip.retention' => '0', allow_in_place_tablespaces => 'on');
my $other = session($node, 'other');
my $year = 2001;

# The time of the XID that was made last
sub its_time { return timegm(0, 0, 0, 1, 0, $year) * 1000; }

# The XID made in the next year: it sorts behind all others
sub next_xid
{
	$year++;
	return sprintf('%08x-%04x-7000-8000-%012x', its_time() >> 16, its_time() & 0xffff, $year);
}

# What commits a new request
sub request
{
	my ($xid) = @_ ? @_ : next_xid();
	return "BEGIN; SELECT FROM mip.begin('$xid', 1); SELECT FROM mip.commit_one_phase('', '')";
}

# A session that has read both pages, in a transaction that begins before what is next, and need not look at a catalog
sub warm
{
	my $s = session($node, 'warm');
	$s->sql('SET plan_cache_mode = force_generic_plan');
	$s->sql($_)
	  for 'PREPARE begun (text) AS SELECT FROM mip.begin($1, 2)',
	  q[PREPARE ended AS SELECT FROM mip.commit_one_phase('', '')];
	for (1 .. 2)
	{
		my $xid = next_xid();
		$s->sql($_) for 'BEGIN', "EXECUTE begun ('$xid')", 'EXECUTE ended';
	}
	$s->sql('BEGIN');
	return $s;
}

# ---- the key ----

sub key_becomes
{
	my ($what, $becomes) = @_;
	my $s = warm();
	my $new = session($node, 'new');

	$becomes->();
	my $xid = next_xid();
	$new->sql(request($xid));
	$s->refused("EXECUTE begun ('$xid')", 'MP001', "the key, $what: a request that has been committed");
	$xid = next_xid();
	$s->sql($_) for 'ROLLBACK', 'BEGIN', "EXECUTE begun ('$xid')", 'EXECUTE ended';
	is($new->sql("SELECT state FROM mip.instances('$xid')"), 'committed', "the key, $what: one that has not");
	$_->quit for $s, $new;
	return;
}

key_becomes('as it was', sub { });
key_becomes('too long for one page', sub { $other->sql(join(';', map { request() } 1 .. 60)) for 1 .. 10; });
key_becomes("behind $_", sub { $other->sql($_) })
  for 'REINDEX INDEX mip.mipt_pkey', 'VACUUM FULL mip.mipt', 'DROP EXTENSION pg_mip; CREATE EXTENSION pg_mip';

# The former index takes no rows any more; it is not dropped as long as there is somebody who may read it.
my @readers = map { session($node, $_) } 'one who reads', 'another one';

sub reads_mipt { $_[0]->sql('BEGIN; SELECT 1 FROM mip.mipt LIMIT 1'); return; }

# Somebody waits, but not for that reader.
sub waits_for_others
{
	my ($pid, $reader) = @_;
	return $node->poll_query_until('postgres', "SELECT pg_blocking_pids($pid) <> '{}' AND NOT $reader = ANY (pg_blocking_pids($pid))")
	  || die 'nobody is waited for';
}

key_becomes('beside the former one', sub {
	reads_mipt($readers[0]);
	$other->send_sql('REINDEX INDEX CONCURRENTLY mip.mipt_pkey');
	waits_for_others($other->pid, $readers[1]->pid);
	reads_mipt($readers[1]);
	$readers[0]->sql('COMMIT');
	waits_for_others($other->pid, $readers[0]->pid);
	is(mip_sql($node, q[SELECT count(*) FROM pg_index WHERE indrelid = 'mip.mipt'::regclass AND NOT indislive]), 1, 'there is a former one');
});
$readers[1]->sql('COMMIT');
is(($other->finish)[1], '', 'which goes then');
$_->quit for @readers;

# ---- rows that somebody brings, who keeps others from the table until he commits ----

sub brings
{
	my ($xid) = @_;
	return "INSERT INTO mip.mipt (xid, xinst, result, owner, since, aborted) VALUES ('$xid', 1, 'restored', current_user::regrole, now(), false)";
}

# It has begun, or begins, beside that; $ends is how it ends. It comes to nothing once the other one has committed.
sub is_told
{
	my ($s, $xid, $ends, $commit, $name) = @_;
	$s->sql('INSERT INTO effect VALUES (1)');
	$s->send_sql($ends);
	ok($s->waits("locktype = 'relation'"), "$name: it waits in the end");
	$other->sql($commit);
	$s->ends_refused('MP001', "$name: and is told of the one that has been committed");
	is(mip_sql($node, "SELECT string_agg(xinst::text, ',') FROM mip.mipt WHERE xid = '$xid'"), '1', "$name: there is no other one");
	is(mip_sql($node, 'SELECT count(*) FROM effect'), '0', "$name: nor any effect");
	return;
}

mip_sql($node, q[CREATE TABLE effect (i int) USING mip; CREATE TABLESPACE ts LOCATION '']);
for my $ends (q[SELECT FROM mip.commit_one_phase('', '')], q[SELECT FROM mip.prepare('', '')])
{
	for my $replaces ('TRUNCATE mip.mipt', 'REINDEX INDEX mip.mipt_pkey', 'ALTER INDEX mip.mipt_pkey SET TABLESPACE ts')
	{
		for my $commit ('COMMIT', q[COMMIT PREPARED 'brought'])
		{
			my $name = "$replaces, $commit, $ends";
			my $s = warm();
			$s->sql($_) for 'ROLLBACK', 'BEGIN';
			my $xid = next_xid();
			$other->sql($_) for 'BEGIN', $replaces, brings($xid);
			$other->sql(q[PREPARE TRANSACTION 'brought']) if $commit ne 'COMMIT';
			$s->send_sql("EXECUTE begun ('$xid')");
			if ($replaces =~ /REINDEX/)	# it is told of it before it is committed, by some releases
			{
				$node->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' OR state = 'idle in transaction' FROM pg_stat_activity WHERE pid = " . $s->pid);
				if (mip_sql($node, "SELECT state FROM pg_stat_activity WHERE pid = " . $s->pid) eq 'active')
				{
					$other->sql($commit);
					$s->ends_refused('MP001', "$name: it waits before it begins");
					$s->quit;
					next;
				}
			}
			$s->finish;
			is_told($s, $xid, $ends, $commit, $name);
			$s->quit;
			mip_sql($node, 'ALTER INDEX mip.mipt_pkey SET TABLESPACE pg_default');
		}
	}
	for my $keeps ('LOCK TABLE mip.mipt', 'LOCK TABLE mip.mipt IN SHARE ROW EXCLUSIVE MODE', 'TRUNCATE mip.mipt', 'REINDEX INDEX mip.mipt_pkey',
		'ALTER TABLE mip.mipt DISABLE TRIGGER ALL', 'ALTER TABLE mip.mipt SET TABLESPACE ts, DISABLE TRIGGER USER')
	{
		my $s = warm();
		my $xid = next_xid();
		$s->sql("EXECUTE begun ('$xid')");
		$other->sql($_) for 'BEGIN', $keeps;
		is_told($s, $xid, $ends, brings($xid) . '; COMMIT', "begun before $keeps, $ends");
		$s->quit;
		mip_sql($node, 'ALTER TABLE mip.mipt SET TABLESPACE pg_default');
	}
}

# He commits between the look at the page and whatever comes next.
{
	my $s = warm();
	my $xid = next_xid();
	my $gate = session($node, 'gate');
	$gate->sql('SELECT pg_advisory_lock(1)');
	$other->sql($_) for 'BEGIN', 'TRUNCATE mip.mipt', brings($xid), q[PREPARE TRANSACTION 'brought'];
	$s->sql($_) for 'ROLLBACK', q[SET mip.debug_stop_at = 'wait:behind'], 'BEGIN';
	$s->send_sql("EXECUTE begun ('$xid')");
	ok($s->waits("locktype = 'advisory'"), 'it has looked at the page');
	$other->sql(q[COMMIT PREPARED 'brought']);
	$gate->sql('SELECT pg_advisory_unlock(1)');
	is(($s->finish)[1], '', '... and begins');
	$s->refused('EXECUTE ended', 'MP001', '... but is told in the end');
	$_->quit for $s, $gate;
}

# What has been changed without bringing rows is of no concern.
for my $ends (q[SELECT FROM mip.commit_one_phase('', '')], q[SELECT FROM mip.prepare('', '')])
{
	my $s = warm();
	my $xid = next_xid();
	$s->sql("EXECUTE begun ('$xid')");
	$other->sql($_) for 'BEGIN', 'TRUNCATE mip.mipt';
	$s->send_sql($ends);
	ok($s->waits("locktype = 'relation'"), "beside TRUNCATE: $ends waits");
	$other->sql('COMMIT');
	is(($s->finish)[1], '', '... and goes on');
	is(states($node, $xid), $ends =~ /prepare/ ? '2 prepared' : '2 committed', '... to its end');
	mip_sql($node, "SELECT mip.commit('$xid', 2)");
	$s->quit;
}

# Whoever waits for him there keeps nobody else from the family meanwhile, least of all him.
for my $asks ('refuse', 'rollback')
{
	my $s = warm();
	my $xid = next_xid();
	$other->sql($_) for 'BEGIN', 'LOCK TABLE mip.mipt';
	$s->sql('ROLLBACK');
	$s->send_sql($asks eq 'refuse' ? "SELECT mip.refuse('$xid', 5, '{}')" : "SELECT FROM mip.rollback('$xid', 5)");
	ok($s->waits("locktype = 'relation'"), "mip.$asks waits for who has locked the table");
	is(mip_sql($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND pid = " . $s->pid), '0', '... without the family\'s lock');
	is($other->sql("SELECT count(*) FROM mip.instances('$xid')"), '0', '... which that one gets');
	$other->sql('COMMIT');
	$s->finish;
	is(states($node, $xid), '5 aborted', '... and goes on') if $asks eq 'refuse';
	$s->quit;
}

# ---- the horizon ----

sub horizon_moves
{
	my ($how, $moves) = @_;
	my $s = warm();
	my $xid = next_xid();

	$moves->(its_time());
	$s->refused("EXECUTE begun ('$xid')", 'MP007', "the horizon, $how: an expired request");
	$xid = next_xid();
	$s->sql($_) for 'ROLLBACK', 'BEGIN', "EXECUTE begun ('$xid')";
	$moves->(its_time());
	$s->refused('EXECUTE ended', 'MP007', "the horizon, $how: one that expires while it runs");
	$s->quit;
	return;
}

horizon_moves('moved', sub { $other->sql("SELECT setval('mip.horizon', $_[0])") });
horizon_moves('rewritten', sub { $other->sql("BEGIN; ALTER SEQUENCE mip.horizon RESTART; SELECT setval('mip.horizon', $_[0]); COMMIT") });
$other->quit;

# ---- pages that are in no buffer any more ----

$node->append_conf('postgresql.conf', "shared_buffers = '400kB'");
$node->restart;
$other = session($node, 'other');
$other->sql('CREATE TABLE big AS SELECT i, repeat($$x$$, 1000) FROM generate_series(1, 2000) i');
key_becomes('in no buffer', sub { $other->sql('SELECT count(*) FROM big') });
horizon_moves('in no buffer', sub { $other->sql("SELECT setval('mip.horizon', $_[0]); SELECT count(*) FROM big") });
$other->quit;

done_testing();
