# A session of a TAP scenario: psql in the background, with SQLSTATEs, and
# with statements that may be left running.
package MipTest::Session;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

sub new
{
	my ($class, $node, $name) = @_;
	my $self = bless { node => $node, name => $name, count => 0 }, $class;

	$self->{psql} = $node->background_psql('postgres', on_error_stop => 0);
	$self->sql('\set VERBOSITY verbose');
	$self->{pid} = $self->sql('SELECT pg_backend_pid()');
	return $self;
}

sub pid { return $_[0]{pid}; }

# Starts a statement; `finish` waits for its end.
sub send_sql
{
	my ($self, $sql) = @_;
	my $psql = $self->{psql};

	$self->{count}++;
	$psql->{stdout} = $psql->{stderr} = '';
	$psql->{stdin} .=
	  "$sql\n;\n\\echo 'done $self->{count}.'\n\\warn 'done $self->{count}.'\n";
	$psql->{timeout}->start($PostgreSQL::Test::Utils::timeout_default);
	eval { $psql->{run}->pump_nb };
	return $self;
}

# What psql says behind a statement, at both outputs
sub mark { return qr/done $_[0]{count}\.\r?\n/; }

sub has_said
{
	my ($self) = @_;
	my $mark = $self->mark;
	return $self->{psql}{stdout} =~ $mark && $self->{psql}{stderr} =~ $mark;
}

# Has the statement sent last come to its end?
sub is_over
{
	my ($self) = @_;
	eval { $self->{psql}{run}->pump_nb };
	return $self->has_said;
}

# Waits for a statement's end: (output, error). The end of the session is one.
sub finish
{
	my ($self) = @_;
	my $psql = $self->{psql};
	my $mark = $self->mark;

	$psql->{timeout}->start($PostgreSQL::Test::Utils::timeout_default);
	while (!$self->has_said)
	{
		my $goes_on = eval { $psql->{run}->pump };
		die "$self->{name}: timed out" if $psql->{timeout}->is_expired;
		last unless $goes_on;
	}
	my ($out, $err) = ($psql->{stdout}, $psql->{stderr});
	$out =~ s/\r?\n?$mark//;
	$err =~ s/$mark//;
	note "$self->{name}: $out $err";
	return ($out, $err);
}

# Runs a statement that succeeds; returns its output.
sub sql
{
	my ($self, $sql) = @_;
	note "$self->{name}: $sql";
	my ($out, $err) = $self->send_sql($sql)->finish;
	die "$self->{name}: $sql: $err" if $err =~ /ERROR|FATAL|lost|closed/;
	return $out;
}

# A statement fails with this SQLSTATE.
sub refused
{
	my ($self, $sql, $state, $name) = @_;
	note "$self->{name}: $sql";
	my ($out, $err) = $self->send_sql($sql)->finish;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($err, qr/(?:ERROR|FATAL):  $state:/, $name);
	return $err;
}

# The statement sent last fails with this SQLSTATE.
sub ends_refused
{
	my ($self, $state, $name) = @_;
	my ($out, $err) = $self->finish;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($err, qr/(?:ERROR|FATAL):  $state:/, $name);
	return $err;
}

# Is the statement sent last still running after a moment of waiting?
sub waits
{
	my ($self) = @_;
	return $self->{node}->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity"
		  . " WHERE pid = $self->{pid}");
}

# Is it waiting for such a lock? `$lock` is a condition on pg_locks.
sub waits_for
{
	my ($self, $lock) = @_;
	return $self->{node}->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_locks WHERE pid = $self->{pid} AND NOT granted"
		  . " AND $lock");
}

# Waits until the statement sent last has begun.
sub begun
{
	my ($self) = @_;
	$self->{node}->poll_query_until('postgres',
		"SELECT state = 'active' FROM pg_stat_activity WHERE pid = $self->{pid}")
	  or die 'the statement has not begun';
	return;
}

sub quit
{
	my ($self) = @_;
	eval { $self->{psql}->quit };
	return;
}

1;
