# A replicated site in a TAP scenario: its log is an array, and its agent a few functions, so what comes when is up to
# the scenario.
package MipTest::Replicas;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use MipTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(@log %node %applier %behind first_replica start_applier after_crash join_site leave_site waiting published kind take receive_sql
  receive commit all_are_same done define executed waits append_news);

our @log;		# messages, in hexadecimal
our %node;
our %applier;	# sessions
our %behind;	# positions that they have received

my %position;	# of ids

# A server whose database is made by `$sql`, and replicated from then on
sub first_replica
{
	my ($member, $sql, %conf) = @_;
	$node{$member} = mip_node($member, allows_streaming => 1, 'mip.member' => $member, deadlock_timeout => '10ms', %conf);
	mip_sql($node{$member}, $sql);
	$node{$member}->append_conf('postgresql.conf', "mip.replicated_database = 'postgres'");
	$node{$member}->restart;
	push @log, mip_sql($node{$member}, "SELECT encode(mip.replica_settings(1000), 'hex')");
	start_applier($member);
	is(receive($member), 'settings', 'the log begins with its settings');
	return;
}

# A session begins to apply the log there, in place of the one before.
sub start_applier
{
	my ($member) = @_;
	$applier{$member}->quit if $applier{$member};
	$applier{$member} = session($node{$member}, "applier of $member");
	$behind{$member} = $applier{$member}->sql('SELECT read_after FROM mip.replica_start()');
	return;
}

# A server that crashes, of that process, is there again; its applier is, and a session in place of this one.
sub after_crash
{
	my ($member, $pid, $session) = @_;
	starts_again($node{$member}, $pid);
	$session->quit;
	start_applier($member);
	return session($node{$member}, "client of $member again");
}

# A copy of another one
sub join_site
{
	my ($member, $from) = @_;
	$node{$from}->backup("for $member");
	my $new = $node{$member} = PostgreSQL::Test::Cluster->new($member);
	$new->init_from_backup($node{$from}, "for $member");
	$new->append_conf('postgresql.conf', "mip.member = '$member'");
	$new->start;
	start_applier($member);
	receive($member);
	return;
}

# Messages that are waiting at a replica, "ID MESSAGE"; but for what it tells of itself, now and then. They may come in
# so many milliseconds.
sub waiting
{
	my ($member, $timeout) = @_;
	$timeout //= 0;
	my $sql = "SELECT id || ' ' || encode(message, 'hex') FROM mip.replica_take(timeout_ms => $timeout)";
	my @found;
	do { @found = split /\n/, mip_sql($node{$member}, $sql) } while (@found && !grep { !tells($_) } @found);
	return grep { !tells($_) } @found;
}

# The same, where there are some, or will be: a definition may take its time
sub published
{
	my ($member) = @_;
	my @found = waiting($member, 1000 * $PostgreSQL::Test::Utils::timeout_default);
	die "nothing is published at $member" unless @found;
	return @found;
}

sub kind { return chr hex substr $_[0], 10, 2; }
sub tells { return kind((split / /, $_[0])[1]) eq 'M'; }

# They go to the log; the ids
sub take
{
	my ($member) = @_;
	my @ids;
	for (published($member))
	{
		my ($id, $message) = split / /;
		push @ids, $id;
		next if $position{$id};
		push @log, $message;
		$position{$id} = @log;
	}
	return @ids;
}

sub receive_sql
{
	my ($position, $message) = @_;
	return "SELECT mip.replica_receive($position, '\\x" . ($message // $log[ $position - 1 ]) . "')";
}

# A replica receives the log, up to a position; what has become of the messages
sub receive
{
	my ($member, $upto) = @_;
	my @results;
	$upto //= @log;
	push @results, $applier{$member}->sql(receive_sql(++$behind{$member})) while $behind{$member} < $upto;
	return "@results";
}

# Starts a COMMIT, and has its message in the log
sub commit
{
	my ($session, $member) = @_;
	$session->send_sql('COMMIT');
	take($member);
	return;
}

# No more of this one
sub leave_site
{
	my ($member) = @_;
	$applier{$member}->quit;
	$node{$member}->stop('immediate');
	delete @$_{$member} for \%node, \%applier, \%behind;
	return;
}

# All apply what there is. Then they have the same rows of these tables, and the same history.
sub all_are_same
{
	my ($name, @tables) = @_;
	my $sql = 'SELECT ' . join ' || ', map { "mip.relation_checksum('$_')" } @tables;
	receive($_) for sort keys %node;
	my %different = map { mip_sql($node{$_}, $sql) => 1 } keys %node;
	my %histories = map { mip_sql($node{$_}, 'SELECT applied, history FROM mip.replication') => 1 } keys %node;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(keys %different, 1, "$name: all have the same rows");
	is(keys %histories, 1, "$name: and the same history");
	return;
}

# A statement that changes something at `a`; all apply it, and it is done
sub done
{
	my ($session, $sql, $name, @tables) = @_;
	$session->send_sql($sql);
	take('a');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	all_are_same($name, @tables);
	my (undef, $error) = $session->finish;
	is($error, '', "$name: done");
	return;
}

# A session begins to have all replicas execute a command.
sub define
{
	my ($session, $command) = @_;
	$session->send_sql("SELECT mip.replicate_ddl(\$ddl\$$command\$ddl\$)");
	return;
}

# `a` executes a command, which is in the log then.
sub executed
{
	my ($session, $command, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	define($session, $command);
	take('a');
	receive('a');
	is(($session->finish)[1], '', "$name: done where it comes from");
	return;
}

# What comes next there waits, with that error; the session that applies has gone for it.
sub waits
{
	my ($member, $error, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	receive($member, @log - 1);
	$applier{$member}->send_sql(receive_sql($behind{$member} + 1));
	like(($applier{$member}->finish)[1], qr/$error/s, "$name: it waits at $member");
	start_applier($member);
	return;
}

# What a member tells of itself, or of others, goes to the log.
sub append_news
{
	my ($member, $kind) = @_;
	my @found;
	wait_until(sub {
		@found = grep { kind($_) eq $kind } split /\n/, mip_sql($node{$member}, "SELECT encode(message, 'hex') FROM mip.replica_take(timeout_ms => 100)");
	});
	push @log, $found[0];
	return;
}

1;
