# A client that disappears takes its instance with it and nothing else; slots
# of the registry are not lost, however an instance ends.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

# The registry has as many slots as there can be backends and prepared
# transactions: few.
my $node = mip_node(
	'slots',
	max_connections => 8,
	superuser_reserved_connections => 0,
	max_worker_processes => 1,
	max_wal_senders => 0,
	autovacuum_max_workers => 1,
	max_prepared_transactions => 2);

# ---- a backend is terminated in the middle ----

for my $how ('terminated', 'terminated while it waits', 'client gone')
{
	my %s = map { $_ => session($node, "instance $_") } 1, 2;
	my $outsider = session($node, 'outsider');
	fill($node);
	attempt($s{1}, $how, 1);
	attempt($s{2}, $how, 2);
	if ($how eq 'terminated while it waits')
	{
		$outsider->sql('BEGIN');
		$outsider->sql("INSERT INTO b VALUES (7, 7, 'seven')");
		$s{1}->send_sql("INSERT INTO b VALUES (7, 7, 'mine')");
		ok($s{1}->waits, "$how: it waits");
	}
	my $pid = $s{1}->pid;
	$how eq 'client gone'
	  ? $s{1}{psql}{run}->kill_kill
	  : mip_sql($node, "SELECT pg_terminate_backend($pid, 30000)");
	ok( wait_until(
			sub {
				!mip_sql($node,
					"SELECT 1 FROM pg_stat_activity WHERE pid = $pid");
			}),
		"$how: the backend is gone");
	is(states($node, $how), '2 active', "$how: so is the instance");
	$outsider->sql('ROLLBACK') if $how eq 'terminated while it waits';

	$outsider->send_sql('UPDATE a SET v = v + 1000 WHERE id = 1');
	ok($outsider->waits, "$how: outsiders wait for the sibling");
	is($s{2}->sql('SELECT v FROM a WHERE id = 1'),
		'102', "$how: the sibling goes on");
	$s{2}->sql('UPDATE a SET v = v WHERE id = 1');
	$s{2}->sql("SELECT * FROM mip.prepare('', '')");
	mip_sql($node, "SELECT * FROM mip.commit('$how', 2)");
	my ($out, $err) = $outsider->finish;
	is($err, '', "$how: the outsider goes on");
	is(mip_sql($node, 'UPDATE a SET v = v - 1000 WHERE id = 1 RETURNING v'),
		'102', "$how: ... on the winner's version");
	$_->quit for $outsider, values %s;
	is_decided($node, $how);
	is_rows($node, 2, $how);
	is_sound($node, $how);
}

# ---- a thousand of each ending ----

my $times = 1000;

# Runs a script of many transactions in one session.
sub many
{
	my ($name, $stop, $make) = @_;
	my $script = $node->basedir . '/many.sql';
	unlink $script;
	append_to_file($script, "SET client_min_messages = warning;\n"
		. join('', map { $make->($_) } 1 .. $times));
	my ($out, $err) = ('', '');
	IPC::Run::run(
		[
			'psql', '-XAtq', '-v', "ON_ERROR_STOP=$stop", '-f', $script, '-d',
			$node->connstr('postgres')
		],
		'>', '/dev/null', '2>', \$err);
	return $err if !$stop;
	is($err, '', "$name: $times times");
	return;
}

fill($node);
mip_sql($node, q[CREATE TABLE deferred (id int PRIMARY KEY,
	a int REFERENCES a DEFERRABLE INITIALLY DEFERRED) USING mip]);

sub begin { return "BEGIN; SELECT mip.begin('$_[0]', $_[1]);"
	  . " UPDATE a SET v = v + 1 WHERE id = 1;\n"; }

many('rolled back', 1,
	sub { begin("rollback $_[0]", 1) . "ROLLBACK;\n" });
many('prepared and committed', 1,
	sub {
		begin("commit $_[0]", 1)
		  . "SELECT * FROM mip.prepare('', '');\n"
		  . begin("commit $_[0]", 2)
		  . "SELECT * FROM mip.prepare('', '');\n"
		  . "SELECT * FROM mip.commit('commit $_[0]', 2);\n";
	});
many('prepared and rolled back', 1,
	sub {
		begin("undone $_[0]", 1)
		  . "SELECT * FROM mip.prepare('', '');\n"
		  . "SELECT * FROM mip.rollback('undone $_[0]', 1);\n";
	});
many('deferred constraint that holds', 1,
	sub {
		begin("holds $_[0]", 1)
		  . "INSERT INTO deferred VALUES ($_[0], 2);\n"
		  . "SELECT * FROM mip.prepare('', '');\n"
		  . "SELECT * FROM mip.commit('holds $_[0]', 1);\n";
	});
many('one phase', 1,
	sub {
		begin("one $_[0]", 1) . "SELECT * FROM mip.commit_one_phase('', '');\n";
	});

# endings with an error
$times = 200;
my $err = many('failed statement', 0,
	sub { begin("failed $_[0]", 1) . "SELECT 1 / 0;\nROLLBACK;\n" });
is(() = $err =~ /division by zero/g, $times, 'failed statements');
$err = many('plain commit', 0, sub { begin("plain $_[0]", 1) . "COMMIT;\n" });
is(() = $err =~ /cannot be ended with COMMIT/g, $times, 'plain commits');
$err = many('deferred constraint', 0,
	sub {
		begin("deferred $_[0]", 1)
		  . "INSERT INTO deferred VALUES (-$_[0], -1);\n"
		  . "SELECT * FROM mip.prepare('', '');\n";
	});
is(() = $err =~ /violates foreign key constraint/g,
	$times, 'prepares that a deferred constraint refuses');
$err = many('refused begins', 0, sub {
	"BEGIN; SELECT mip.begin('commit $_[0]', 9);\nROLLBACK;\n"; });
is(() = $err =~ /of this family has been committed/g, $times, 'refused begins');
mip_sql($node, "BEGIN; SELECT mip.begin('hold $_', 1); SELECT * FROM mip.prepare('', '')")
  for 1, 2;
$err = many('too many prepared', 0,
	sub {
		begin("many $_[0]", 1) . "SELECT * FROM mip.prepare('', '');\n";
	});
is(() = $err =~ /maximum number of prepared transactions/g,
	$times, 'one prepare too many');
unlike($err, qr/out of instance slots/, 'no slot is lost');
mip_sql($node, "SELECT * FROM mip.rollback('hold $_', 1)") for 1, 2;

# sessions that end in the middle
$times = 60;
for my $i (1 .. $times)
{
	$node->psql('postgres', begin("session $i", 1));
	$node->psql('postgres',
		begin("terminated $i", 1) . 'SELECT pg_terminate_backend(pg_backend_pid())');
}
is(states($node, 'session 1'), '', 'sessions that end in the middle');

many('afterwards', 1, sub { begin("last $_[0]", 1) . "ROLLBACK;\n" });
is_decided($node, 'many');
is(mip_sql($node, 'SELECT v FROM a WHERE id = 1'),
	100 + 3000, 'every committed instance counts once');
is_sound($node, 'many');

$node->stop;
done_testing();
