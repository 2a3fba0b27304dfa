# A replicated site: what is committed at one replica is committed at all, in the order of one log, or at none. The
# log is an array here (MipTest::Replicas).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

sub checksum { return mip_sql($node{ $_[0] }, "SELECT mip.relation_checksum('parent') || mip.relation_checksum('child')"); }

sub same { my ($name) = @_; all_are_same($name, 'parent', 'child'); return; }

sub value { my ($member, $id) = @_; return mip_sql($node{$member}, "SELECT v FROM parent WHERE id = $id"); }

first_replica('a', q[
	CREATE TABLE parent (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, t text) USING mip;
	CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent) USING mip;
	CREATE TABLE unhashed (id bit(8) PRIMARY KEY) USING mip;
	CREATE TABLE of_unhashed (id int PRIMARY KEY, parent bit(8) REFERENCES unhashed) USING mip;
	INSERT INTO unhashed VALUES ('00000001'), ('00000010');
	CREATE TABLE keyless (n int) USING mip;
	CREATE TABLE noted (n int) USING mip;
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO noted VALUES (NEW.id); RETURN NEW; END';
	CREATE TRIGGER note AFTER INSERT ON parent FOR EACH ROW EXECUTE FUNCTION note();
	ALTER TABLE parent ENABLE ALWAYS TRIGGER note;
	CREATE ROLE writer LOGIN;
	GRANT INSERT ON child TO writer;
	INSERT INTO parent (id) SELECT generate_series(1, 20);]);
join_site($_, 'a') for 'b', 'c';

my %s = map { $_ => session($node{$_}, "client of $_") } keys %node;

# ---- what is committed ----

$s{a}->send_sql("UPDATE parent SET v = 1 WHERE id = 1");
take('a');
is(receive('b'), 'applied', 'a plain statement gets to another replica');
is(value('a', 1), 0, 'where it was made it is not visible before it has its position');
is(receive('a'), 'committed', 'there its own session commits it');
$s{a}->finish;
is($s{a}->sql('SELECT mip.last_position()'), 2, 'which knows its position');
is($s{b}->sql('SELECT mip.last_position()'), '', 'and others none');
$s{c}->send_sql('SELECT mip.wait_for(2)')->begun;
receive('c');
$s{c}->finish;
is(value($_, 1), 1, "it is at $_") for keys %node;
$s{a}->sql('UPDATE parent SET v = v WHERE id = 1000');
pass('nothing changed: nothing to wait for');

$s{a}->sql('BEGIN');
$s{a}->sql("INSERT INTO parent (id) VALUES (21)");
commit($s{a}, 'a');
same('a trigger');
$s{a}->finish;
is(mip_sql($node{$_}, 'SELECT count(*) FROM noted WHERE n = 21'), 1, "what a trigger that always fires has done is done once at $_")
  for keys %node;

my $writer = session($node{b}, 'writer');
$writer->sql('SET ROLE writer');
$writer->send_sql('INSERT INTO child VALUES (1, 2)');
take('b');
same('a role that may only insert');
$writer->finish;

# ---- verdicts ----

# both change the row before they know of each other
$s{$_}->sql("BEGIN; UPDATE parent SET v = v + 10 WHERE id = 3") for 'a', 'b';
commit($s{a}, 'a');
commit($s{b}, 'b');
is(receive('c'), 'applied refused', 'the later one of two that change a row is refused');
is(receive('a'), 'committed refused', 'everywhere');
receive('b', @log - 1);
$s{b}->ends_refused('40001', 'and told so, as soon as the other one is applied');
is(receive('b'), 'refused', 'when it is its turn, too');
$s{a}->finish;
is(value($_, 3), 10, "one has been made at $_") for keys %node;

# different rows
$s{$_}->sql("BEGIN; UPDATE parent SET v = v + 10 WHERE id = 4 + ascii('$_') - ascii('a')") for 'a', 'b', 'c';
commit($s{$_}, $_) for 'a', 'b', 'c';
same('different rows');
$s{$_}->finish for 'a', 'b', 'c';
is(value('a', $_), 10, "row $_ has been changed") for 4 .. 6;

# the same new key
$s{$_}->sql("BEGIN; INSERT INTO parent (id) VALUES (30)") for 'a', 'b';
commit($s{a}, 'a');
commit($s{b}, 'b');
receive('b');
$s{b}->ends_refused('40001', 'two that insert the same key');
same('the same key');
$s{a}->finish;

# References take no locks where they are applied: a parent that is deleted there while a child comes in
$s{a}->sql('BEGIN; INSERT INTO child VALUES (2, 7)');
$s{b}->sql('BEGIN; DELETE FROM parent WHERE id = 7');
commit($s{a}, 'a');
is(receive('b'), 'applied', 'a child comes to where its parent is about to be deleted');
commit($s{b}, 'b');
is(receive('b'), 'refused', 'which is refused, though it is published after that');
$s{b}->ends_refused('40001', 'and told so');
same('a child whose parent is deleted');
$s{a}->finish;
is(mip_sql($node{$_}, 'SELECT count(*) FROM child c LEFT JOIN parent p ON p.id = c.parent WHERE p.id IS NULL'), 0, "no orphan at $_")
  for keys %node;

# ... whose key cannot be hashed
$s{a}->sql(q[BEGIN; INSERT INTO of_unhashed VALUES (1, '00000001')]);
$s{b}->sql(q[BEGIN; DELETE FROM unhashed WHERE id = '00000001']);
commit($s{a}, 'a');
receive('b');
commit($s{b}, 'b');
is(receive('b'), 'refused', 'likewise, with a key that cannot be hashed');
$s{b}->ends_refused('40001', 'and told so');
same('a key that cannot be hashed');
$s{a}->finish;

# ... the other way round
$s{a}->sql('BEGIN; DELETE FROM parent WHERE id = 8');
$s{b}->sql('BEGIN; INSERT INTO child VALUES (3, 8)');
commit($s{a}, 'a');
commit($s{b}, 'b');
receive('b');
$s{b}->ends_refused('40001', 'a child whose parent has been deleted');
same('a deleted parent');
$s{a}->finish;

# who waits for a row of his own replica is not refused for that
my $other = session($node{a}, 'another client of a');
$s{a}->sql('BEGIN; UPDATE parent SET v = v + 1 WHERE id = 9');
$other->sql('BEGIN; SET LOCAL deadlock_timeout = 10000');
$other->send_sql('UPDATE parent SET v = v + 1 WHERE id = 9')->waits;
commit($s{a}, 'a');
receive('a');
$other->finish;
commit($other, 'a');
is(receive('a'), 'committed', 'two that change a row one after the other at one replica both stay');
$s{a}->finish;
$other->finish;
same('one after the other');
is(value('c', 9), 2, 'with what both have done');

# ---- in the way ----

$s{a}->sql('BEGIN; UPDATE parent SET v = 100 WHERE id = 10');
$s{b}->sql('BEGIN; UPDATE parent SET v = 200 WHERE id = 10');
commit($s{a}, 'a');
receive('b');
my ($out, $err) = $s{b}->send_sql('SELECT 1')->finish;
like($err, qr/40001|terminating|closed|lost/, 'whose transaction is idle, and in the way, loses its session');
$s{b} = session($node{b}, 'client of b again');
receive('a');
$s{a}->finish;

# While it runs, and while it catches errors
$s{a}->sql('BEGIN; UPDATE parent SET v = 101 WHERE id = 10');
$s{b}->sql('BEGIN; UPDATE parent SET v = 201 WHERE id = 10');
$s{b}->send_sql('SELECT pg_sleep(600)')->begun;
commit($s{a}, 'a');
receive('b');
$err = $s{b}->ends_refused('40001', 'who runs is cancelled');
like($err, qr/another replica/, 'and told why');
$s{b}->sql('ROLLBACK');
receive('a');
$s{a}->finish;

# A lock that no key tells of: who waits for his verdict with it cannot keep it
$s{a}->sql('BEGIN; UPDATE parent SET v = 102 WHERE id = 10');
$s{b}->sql('BEGIN; SELECT FROM parent WHERE id = 10 FOR UPDATE; UPDATE parent SET v = 300 WHERE id = 11');
commit($s{a}, 'a');
commit($s{b}, 'b');
receive('b', @log - 1);
$s{b}->ends_refused('08007', 'who is in the way, and may be in the log, does not know');
is(receive('b'), 'applied', 'it was, and is made as if it were of somebody else');
same('in the way');
$s{a}->finish;
is(value('b', 11), 300, 'so it has happened');

# ---- going while one waits ----

$s{a}->sql('BEGIN; UPDATE parent SET v = 1 WHERE id = 12');
$s{a}->send_sql('COMMIT')->begun;
$node{a}->poll_query_until('postgres', 'SELECT waiting = 1 FROM mip.replication');
mip_sql($node{a}, 'SELECT pg_cancel_backend(' . $s{a}->pid . ')');
$s{a}->ends_refused('57014', 'cancelled before anybody has taken it: an ordinary cancel');
is(scalar waiting('a'), 0, 'and there is nothing to be taken');

$s{a}->sql('BEGIN; UPDATE parent SET v = 2 WHERE id = 12');
commit($s{a}, 'a');
mip_sql($node{a}, 'SELECT pg_cancel_backend(' . $s{a}->pid . ')');
$s{a}->ends_refused('08007', 'cancelled behind that: it is not known');
is(receive('a'), 'applied', 'but it is in the log');
is(value('a', 12), 2, 'and so it has happened');

$s{a}->sql('BEGIN; UPDATE parent SET v = 3 WHERE id = 12');
commit($s{a}, 'a');
mip_sql($node{a}, 'SELECT pg_terminate_backend(' . $s{a}->pid . ')');
$s{a}->ends_refused('08007', 'ended');
is(receive('a'), 'applied', 'likewise');
$s{a} = session($node{a}, 'client of a again');

# certified, and then it fails
$s{a}->sql("BEGIN; UPDATE parent SET v = 4 WHERE id = 12; SET mip.debug_stop_at = 'error:certified'");
commit($s{a}, 'a');
is(receive('a'), 'applied', 'who fails behind the verdict has not undone it');
$s{a}->ends_refused('08007', 'nor knows it');
$s{a}->sql('RESET mip.debug_stop_at');
is(value('a', 12), 4, 'it has happened');
same('sessions that go');

# whoever has taken it goes, too
$s{a}->send_sql('UPDATE parent SET v = 5 WHERE id = 12');
my $taker = session($node{a}, 'taker');
$node{a}->poll_query_until('postgres', 'SELECT waiting = 1 FROM mip.replication');
$taker->sql('SELECT count(*) FROM mip.replica_take(timeout_ms => 10000)');
$taker->quit;
my @taken = take('a');
is(@taken, 1, 'what a session has taken, and is not known since, is taken again by another one');
$taker = session($node{a}, 'taker');
is_deeply([ take('a') ], \@taken, 'with the same id');
receive('a');
$s{a}->finish;
is(scalar waiting('a'), 0, 'not once it is here');
same('takers that go');

# ... or takes it back
$s{a}->send_sql('UPDATE parent SET v = 8 WHERE id = 12');
$node{a}->poll_query_until('postgres', 'SELECT waiting = 1 FROM mip.replication');
is($taker->sql(q[BEGIN; SAVEPOINT x; SELECT count(*) FILTER (WHERE get_byte(message, 5) <> ascii('M')) FROM mip.replica_take(timeout_ms => 10000); ROLLBACK TO x; COMMIT]), '1', 'what is taken in a savepoint');
is($taker->sql(q[SELECT count(*) FILTER (WHERE get_byte(message, 5) <> ascii('M')) FROM mip.replica_take(timeout_ms => 0)]), '1', '... that is rolled back is taken again');
take('a');
receive('a');
$s{a}->finish;
same('takers that roll back');
$s{a}->refused('SELECT mip.wait_for(-1)', '22023', 'a position that there is not');

# what is too long for the log
for my $taken (0, 1)
{
	$s{a}->send_sql('UPDATE parent SET v = 6 WHERE id = 12');
	$node{a}->poll_query_until('postgres', 'SELECT waiting = 1 FROM mip.replication');
	mip_sql($node{a}, 'SELECT count(*) FROM mip.replica_take(timeout_ms => 10000)') if $taken;
	is(mip_sql($node{a}, q[SELECT count(*) FROM mip.replica_take(timeout_ms => 0, max_message => 100) WHERE get_byte(message, 5) <> ascii('M')]), 0, 'what is too long is not taken');
	$s{a}->ends_refused($taken ? '08007' : '54000', $taken ? '... and may have been before' : '... and who waits for it is told');
}
done($s{a}, 'UPDATE parent SET v = 7 WHERE id = 12', 'nobody waits behind it', 'parent');

# ---- crashes ----

for my $point ('queued', 'certified')
{
	my $pid = postmaster_pid($node{a});
	$s{a}->sql("BEGIN; UPDATE parent SET v = v + 1 WHERE id = 13; SET mip.debug_stop_at = 'crash:$point'");
	$s{a}->send_sql('COMMIT');
	if ($point eq 'certified')
	{
		take('a');
		$applier{a}->send_sql(receive_sql(++$behind{a}));
	}
	$s{a} = after_crash('a', $pid, $s{a});
	same("a crash when a commit is $point");
}
is(value('b', 13), 1, 'one was in the log, the other not');

# a commit is not flushed: the log has it
hold_walwriter($node{a});
$s{a}->send_sql("UPDATE parent SET v = 50 WHERE id = 14");
take('a');
receive('a');
$s{a}->finish;
power_cut($node{a});
$_->quit for $s{a}, $applier{a};
$s{a} = session($node{a}, 'client of a again');
is(value('a', 14), 0, 'a crash has lost what was not flushed');
start_applier('a');
is(receive('a') =~ /applied$/, 1, 'it is made again');
same('what a crash has lost');

# what applies crashes
my $pid = postmaster_pid($node{c});
$applier{c}->sql("SET mip.debug_stop_at = 'crash:apply'");
$s{a}->send_sql("UPDATE parent SET v = 51 WHERE id = 14");
take('a');
$applier{c}->send_sql(receive_sql(++$behind{c}));
starts_again($node{c}, $pid);
start_applier('c');
same('what applies crashes');
$s{a}->finish;

# ---- another log ----

sub diverges
{
	my ($member, $message, $name) = @_;
	my $before = checksum($member);
	$applier{$member}->refused(receive_sql($behind{$member} + 1, $message), 'MP030', $name);
	is(checksum($member), $before, "$name: nothing is changed");
	$applier{$member}->refused(receive_sql($behind{$member} + 1, $message), '55000', "$name: the session does not apply any more");
	start_applier($member);
	receive($member, @log - 1);
	return;
}

# one that has been damaged
$s{a}->send_sql("UPDATE parent SET v = 60 WHERE id = 15");
take('a');
my $damaged = $log[-1];
substr($damaged, -40, 1) =~ tr/0-9a-f/1-9a-f0/;
diverges('b', $damaged, 'a damaged message');
diverges('b', 'ff', 'what is no message');
receive('a');
$s{a}->finish;
same('damage');

# one that comes twice
push @log, $log[-1];
same('a message that comes twice');
is(mip_sql($node{a}, 'SELECT certified FROM mip.applied ORDER BY position DESC LIMIT 1'), 'f', 'it is refused the second time');
$s{a}->send_sql("INSERT INTO keyless VALUES (1)");
take('a');
same('without a key');
$s{a}->finish;
push @log, $log[-1];
receive($_) for keys %node;
is(mip_sql($node{$_}, 'SELECT count(*) FROM keyless'), 1, "also without a key, at $_") for keys %node;

# one that some get, and others not: noticed with the next one of who has it
my @fork = @log;
$s{a}->send_sql("UPDATE parent SET v = 61 WHERE id = 16");
take('a');
receive('a');
$s{a}->finish;
$s{a}->send_sql("UPDATE parent SET v = 62 WHERE id = 17");
take('a');
receive('a');
$s{a}->finish;
$s{b}->send_sql("UPDATE parent SET v = 70 WHERE id = 18");
my ($lost) = map { (split / /)[1] } published('b');
my @all = @log;
@log = (@fork, $lost, $all[-1]);
is(receive('b', @fork + 1), 'committed', 'b reads another message there');
$s{b}->finish;
diverges('b', $all[-1], 'a fork');
@log = @all;

# the verdicts that are read again must be those of this log
my $first = $behind{b};
$applier{b}->quit;
$applier{b} = session($node{b}, 'applier of b');
$behind{b} = $applier{b}->sql('SELECT read_after FROM mip.replica_start()');
receive('b', $first - 1);
$applier{b}->refused(receive_sql($first), 'MP030', 'a log with another message where one has been applied');
leave_site('b');

# a row that is not as it should be
mip_sql($node{c}, q[ALTER SYSTEM SET mip.replicated_database = '']);
$node{c}->restart;
mip_sql($node{c}, 'DELETE FROM parent WHERE id = 19; ALTER SYSTEM RESET mip.replicated_database');
$node{c}->restart;
start_applier('c');
$s{a}->send_sql("UPDATE parent SET v = 80 WHERE id = 19");
take('a');
receive('a');
$s{a}->finish;
receive('c', @log - 1);
like($applier{c}->refused(receive_sql(++$behind{c}), 'MP030', 'a row that is not here'), qr/not there/, 'says which');
leave_site('c');

# ---- members ----

append_news('a', 'M');
is(receive('a'), 'told', 'a member tells of itself');
my $told = @log - 1;
is(mip_sql($node{a}, 'SELECT member, applied, behind, heard IS NOT NULL FROM mip.members'), "a|$told|1|t", 'which is known then');
mip_sql($node{a}, 'SELECT pg_sleep(1.1)');
is(mip_sql($node{a}, 'SELECT count(*) FROM mip.replica_take(timeout_ms => 0)'), 0, 'and it has nothing more to tell');
$applier{a}->quit;
$node{a}->restart;
$s{a} = session($node{a}, 'client of a again');
is(mip_sql($node{a}, 'SELECT member, applied, heard IS NULL FROM mip.members'), "a|$told|t", 'a restart knows it, too');
start_applier('a');
receive('a');
mip_sql($node{a}, "SELECT mip.replica_leave('a')");
append_news('a', 'L');
receive('a');
is(mip_sql($node{a}, 'SELECT count(*) FROM mip.members'), 0, 'one that has left');

# ---- the window ----

is($applier{a}->refused(receive_sql($behind{a} + 2, $log[-1]), '22023', 'a position that is not the next one') ne '', 1);
start_applier('a');
is($behind{a}, 0, 'the log is read again as far as it is remembered');
receive('a');

done_testing();
