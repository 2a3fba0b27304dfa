# Requests over a replicated site: attempts at different replicas, of which the first one in the log is committed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

first_replica('a', q[
	CREATE TABLE acct (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, t text) USING mip;
	INSERT INTO acct (id) SELECT generate_series(1, 20);
	CREATE ROLE owner LOGIN;
	CREATE ROLE stranger LOGIN;
	GRANT ALL ON acct TO owner, stranger;]);
join_site($_, 'a') for 'b', 'c';
my %s = map { $_ => session($node{$_}, "client of $_") } keys %node;

sub same { my ($name) = @_; local $Test::Builder::Level = $Test::Builder::Level + 1; all_are_same($name, 'acct'); return; }

sub value { my ($member, $id) = @_; return mip_sql($node{$member}, "SELECT v FROM acct WHERE id = $id"); }

# An attempt that has added 1 to the rows of these ids
sub attempted
{
	my ($session, $xid, $xinst, @ids) = @_;
	$session->sql("BEGIN; SELECT mip.begin('$xid', $xinst)");
	$session->sql("UPDATE acct SET v = v + 1 WHERE id = $_") for @ids;
	return;
}

# Its end is begun, and its message is in the log.
sub ends
{
	my ($session, $member, $result) = @_;
	$session->send_sql("SELECT state FROM mip.commit_one_phase('what', '$result')");
	take($member);
	return;
}

# What a replica's table has of a family
sub kept
{
	my ($member, $xid) = @_;
	return mip_sql($node{$member}, "SELECT string_agg(concat_ws(' ', xinst, request, result, owner::regrole, CASE WHEN aborted THEN 'aborted' END), ', ' ORDER BY xinst) FROM mip.mipt WHERE xid = '$xid'");
}

# A function that has a fence ordered, unless what it asks for is known; what it returns, when all have received that
sub fenced
{
	my ($session, $member, $sql) = @_;
	$session->send_sql($sql);
	wait_until(sub { $session->is_over || mip_sql($node{$member}, 'SELECT waiting > 0 FROM mip.replication') eq 't' });
	take($member) unless $session->is_over;
	receive($_) for sort keys %node;
	my ($out, $err) = $session->finish;
	return $out . $err;
}

sub instances { my ($member, $xid) = @_; return fenced($s{$member}, $member, "SELECT xinst || ' ' || state FROM mip.instances('$xid')"); }

# ---- one attempt ----

attempted($s{a}, 'one', 1, 1);
ends($s{a}, 'a', 'done');
is(kept('a', 'one'), '', 'before it has its position it is not committed');
is(receive('b'), 'applied', 'it gets to another replica');
receive('a');
is(($s{a}->finish)[0], 'committed', 'where it was made it is committed then');
same('one');
is(kept($_, 'one'), '1 what done postgres', "its result is at $_") for keys %node;
is(value($_, 1), 1, "and what it has changed") for keys %node;
for ('a', 'b')
{
	$s{$_}->refused("BEGIN; SELECT mip.begin('one', 2)", 'MP001', "another attempt at $_ is told");
	$s{$_}->sql('ROLLBACK');
}
is(instances('c', 'one'), '1 committed', 'so is who asks');

define($s{a}, 'CREATE TABLE other (i int)');
take('a');
same('a definition');
$s{a}->finish;
attempted($s{a}, 'reads', 1);
ends($s{a}, 'a', 'seen');
same('reads');
$s{a}->finish;
is(kept($_, 'reads'), '1 what seen postgres', "one that has changed nothing leaves its result at $_") for keys %node;

mip_sql($node{a}, 'SELECT 1');
$s{a}->sql(q[SET ROLE owner]);
attempted($s{a}, 'nothing', 1);
$s{a}->send_sql(q[SELECT state FROM mip.commit_one_phase(NULL, NULL)]);
take('a');
same('without texts');
$s{a}->finish;
is(kept($_, 'nothing'), '1 owner', "without texts, of its owner, at $_") for keys %node;
$s{a}->sql('RESET ROLE');

# ---- two attempts ----

attempted($s{$_}, 'two', ord, 2, 3) for 'a', 'b';
ends($s{a}, 'a', 'by a');
ends($s{b}, 'b', 'by b');
receive('b', @log - 1);
$s{b}->ends_refused('40001', 'the later one is refused');
same('two');
$s{a}->finish;
is(value($_, 2), 1, "one has been made at $_") for keys %node;
is(kept($_, 'two'), '97 what by a postgres', "and its result is at $_") for keys %node;

# different rows: nothing but the XID keeps them apart
attempted($s{a}, 'apart', 1, 4);
attempted($s{b}, 'apart', 2, 5);
attempted($s{c}, 'apart', 3);
ends($s{$_}, $_, "by $_") for 'b', 'a', 'c';
is(receive('c'), 'applied refused refused', 'the first one in the log stays');
same('apart');
$s{b}->finish;
$s{$_}->ends_refused('40001', "that of $_ does not") for 'a', 'c';
is(kept($_, 'apart'), '2 what by b postgres', "at $_") for keys %node;
is(value('a', 4) . value('a', 5), '01', 'what the others have changed is undone');

# one that runs elsewhere, and meets nothing of the winner's
attempted($s{a}, 'active', 1, 4);
attempted($s{b}, 'active', 2, 5);
ends($s{b}, 'b', 'by b');
receive('a');
$s{a}->refused('SELECT 1', '(?:MP005|57P01)', 'it has lost as soon as another one is committed');
$s{a}->quit;
$s{a} = session($node{a}, 'client of a again');
same('active');
$s{b}->finish;

# behind the certifier's memory of this session: it is read again
attempted($s{c}, 'again', 1, 6);
attempted($s{a}, 'again', 2, 7);
ends($s{a}, 'a', 'by a');
receive($_) for 'a', 'b';
$s{a}->finish;
start_applier('a');
receive('a');
ends($s{c}, 'c', 'by c');
same('again');
$s{c}->ends_refused('40001', 'an applier that has begun since knows of it');

# ---- at one replica ----

my $sibling = session($node{a}, 'sibling at a');
attempted($s{a}, 'beside', 1, 8);
attempted($sibling, 'beside', 2, 8, 9);
ends($sibling, 'a', 'by a sibling');
is(receive('b'), 'applied', 'what a sibling has changed beside another one is replicated');
receive('a');
is(($sibling->finish)[0] =~ /committed/, 1, 'it is committed');
$s{a}->refused('SELECT 1', '(?:MP005|57P01)', 'the other one has lost');
$s{a}->quit;
$s{a} = session($node{a}, 'client of a again');
same('beside');
is(value($_, 8) . value($_, 9), '11', "once at $_") for keys %node;

attempted($s{a}, 'both', 1, 8);
attempted($sibling, 'both', 2, 8);
$s{a}->send_sql("SELECT state FROM mip.commit_one_phase('what', 'first')");
$sibling->send_sql("SELECT state FROM mip.commit_one_phase('what', 'second')");
wait_until(sub { mip_sql($node{a}, 'SELECT waiting FROM mip.replication') == 2 });
take('a');
same('both');
my @ended = map { ($_->finish)[1] =~ /40001|MP005/ } $s{a}, $sibling;
is(@ended, 1, 'of two that end at once one stays');
is(value($_, 8), 2, "at $_") for keys %node;

# whoever comes to his end while another one is on his way to be committed
my $holder = session($node{a}, 'holder');
$holder->sql('SELECT pg_advisory_lock(1)');
$sibling = session($node{a}, 'another sibling at a');
attempted($s{a}, 'meanwhile', 1, 8);
attempted($sibling, 'meanwhile', 2, 9);
$s{a}->sql("SET mip.debug_stop_at = 'wait:certified'");
ends($s{a}, 'a', 'first');
$applier{a}->send_sql(receive_sql(++$behind{a}));
$s{a}->waits;
$sibling->refused(q[SELECT mip.commit_one_phase('what', 'second')], '40001', 'he is refused at once');
$holder->sql('SELECT pg_advisory_unlock(1)');
$applier{a}->finish;
is(($s{a}->finish)[0] =~ /committed/, 1, 'the other one is committed');
$s{a}->sql('RESET mip.debug_stop_at');
same('meanwhile');

# ... or finds that the request has become too old since
sub xid_of { my ($year) = @_; return sprintf('%08x-%04x-7000-8000-000000000000', ($year - 1970) * 31556952000 >> 16, 0); }
$holder->sql('SELECT pg_advisory_lock(1)');
$s{a}->sql("SET mip.retention = 0; SET mip.debug_stop_at = 'wait:certified'");
my $old = xid_of(2016);
attempted($s{a}, $old, 1, 8);
ends($s{a}, 'a', 'old');
$applier{a}->send_sql(receive_sql(++$behind{a}));
$s{a}->waits;
$holder->sql("SET mip.retention = 1; BEGIN; SELECT mip.begin('" . xid_of(2018) . "', 1)");
$holder->refused('SELECT mip.commit_one_phase(NULL, NULL)', 'MP007', 'what is newer has expired');
$holder->sql('ROLLBACK; SELECT pg_advisory_unlock(1)');
$applier{a}->finish;
is(($s{a}->finish)[0] =~ /committed/, 1, 'what is ordered is committed all the same');
$s{a}->sql('RESET mip.debug_stop_at; RESET mip.retention');
$sibling->quit;
$sibling = session($node{a}, 'sibling at a again');
same('old');

# a winner comes from elsewhere
attempted($s{a}, 'elsewhere', 1, 10);
attempted($sibling, 'elsewhere', 2, 10);
$sibling->send_sql('SELECT pg_sleep(600)')->begun;
attempted($s{b}, 'elsewhere', 3, 10);
ends($s{b}, 'b', 'by b');
receive('a');
my ($out, $err) = $sibling->finish;
like($err, qr/MP005|40001/, 'who runs is ended');
wait_until(sub { mip_sql($node{a}, 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $s{a}->pid) == 0 });
pass('the session of who is idle, too');
$_->quit for $s{a}, $sibling;
$s{a} = session($node{a}, 'client of a again');
same('elsewhere');
$s{b}->finish;
is(value($_, 10), 1, "once at $_") for keys %node;
$holder->quit;

# ---- fences ----

attempted($s{b}, 'fence', 1, 11);
is(instances('a', 'fence'), '', 'who looks elsewhere sees nothing');
ends($s{b}, 'b', 'late');
same('fence');
$s{b}->ends_refused('40001', 'and nothing comes of what has begun before');
attempted($s{b}, 'fence', 2, 11);
ends($s{b}, 'b', 'anew');
is(instances('a', 'fence'), '2 committed', 'who begins behind it is committed');
$s{b}->finish;

attempted($s{b}, 'fence ahead', 1, 12);
ends($s{b}, 'b', 'ahead');
is(instances('a', 'fence ahead'), '1 committed', 'who looks sees what is in the log before');
$s{b}->finish;
same('fences');

attempted($s{a}, 'lost', 1, 12);
ends($s{a}, 'a', 'lost');
mip_sql($node{a}, 'SELECT pg_terminate_backend(' . $s{a}->pid . ')');
$s{a}->ends_refused('08007', 'who is ended does not know what has become of it');
$s{a} = session($node{a}, 'client of a again');
is(instances('b', 'lost'), '1 committed', 'who asks does, at any replica');
same('lost');
is(value('a', 12), 2, 'and so it has happened');

# an applier that begins anew reads fences, too
attempted($s{b}, 'kept fence', 1, 13);
is(instances('a', 'kept fence'), '', 'a fence');
start_applier($_) for keys %node;
receive($_) for keys %node;
ends($s{b}, 'b', 'late');
same('kept fence');
$s{b}->ends_refused('40001', 'is remembered');

# who waits for one may go
$s{a}->send_sql("SELECT mip.instances('cancelled')")->begun;
take('a');
mip_sql($node{a}, 'SELECT pg_cancel_backend(' . $s{a}->pid . ')');
$s{a}->ends_refused('57014', 'who waits for a fence may be cancelled');
same('cancelled');

# within an instance there is none
attempted($s{a}, 'inside', 1, 14);
is($s{a}->sql("SELECT xinst || ' ' || state FROM mip.instances('inside')"), '1 active', 'an instance does not shut itself out');
ends($s{a}, 'a', 'inside');
same('inside');
is(($s{a}->finish)[0], 'committed', 'and is committed');

# ---- refusals ----

is(fenced($s{a}, 'a', "SELECT mip.refuse('never', 7, '{}')"), 't', 'an instance is refused');
is(kept($_, 'never'), '7 postgres aborted', "at $_") for keys %node;
$s{b}->refused("BEGIN; SELECT mip.begin('never', 7)", 'MP004', 'it does not begin elsewhere');
$s{b}->sql('ROLLBACK');
attempted($s{b}, 'never', 8, 15);
ends($s{b}, 'b', 'another');
same('never');
is(($s{b}->finish)[0] =~ /committed/, 1, 'another one of the family is committed');
is(fenced($s{c}, 'c', "SELECT mip.refuse('never', 8, '{}')") =~ /MP001|^f/, 1, 'and cannot be refused any more');
is(fenced($s{c}, 'c', "SELECT mip.refuse('never', 9, '{}')") =~ /MP001/, 1, 'nor can any other one');
is(kept('a', 'never'), '7 postgres aborted, 8 what another postgres', 'nothing is noted then');

for my $case (["SELECT mip.refuse('cancelled', 7, '{}')", '08007', '7 postgres aborted'], ["SELECT mip.instances('looked for')", '57014', ''])
{
	$s{a}->send_sql($case->[0]);
	take('a');
	mip_sql($node{a}, 'SELECT pg_cancel_backend(' . $s{a}->pid . ')');
	$s{a}->ends_refused($case->[1], "cancelled, and in the log: $case->[0]");
	receive($_) for sort keys %node;
	is(kept('b', $case->[2] ? 'cancelled' : 'looked for'), $case->[2], '... where it is noted, or not');
}

# ... between its verdict and its end
for my $case (["SELECT mip.refuse('stopped', 7, '{}')", 'stopped'], ["SELECT count(*) FROM mip.rollback('stopped too', 7)", 'stopped too'])
{
	my $u = session($node{a}, 'who is stopped');
	$u->send_sql($case->[0]);
	take('a');
	kill 'STOP', $u->pid;
	receive($_) for sort keys %node;
	mip_sql($node{a}, 'SELECT pg_cancel_backend(' . $u->pid . ')');
	kill 'CONT', $u->pid;
	$u->ends_refused('08007', "cancelled when it has its verdict: $case->[0]");
	is(kept('b', $case->[1]), '7 postgres aborted', '... which stays');
}

attempted($s{b}, 'begun', 1, 15);
is(fenced($s{a}, 'a', "SELECT mip.refuse('begun', 1, '{}')"), 't', 'one that has begun elsewhere is refused');
$s{b}->refused("SELECT mip.commit_one_phase('what', 'late')", '(?:MP005|57P01)', 'it is doomed there');
$s{b}->quit;
$s{b} = session($node{b}, 'client of b again');

attempted($s{b}, 'given up', 1, 15);
is(fenced($s{a}, 'a', "SELECT count(*) FROM mip.rollback('given up', 1)"), '1', 'one is given up elsewhere');
$s{b}->quit;
$s{b} = session($node{b}, 'client of b again');
$s{b}->refused("BEGIN; SELECT mip.begin('given up', 1)", 'MP004', 'and so for all');
$s{b}->sql('ROLLBACK');

# a note that only some have any more
is(fenced($s{a}, 'a', "SELECT mip.refuse('used again', 7, '{}')"), 't', 'an XINST is refused');
mip_sql($node{b}, 'SET mip.retention_timeless = 1; SET mip.debug_clock_offset = 2; SELECT mip.expire()');
is(kept('b', 'used again'), '', 'and forgotten at a replica');
attempted($s{b}, 'used again', 7, 15);
ends($s{b}, 'b', 'again');
same('used again');
is(($s{b}->finish)[0] =~ /committed/, 1, 'which lets it run');
is(kept($_, 'used again'), '7 what again postgres', "it is committed at $_") for keys %node;

# who looks does not end what runs where he looks
attempted($s{a}, 'looked at', 1, 15);
is(mip_sql($node{a}, "SELECT xinst || ' ' || state FROM mip.instances('looked at')"), '1 active', 'one that runs is seen');
ends($s{a}, 'a', 'looked at');
same('looked at');
is(($s{a}->finish)[0] =~ /committed/, 1, 'and goes on');

$s{a}->refused(q[SELECT mip.forget('one')], '0A000', 'nothing is forgotten at one replica');

# ---- whose they are ----

$sibling = session($node{a}, 'owner');
$sibling->sql('SET ROLE owner');
attempted($sibling, 'of owner', 1, 16);
is(fenced($s{a}, 'a', "SELECT mip.refuse('of owner', 1, '{}')"), 't', 'a superuser refuses an instance of another role');
$sibling->quit;
is(kept($_, 'of owner'), '1 owner aborted', "it stays that of its owner at $_") for keys %node;

# what runs at one replica only does not keep a refusal from that one
$sibling = session($node{b}, 'stranger at b');
$sibling->sql('SET ROLE stranger');
attempted($sibling, 'taken', 1, 16);
$s{a}->sql('SET ROLE owner');
is(fenced($s{a}, 'a', "SELECT mip.refuse('taken', 5, '{}')"), 't', 'an instance is refused while a stranger has its family elsewhere');
is(kept($_, 'taken'), '5 owner aborted', "that is noted at $_, too") for keys %node;
$sibling->quit;

attempted($s{a}, 'owned', 1, 16);
ends($s{a}, 'a', 'owned');
same('owned');
$s{a}->finish;
$s{b}->sql('SET ROLE stranger');
$s{b}->refused($_, '42501', "a stranger: $_") for ("SELECT mip.instances('owned')", "SELECT mip.refuse('owned', 3, '{}')", "SELECT mip.rollback('owned', 3)");
is(scalar waiting('b'), 0, 'who may not know has nothing ordered');
$s{$_}->sql('RESET ROLE') for 'a', 'b';

mip_sql($node{a}, 'CREATE ROLE nobody IN ROLE owner');
$s{a}->sql('SET ROLE nobody');
attempted($s{a}, 'unknown', 1, 16);
ends($s{a}, 'a', 'unknown');
receive('a');
$s{a}->finish;
$applier{b}->refused(receive_sql($behind{b} + 1), '42704', 'a replica without the role waits');
start_applier('b');
mip_sql($node{$_}, 'CREATE ROLE nobody IN ROLE owner') for 'b', 'c';
same('a role');
is(kept('b', 'unknown'), '1 what unknown nobody', 'and goes on once it has it');
$s{a}->sql('RESET ROLE');

# ---- crashes ----

for my $point ('queued', 'certified', 'turn', 'row')
{
	my $pid = postmaster_pid($node{a});
	attempted($s{a}, "crash $point", 1, 17);
	$s{a}->sql("SET mip.debug_stop_at = 'crash:$point'");
	$s{a}->send_sql("SELECT state FROM mip.commit_one_phase('what', 'crash')");
	if ($point ne 'queued')
	{
		take('a');
		$applier{a}->send_sql(receive_sql(++$behind{a}));
	}
	$s{a} = after_crash('a', $pid, $s{a});
	same("a crash when a commit is at: $point");
	is(kept($_, "crash $point"), $point eq 'queued' ? '' : '1 what crash postgres', "it is known at $_ whether it has been") for keys %node;
}
for my $point ('certified', 'turn', 'row')
{
	attempted($s{a}, "error $point", 1, 18);
	$s{a}->sql("SET mip.debug_stop_at = 'error:$point'");
	ends($s{a}, 'a', 'error');
	is(receive('a'), 'applied', "who fails at: $point, has not undone it");
	$s{a}->ends_refused('08007', 'nor knows it');
	$s{a}->sql('RESET mip.debug_stop_at');
	same("an error at: $point");
	is(kept('a', "error $point"), '1 what error postgres', 'it is committed');
}

# ---- a refusal, where the family becomes another role's before it comes ----

$s{b}->sql('SET ROLE owner');
$s{b}->send_sql("SELECT mip.refuse('becomes', 9, '{}')");
take('b');
receive('b');
is(($s{b}->finish)[0], 't', 'a role refuses one of its own');
is(fenced($s{a}, 'a', "SELECT mip.refuse('becomes', 5, '{}')") =~ /40001/, 1, 'a superuser does not know of that, and is told');
is(fenced($s{a}, 'a', "SELECT mip.refuse('becomes', 5, '{}')"), 't', '... and refuses it once he does');
$s{b}->refused(q[BEGIN; SELECT mip.begin('becomes', 5)], 'MP004', 'it does not begin any more');
$s{b}->sql('ROLLBACK; RESET ROLE');
same('it is refused everywhere');

# what only runs at one replica is not whose the family is
$sibling = session($node{a}, 'stranger at a');
$sibling->sql('SET ROLE stranger');
attempted($sibling, 'run beside', 1, 16);
$s{b}->sql('SET ROLE owner');
is(fenced($s{b}, 'b', "SELECT mip.refuse('run beside', 9, '{}')"), 't', 'a role refuses one of its own while a stranger has its family elsewhere');
$s{b}->sql('RESET ROLE');
is(fenced($s{a}, 'a', "SELECT mip.refuse('run beside', 5, '{}')"), 't', 'so does a superuser there');
is(fenced($s{a}, 'a', "SELECT xinst || ' ' || state FROM mip.rollback('run beside', 1) WHERE xinst = 1"), '1 aborted', 'who also rolls back what runs');
is(kept($_, 'run beside'), '1 owner aborted, 5 owner aborted, 9 owner aborted', "... at $_") for keys %node;
$sibling->quit;

# ---- a fence, while a definition is executed ----

$s{a}->send_sql(q[SELECT mip.replicate_ddl('CREATE TABLE defined (i int)')]);
take('a');
$s{b}->send_sql(q[SELECT count(*) FROM mip.instances('fenced')]);
published('b');
receive('b');
take('b');
same('a definition');
is(join('', $s{b}->finish), '0', 'nobody is refused who only asks');
is(($s{a}->finish)[1], '', '... nor who defines');

# ---- what is prepared ----

my $fresh = mip_node('fresh', 'mip.member' => 'fresh');
mip_sql($fresh, q[CREATE TABLE acct (id int) USING mip; BEGIN; INSERT INTO acct VALUES (1); PREPARE TRANSACTION 'p']);
$fresh->append_conf('postgresql.conf', "mip.replicated_database = 'postgres'");
$fresh->restart;
my $superuser = session($fresh, 'client of fresh');
$superuser->refused($_, '55000', "beside what is prepared: $_") for 'SELECT mip.replica_settings(1000)', 'SELECT mip.replica_start()';
$superuser->sql(q[ROLLBACK PREPARED 'p']);
isnt($superuser->sql('SELECT mip.replica_settings(1000)'), '', 'once it is not any more');

# ---- what is refused ----

$s{a}->refused(q[BEGIN; SELECT mip.begin('x', 1, '{store,bank}')], '0A000', 'a request over several sites');
$s{a}->sql('ROLLBACK');
attempted($s{a}, 'x', 1, 19);
$s{a}->refused('SELECT mip.prepare(NULL, NULL)', '0A000', 'a prepare');
$s{a}->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
$s{a}->sql(q[SELECT mip.begin('x', 2)]);
$s{a}->refused('UPDATE acct SET v = 0 WHERE id = 1', '0A000', 'a serializable one');
$s{a}->sql('ROLLBACK; BEGIN ISOLATION LEVEL SERIALIZABLE');
$s{a}->sql(q[SELECT mip.begin('x', 2)]);
$s{a}->refused('SELECT mip.commit_one_phase(NULL, NULL)', '0A000', 'also one that has changed nothing');
same('what is refused');

done_testing();
