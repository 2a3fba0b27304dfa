# A replicated site: what a replica says of it. Who is how far behind, what has been refused and why, and whom flow
# control has slowed down.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use Test::More;

first_replica('a', q[
	SET default_table_access_method = mip;
	CREATE TABLE acct (id int PRIMARY KEY, v int NOT NULL DEFAULT 0);
	INSERT INTO acct (id) SELECT generate_series(1, 20);
	CREATE TABLE other (id int PRIMARY KEY, v int NOT NULL DEFAULT 0);
	INSERT INTO other (id) SELECT generate_series(1, 20);
	CREATE TABLE "Odd schema.name" (id int PRIMARY KEY, acct int REFERENCES acct);
	CREATE TABLE parted (id int, part int, v int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
	CREATE TABLE parted1 PARTITION OF parted FOR VALUES IN (1);
	CREATE TABLE parted2 PARTITION OF parted FOR VALUES IN (2);
	INSERT INTO parted VALUES (1, 1, 0), (1, 2, 0);
	DO $$ BEGIN FOR i IN 1..70 LOOP EXECUTE format('CREATE TABLE many%s (id int PRIMARY KEY)', i); END LOOP; END $$;
	CREATE FUNCTION moment() RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT clock_timestamp()::text';]);
join_site('b', 'a');
my %s = map { $_ => session($node{$_}, "client of $_") } keys %node;
my $ddl = session($node{a}, 'ddl');

# Counts of refusals, "TABLE REASON COUNT"
sub refusals
{
	my ($member) = @_;
	return mip_sql($node{$member}, "SELECT string_agg(concat_ws(' ', coalesce(relation::text, '-'), reason, refused), ', ' ORDER BY relation::text, reason) FROM mip.refusals");
}

my @refused;	# of all that has been refused so far

# One more is refused, for that table and reason, and counted by both.
sub counted
{
	my ($what, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	push @refused, $what;
	receive($_) for sort keys %node;
	my %count;
	$count{$_}++ for @refused;
	for my $member (sort keys %node)
	{
		my %found = map { (/(.*) (\d+)$/)[ 0, 1 ] } split /, /, refusals($member);
		is_deeply(\%found, \%count, "$name: counted at $member");
		is(mip_sql($node{$member}, 'SELECT refused FROM mip.replication'), scalar @refused, "$name: among all, at $member");
	}
	return;
}

# Two at the same time, the second of which is refused
sub loses
{
	my ($first, $second, $what, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s{a}->sql("BEGIN; $first");
	$s{b}->sql("BEGIN; $second");
	commit($s{$_}, $_) for 'a', 'b';
	receive($_) for 'b', 'a';
	$s{b}->ends_refused('40001', $name);
	is(($s{a}->finish)[1], '', "$name: the other one stays");
	counted($what, $name);
	return;
}

# ---- what is refused, and why ----

is(refusals($_), '', "nothing is refused yet, at $_") for keys %node;
loses('UPDATE acct SET v = 1 WHERE id = 1', 'UPDATE acct SET v = 2 WHERE id = 1', 'acct conflict', 'the same row');
loses('UPDATE other SET v = 1 WHERE id = 1; UPDATE acct SET v = 1 WHERE id = 2', 'UPDATE acct SET v = 1 WHERE id = 3; UPDATE other SET v = 2 WHERE id = 1',
	'other conflict', 'one of two tables');
loses('INSERT INTO "Odd schema.name" VALUES (1, 4)', 'UPDATE other SET v = 5 WHERE id = 7; DELETE FROM acct WHERE id = 4', 'acct conflict', 'a row that somebody refers to');
loses('DELETE FROM acct WHERE id = 5', 'INSERT INTO other VALUES (30); INSERT INTO "Odd schema.name" VALUES (2, 5)', '"Odd schema.name" conflict', 'a reference');
loses('UPDATE parted SET v = 1 WHERE part = 2', 'UPDATE parted SET v = 2 WHERE part = 2', 'parted2 conflict', 'a row of a partition');
loses('TRUNCATE parted', 'INSERT INTO parted VALUES (2, 1)', 'parted1 conflict', 'a table that somebody has made empty');
my $many = join '; ', map { "INSERT INTO many$_ VALUES (1)" } 1 .. 70;
loses('INSERT INTO many63 VALUES (1)', $many, 'many63 conflict', 'the last table that can be told');
loses('INSERT INTO many64 VALUES (2)', $many =~ s/many64 VALUES \(1\)/many64 VALUES (2)/r =~ s/many63 VALUES \(1\)/many63 VALUES (2)/r,
	'- conflict', 'one behind it');

$s{b}->sql('BEGIN; UPDATE other SET v = 3 WHERE id = 3');
define($ddl, 'ALTER TABLE acct ADD x int');
take('a');
receive('a');
is(($ddl->finish)[1], '', 'a definition');
commit($s{b}, 'b');
counted('- definition', 'what began before a definition');
$s{b}->ends_refused('40001', 'it is told');

$s{b}->send_sql('UPDATE other SET v = 4 WHERE id = 4');
take('b');
define($ddl, 'ALTER TABLE acct DROP x');
take('a');
counted('- change', 'a definition behind a change');
take('a');
receive($_) for keys %node;
is(($_->finish)[1], '', 'both are done') for $ddl, $s{b};

for my $member ('a', 'b')
{
	$s{$member}->sql("BEGIN; SELECT mip.begin('both', 1 + ascii('$member') - ascii('a')); UPDATE acct SET v = v + 1 WHERE id = 8 + ascii('$member')- ascii('a')");
	$s{$member}->send_sql("SELECT state FROM mip.commit_one_phase('what', 'done')");
	take($member);
}
counted('- request', 'the second one of a request');
$_->finish for values %s;
$s{b}->sql('ROLLBACK');

done($s{a}, 'UPDATE acct SET v = 9 WHERE id = 9', 'one that comes again', 'acct');
push @log, $log[-1];
counted('- repeated', 'a message that comes twice');

# more than the log's settings say that is remembered
$s{b}->sql('BEGIN; UPDATE acct SET v = 14 WHERE id = 14');
for my $i (1, 2)
{
	push @log, ($log[-1]) x 600;
	push @refused, ('- repeated') x 600;
	for my $member (keys %node)
	{
		$applier{$member}->sql(join ";\n", map { receive_sql($_) } $behind{$member} + 1 .. @log);
		$behind{$member} = @log;
	}
	done($s{a}, "UPDATE acct SET v = $i WHERE id = 15", 'one that can come again', 'acct');
}
commit($s{b}, 'b');
counted('- forgotten', 'who knows of less than is remembered');
$s{b}->ends_refused('40001', 'he is told');

define($ddl, 'ALTER TABLE acct ADD z text DEFAULT moment()');
take('a');
for ('a', 'b')
{
	receive($_, @log - 1);
	$applier{$_}->refused(receive_sql(scalar @log), '55000', 'a definition that comes to something else each time');
	start_applier($_);
	mip_sql($node{$_}, 'SELECT mip.replica_skip(' . @log . ')');
}
counted('- skipped', 'one that is left out');
$ddl->ends_refused('55000', 'it is told');

mip_sql($node{b}, $_) for 'SET ROLE pg_monitor; TABLE mip.refusals', 'SET ROLE pg_monitor; TABLE mip.members';
define($ddl, 'DROP TABLE other');
take('a');
receive($_) for keys %node;
is(($ddl->finish)[1], '', 'a table goes');
like(refusals('a'), qr/\b\d+ conflict 1\b/, 'of one that is not there any more there is the number');

# ---- how far behind ----

# `$member` tells of itself, and `a` hears it.
sub tells_a { my ($member) = @_; append_news($member, 'M'); receive('a'); return; }

sub behind { my ($member, $what) = @_; return mip_sql($node{a}, "SELECT $what FROM mip.members WHERE member = '$member'"); }

tells_a($_) for 'b', 'a';
receive('b');
is(behind($_, "behind_bytes || ' ' || lag"), '0 00:00:00', "nobody is behind by what members tell of themselves: $_") for 'a', 'b';
mip_sql($node{a}, 'SELECT pg_sleep(0.3)');
my $begun = mip_sql($node{a}, 'SELECT clock_timestamp()');
my $bytes = 0;
for (1 .. 3)
{
	$s{a}->send_sql("UPDATE acct SET v = $_ WHERE id = 10");
	take('a');
	$bytes += length($log[-1]) / 2;
	receive('a');
	$s{a}->finish;
}
is(behind('b', 'behind_bytes'), $bytes, 'behind by so many bytes');
is(behind('b', "lag > '0' AND lag <= clock_timestamp() - '$begun'"), 't', '... for as long as they are there, and not for what came before them');
mip_sql($node{a}, 'SELECT pg_sleep(0.3)');
is(behind('b', "lag >= '0.3 s'"), 't', '... and longer');
tells_a('a');
is(behind('b', 'behind_bytes'), $bytes, 'who tells of himself adds nothing');
is(behind('a', "behind_bytes || ' ' || lag"), '0 00:00:00', 'nor is he behind');
receive('b');
tells_a('b');
is(behind('b', "behind_bytes || ' ' || lag"), '0 00:00:00', 'who has caught up is not behind');
receive('b');
my %counted = map { mip_sql($node{$_}, 'SELECT bytes FROM mip.applied ORDER BY position DESC LIMIT 1') => 1 } keys %node;
is(keys %counted, 1, 'both have counted the same');
$node{a}->restart;
$s{a} = session($node{a}, 'client of a again');
start_applier('a');
receive('a');
$s{a}->send_sql('UPDATE acct SET v = 20 WHERE id = 11');
take('a');
$bytes = length($log[-1]) / 2;
receive('a');
$s{a}->finish;
is(behind('b', 'behind_bytes'), $bytes, 'a restart goes on counting');
is(refusals('a'), '', '... and begins anew with what is refused');
receive('b');

# ---- flow control ----

sub slowed { return mip_sql($node{a}, 'SELECT slowed, stopped FROM mip.replication'); }

mip_sql($node{a}, 'ALTER SYSTEM SET mip.flow_control = 2');
$node{a}->reload;
wait_until(sub { mip_sql($node{a}, 'SHOW mip.flow_control') eq '2' });
tells_a('b');
for my $slowed (0, 0, 1)
{
	$s{a}->send_sql('UPDATE acct SET v = v + 1 WHERE id = 13');
	take('a');
	receive('a');
	is(($s{a}->finish)[1], '', 'b is ' . behind('b', 'behind') . ' behind');
	is(slowed(), "$slowed|0", '... and nobody is refused');
}
$s{a}->refused('UPDATE acct SET v = 0 WHERE id = 13', '53400', 'by twice as much as is allowed');
is(slowed(), '1|1', 'it is counted');

done_testing();
