# A driver may ask for an ending's rows in parts, as JDBC does with a fetch
# size. It learns that this cannot be, and nothing has happened. Spoken here on
# the wire, since psql cannot.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use IO::Socket::UNIX;
use MipTest;
use Test::More;

my $node = mip_node('portals');
my $socket;

sub send_message
{
	my ($type, $body) = @_;
	print $socket $type, pack('N', 4 + length $body), $body;
	return;
}

sub receive
{
	my ($n) = @_;
	my $data = '';
	while (length $data < $n)
	{
		read($socket, $data, $n - length $data, length $data)
		  or die 'connection lost';
	}
	return $data;
}

# The types of the messages up to one of that type, by default ReadyForQuery,
# whose transaction status is the last; an error's SQLSTATE is added to it.
sub answer
{
	my ($last) = (@_, 'Z');
	my $seen = '';
	while (1)
	{
		my $type = receive(1);
		my $body = receive(unpack('N', receive(4)) - 4);
		$seen .= $type if $type !~ /[SNK]/;
		$seen .= "($1)" if $type eq 'E' && $body =~ /\0C(\w{5})\0/;
		$seen .= $body if $type eq 'Z';
		return $seen if $type eq $last;
	}
}

sub connect_to
{
	$socket = IO::Socket::UNIX->new(
		Peer => $node->host . '/.s.PGSQL.' . $node->port) or die $!;
	$socket->autoflush(1);
	my $user = $_[0] // mip_sql($node, 'SELECT current_user');
	my $body = pack('N', 196608) . "user\0$user\0database\0postgres\0\0";
	print $socket pack('N', 4 + length $body), $body;
	answer();
	return;
}

sub query
{
	my ($sql) = @_;
	send_message('Q', "$sql\0");
	return answer();
}

# Parse, Bind, Execute for at most $rows; 0 for all
sub execute
{
	my ($portal, $sql, $rows) = @_;
	send_message('P', "\0$sql\0" . pack('n', 0));
	send_message('B', "$portal\0\0" . pack('nnn', 0, 0, 0));
	send_message('E', "$portal\0" . pack('N', $rows));
	return;
}

# A function, by its own message, with arguments as text
sub call
{
	my ($function, @arguments) = @_;
	send_message('F', pack('Nnn', mip_sql($node, "SELECT '$function'::regprocedure::oid"), 0, scalar @arguments)
		  . pack('(N/a*)*', @arguments) . pack('n', 0));
	return answer();
}

# Family locks that somebody holds
sub held
{
	return mip_sql($node, q[SELECT count(*) FROM pg_locks WHERE locktype = 'userlock']);
}

sub sync
{
	send_message('S', '');
	return answer();
}

mip_sql($node, 'CREATE TABLE t (id int PRIMARY KEY) USING mip');

sub begin_two
{
	my ($xid) = @_;
	prepare_one($node, $xid, 1);
	connect_to();
	query('BEGIN');
	query("SELECT mip.begin('$xid', 2)");
	return;
}

my $prepare = q[SELECT * FROM mip.prepare('', '')];

for my $portal ('', 'named')
{
	my $what = $portal ? 'named portal' : 'unnamed portal';
	my $xid = $portal || 'unnamed';

	begin_two("$xid-1");
	execute($portal, $prepare, 0);
	is(sync(), '12DDCZI', "$what: all rows");
	is(states($node, "$xid-1"), '1 prepared, 2 prepared', "$what: is prepared");

	begin_two("$xid-2");
	execute($portal, $prepare, 3);
	is(sync(), '12DDCZI', "$what: more than there are");
	is(states($node, "$xid-2"), '1 prepared, 2 prepared', "$what: is prepared");

	# The transaction would be prepared before the last part is asked for.
	for my $rows (1, 2)
	{
		begin_two("$xid-in-$rows");
		execute($portal, $prepare, $rows);
		like(sync(), qr/E\(MP006\)ZI/, "$what: $rows rows, refused");
		is(states($node, "$xid-in-$rows"), '1 prepared',
			"$what: is not prepared");
	}
}

query('BEGIN');
query("SELECT mip.begin('one phase', 1)");
execute('', q[SELECT * FROM mip.commit_one_phase('', '')], 1);
like(sync(), qr/E\(MP006\)ZI/, 'one phase: a part, refused');
is(states($node, 'one phase'), '', 'one phase: not committed');

# ---- a block that is begun by mip.start ----

connect_to();
execute('', q[SELECT mip.start('started', 1)], 0);
execute('', 'INSERT INTO t VALUES (100)', 0);
is(sync(), '12DC12CZT', 'mip.start: a block');
execute('', q[SELECT mip.prepare_beside('', '')], 0);
is(sync(), '12DCZI', '... which is prepared');
is(query(q[SELECT FROM mip.commit('started', 1)]), 'TDCZI', '... and committed');
for my $fails (q[SELECT mip.start('started', 2)], q[SELECT mip.start('starts', 0)])
{
	execute('', $fails, 0);
	execute('', 'INSERT INTO t VALUES (101)', 0);
	like(sync(), qr/^12E\(\w+\)ZE$/, "$fails: a failed block");
	is(query('INSERT INTO t VALUES (101)'), 'E(25P02)ZE', '... that changes nothing');
	query('ROLLBACK');
}
execute('', q[SELECT mip.start('starts', 1)], 0);
execute('', 'SELECT 1 / 0', 0);
execute('', 'INSERT INTO t VALUES (101)', 0);
is(sync(), '12DC1E(22012)ZE', 'mip.start: another statement fails');
query('ROLLBACK');
execute('', q[SELECT mip.start('starts', 1)], 1);
is(sync(), '12DsZT', 'mip.start: a part of its rows, of which there is one');
query('ROLLBACK');
is(call('mip.start(text, bigint, text[], text, text, text)', 'starts', 1, '{}', '', '', 'read committed'), 'E(MP006)ZI', 'mip.start: not by a function call');
is(mip_sql($node, q[SELECT count(*) FROM mip.instances('starts')]), 0, '... nothing is left of it');

# ---- CALL ----

query('BEGIN');
execute('', q[CALL mip.do_begin('by CALL', 1)], 0);
execute('', 'INSERT INTO t VALUES (102)', 0);
is(sync(), '12C12CZT', 'CALL mip.do_begin');
execute('', q[CALL mip.do_prepare('', '')], 0);
like(sync(), qr/E\(MP006\)ZE$/, 'CALL mip.do_prepare: only as a simple query');
query('ROLLBACK');
is(query(q[CALL mip.do_start('by CALL', 1)]), 'CZT', 'CALL mip.do_start');
query('INSERT INTO t VALUES (102)');
is(query(q[CALL mip.do_prepare('', '')]), 'TDCZI', 'CALL mip.do_prepare');
execute('', q[CALL mip.do_commit('by CALL', 1)], 0);
is(sync(), '12CZI', 'CALL mip.do_commit');
is(mip_sql($node, 'SELECT array_agg(id ORDER BY id) FROM t WHERE id BETWEEN 100 AND 102'), '{100,102}', 'what has been committed');
mip_sql($node, 'DELETE FROM t');

# Nobody can tell whether rows that a portal has stored are fetched in parts.
my %stored = (
	utility => 'EXECUTE ending',
	with => "WITH w AS (INSERT INTO t VALUES (1) RETURNING id) $prepare",
	returning => q[INSERT INTO t SELECT xinst FROM mip.prepare('', '') RETURNING id]);

for my $form (sort keys %stored)
{
	begin_two($form);
	query("PREPARE ending AS $prepare");
	execute('', $stored{$form}, 1);
	like(sync(), qr/E\(MP006\)ZE/, "$form: refused");
	is(states($node, $form), '1 prepared', "$form: is not prepared");
}

# A function's cursor, which the protocol runs by its name as it does the client's portals
mip_sql($node, q[CREATE FUNCTION leaves_cursor(c refcursor) RETURNS refcursor LANGUAGE plpgsql AS $$
	BEGIN
		OPEN c FOR EXECUTE 'EXECUTE begins';
		RETURN c;
	END $$]);
connect_to();
query(q[PREPARE begins AS SELECT mip.begin('by a cursor', 1)]);
query('BEGIN');
query(q[SELECT leaves_cursor('left')]);
send_message('E', "left\0" . pack('N', 0));
is(sync(), 'E(MP006)ZE', "EXECUTE by a function's cursor: refused");
query('ROLLBACK');

# ---- leaving ----

# Nothing takes the place of an instance within a message, and a ROLLBACK is one.
for my $failed ('', 'SELECT 1 / 0')
{
	connect_to();
	query('BEGIN');
	query("SELECT mip.begin('left', 1)");
	query($failed) if $failed;
	my $what = $failed ? 'failed' : 'running';
	like(query('ROLLBACK; BEGIN; INSERT INTO t VALUES (2)'), qr/E\(MP006\)ZE/, "$what: and back, refused");
	execute('', 'ROLLBACK AND CHAIN', 0);
	like(sync(), qr/E\(MP006\)ZE/, "$what: AND CHAIN, refused");
	execute('', 'ROLLBACK; -- the end', 0);
	is(sync(), '12CZI', "$what: ROLLBACK");
	like(query('BEGIN; ROLLBACK; SELECT 1'), qr/ZI$/, "$what: other transactions are free");
}
is(mip_sql($node, 'SELECT count(*) FROM t'), 0, 'nothing was changed');

# ---- refusing ----

# What is told of a refusal is durable, and the family's lock is not the client's.
connect_to();
for my $call ("SELECT mip.refuse('refused', 1, '{}')", "SELECT mip.forget('refused')")
{
	execute('', $call, 1);
	like(sync(), qr/E\(MP006\)ZI/, "a part of $call: refused");
	execute('', "WITH w AS (INSERT INTO t VALUES (1) RETURNING id) $call", 1);
	like(sync(), qr/E\(MP006\)ZI/, "... also behind a change");
	is(states($node, 'refused'), '', '... has no effect');
}
execute('', "SELECT mip.refuse('refused', 1, '{}')", 0);
is(sync(), '12DCZI', 'all of it');
is(states($node, 'refused'), '1 aborted', '... has');
execute('', "SELECT mip.forget('refused')", 2);
is(sync(), '12DCZI', 'more than there is');
is(states($node, 'refused'), '', '... has an effect, too');

# ---- deciding ----

# A client that does not fetch the rest keeps nobody from the family. [lock-let-go]
my %decision = (commit => '1 aborted, 2 committed', rollback => '1 prepared, 2 aborted');
for my $function (sort keys %decision)
{
	my $xid = "hangs in $function";
	prepare_one($node, $xid, $_) for 1, 2;
	connect_to();
	execute('', "SELECT xinst FROM mip.$function('$xid', 2)", 1);
	send_message('H', '');
	is(answer('s'), '12Ds', "$function: answers with one of two rows");
	is(held(), 0, "$function: and holds no lock");
	is(sync(), 'ZI', "$function: ends");
	is(states($node, $xid), $decision{$function}, "$function: and notes the loser");
}

# Nor may what is still to be noted get into a prepared transaction, or a lock.
prepare_one($node, 'half decided', $_) for 1, 2;
connect_to();
execute('decision', "SELECT xinst FROM mip.commit('half decided', 2)", 1);
execute('', $_, 0) for 'BEGIN', q[PREPARE TRANSACTION 'outsider'];
like(sync(), qr/E\(MP006\)ZI$/, 'PREPARE TRANSACTION behind a part of a decision: refused');
like(query('SELECT 1'), qr/ZI$/, 'and the session goes on');
execute('', "SELECT xinst FROM mip.commit('half decided', 2)", 0);
like(sync(), qr/ZI$/, 'the decision is repeated');
is(states($node, 'half decided'), '2 committed', 'and stands');
execute('cleaning', q[SELECT mip.acknowledge(x) FROM (VALUES ('half decided'), ('x')) v (x)], 1);
execute('', $_, 0) for 'BEGIN', q[PREPARE TRANSACTION 'outsider'];
like(sync(), qr/E\(MP006\)ZI$/, 'PREPARE TRANSACTION behind a part of a clean-up: refused');
# [lock-order]
connect_to();
execute('cleaning', q[SELECT mip.acknowledge(x) FROM (VALUES ('half decided'), ('x')) v (x)], 1);
execute('', $_, 0) for 'BEGIN', q[SELECT mip.begin('behind', 1)], q[SELECT FROM mip.commit_one_phase('', '')];
like(sync(), qr/12C12E\(MP006\)ZE$/, 'mip.begin behind a part of a clean-up: refused');

# Nor does who has the rest of an effect before him hold a lock.
connect_to();
execute('', q[SELECT mip.acknowledge(x) FROM (VALUES ('half decided'), ('x')) v (x)], 1);
send_message('H', '');
answer('s');
is(held(), 0, 'a part of a clean-up holds no lock');
sync();

# ---- statements of the protocol ----

# They are the driver's, which counts on them in later transactions, be it by a name
# that the instance has had for one of its own.
sub parse
{
	my ($name, $sql) = @_;
	send_message('P', "$name\0$sql\0" . pack('n', 0));
	return;
}

sub execute_named
{
	my ($name) = @_;
	send_message('B', "\0$name\0" . pack('nnn', 0, 0, 0));
	send_message('E', "\0" . pack('N', 0));
	return sync();
}

connect_to();
query('BEGIN');
query(q[SELECT mip.begin('names', 1)]);
parse('of_the_driver', 'SELECT 1');
is(sync(), '1ZT', 'parsed in an instance');
query('PREPARE of_both AS SELECT 1');
query('PREPARE of_the_instance AS SELECT 1');
query('DEALLOCATE of_both');
parse('of_both', 'SELECT 2');
is(execute_named('of_both'), '12DCZT', 'and used there');
query(q[SELECT FROM mip.commit_one_phase('', '')]);
is(execute_named('of_the_driver'), '2DCZI', 'is there after it');
is(execute_named('of_both'), '2DCZI', 'also by the name of a statement of the instance');
is(execute_named('of_the_instance'), 'E(26000)ZI', 'which itself is not');

# ---- function calls ----

# What the protocol's own message calls is no statement: another could follow in it.
mip_sql($node, q[CREATE FUNCTION prepares() RETURNS int LANGUAGE plpgsql AS $$
	DECLARE i record;
	BEGIN
		FOR i IN SELECT * FROM mip.prepare('', '') LOOP END LOOP;
		RETURN 1;
	END $$]);
connect_to();
query('BEGIN');
query(q[SELECT mip.begin('called', 1)]);
is(call('prepares()'), 'E(MP006)ZE', 'mip.prepare by a function call: refused');
query('ROLLBACK');
is(states($node, 'called'), '', '... and nothing is prepared');

# Nor is there an end of it, where would be seen what locks it keeps.
query('BEGIN');
is(call('pg_backend_pid()'), 'VZT', 'before mip.begin: allowed');
query(q[SELECT mip.begin('called', 1)]);
is(call('lo_create(oid)', 4711), 'VZT', 'libpq creates a large object by a function call');
is(call('lo_open(oid, int4)', 4711, 393216), 'VZT', '... opens it');
is(call('lowrite(int4, bytea)', 0, 'x'), 'VZT', '... and writes to it');
is(call('lo_close(int4)', 0), 'VZT', '... and closes it');
is(call('pg_backend_pid()'), 'E(MP006)ZE', 'anything else: refused');
query('ROLLBACK');

# Where mip.serializable is "everywhere", who only reads is followed all the same.
mip_sql($node, q[CREATE TABLE seen (k int PRIMARY KEY, v int) USING mip; INSERT INTO seen VALUES (1, 0)]);
mip_sql($node, 'CREATE ROLE reads SUPERUSER LOGIN; ALTER ROLE reads SET mip.serializable = everywhere');
my $in_doubt = session($node, 'in doubt');
$in_doubt->sql('BEGIN ISOLATION LEVEL SERIALIZABLE');
$in_doubt->sql("SELECT mip.begin('unseen', 1)");
$in_doubt->sql('UPDATE seen SET v = 1');
$in_doubt->sql("SELECT FROM mip.prepare('', '')");
$in_doubt->quit;
connect_to('reads');
query('BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY');
is(call('mip.relation_checksum(regclass)', 'seen'), 'VZT', 'a reader');
mip_sql($node, "SELECT FROM mip.commit('unseen', 1)");
is(call('mip.relation_checksum(regclass)', 'seen'), 'VZT', '... reads on');
is(query('COMMIT'), 'E(40001)ZI', '... and has missed what had been prepared when it began');

# ---- parameters ----

# Bind evaluates them, and with them whatever a domain's CHECK calls, before there is
# a statement: by any way that a function has to run one.
mip_sql($node, q[
	CREATE FUNCTION checks(how text) RETURNS bool LANGUAGE plpgsql AS $$
		DECLARE i record; c refcursor;
		BEGIN
			CASE how
				WHEN 'perform' THEN PERFORM FROM mip.prepare('', '');
				WHEN 'execute' THEN EXECUTE $q$SELECT FROM mip.prepare('', '')$q$;
				WHEN 'loop' THEN FOR i IN SELECT * FROM mip.prepare('', '') LOOP END LOOP;
				WHEN 'dynamic loop' THEN FOR i IN EXECUTE $q$SELECT * FROM mip.prepare('', '')$q$ LOOP END LOOP;
				WHEN 'cursor' THEN OPEN c FOR SELECT * FROM mip.prepare('', ''); FETCH c INTO i;
				WHEN 'prepared' THEN EXECUTE 'EXECUTE ending';
				WHEN 'prepared loop' THEN FOR i IN EXECUTE 'EXECUTE ending' LOOP END LOOP;
				WHEN 'prepared insert' THEN EXECUTE 'EXECUTE entering';
				ELSE NULL;
			END CASE;
			RETURN true;
		END $$;
	CREATE DOMAIN checked AS text CHECK (checks(VALUE))]);
for my $how ('perform', 'execute', 'loop', 'dynamic loop', 'cursor', 'prepared',
	'prepared loop', 'prepared insert', 'nothing')
{
	connect_to();
	query('BEGIN');
	query(q[SELECT mip.begin('bound', 1)]);
	query(qq[PREPARE ending AS $prepare]);
	query(q[PREPARE entering AS INSERT INTO t SELECT 1 FROM mip.prepare('', '')]);
	send_message('P', "\0SELECT \$1::checked\0" . pack('n', 0));
	send_message('B', "\0\0" . pack('nnN/a*n', 0, 1, $how, 0));
	send_message('E', "\0" . pack('N', 0));
	is(sync(), $how eq 'nothing' ? '12DCZT' : '1E(MP006)ZE', "mip.prepare for a parameter, $how: "
		  . ($how eq 'nothing' ? 'not called' : 'refused'));
	query('ROLLBACK');
	is(states($node, 'bound'), '', '... and nothing is prepared');
}

# ---- clients that do not read ----

# An error that does not fit into the socket's buffer, and a client that does not
# read it: the family is not kept from others.
my $long = 20_000_000;

sub commit_long
{
	my ($xid) = @_;
	mip_sql($node, qq[BEGIN; SELECT mip.begin('$xid', 1);
		SELECT FROM mip.commit_one_phase('', repeat('x', $long))]);
	return;
}

# Does the backend hang in telling its client something?
sub hangs
{
	return $node->poll_query_until('postgres',
		q[SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'ClientWrite']);
}

for my $call ('BEGIN; SELECT mip.begin(%s, 2)', 'SELECT mip.commit(%s, 2)', q[SELECT mip.refuse(%s, 2, '{}')])
{
	my $xid = 'long';
	commit_long($xid);
	connect_to();
	send_message('Q', sprintf($call, "'$xid'") . "\0");
	ok(hangs(), "$call: a client that does not read the result");
	is(held(), 0, '... holds no lock');
	mip_sql($node, "SELECT mip.acknowledge('$xid')");
	is(states($node, $xid), '1 committed' . ($call =~ /begin/ ? ', 2 active' : ''),
		'... nor anybody up');
	like(answer(), qr/E\(MP001\)Z/, '... and can read it later');
	query('ROLLBACK');
	mip_sql($node, "SELECT mip.forget('$xid')");
}

# What fails at the end of the statement
my $gate = session($node, 'gate');
$gate->sql('SELECT pg_advisory_lock(1)');
connect_to();
send_message('Q', "SELECT mip.refuse('late', 2, '{}'), pg_advisory_xact_lock(1)\0");
$node->poll_query_until('postgres', q[SELECT count(*) = 1 FROM pg_locks WHERE NOT granted]);
is(held(), 0, 'a statement that takes its time holds no lock');
commit_long('late');
$gate->sql('SELECT pg_advisory_unlock(1)');
ok(hangs(), 'it fails, and its client does not read why');
is(held(), 0, '... and holds no lock either');
is(mip_sql($node, q[SELECT mip.forget('late')]), '1', '... nor anybody up');
like(answer(), qr/E\(MP001\)ZI/, '... and can read it later');

# ---- tags ----

# pg_locks shows them to everybody, so they are not to be computed.
sub tag
{
	my $s = session($node, 'waits');
	$gate->sql('SELECT pg_advisory_lock(1)');
	$s->sql(q[SET mip.debug_stop_at = 'wait:turn'; BEGIN; SELECT mip.begin('tagged', 1)]);
	$s->send_sql(q[SELECT FROM mip.prepare('', '')]);
	$s->waits;
	my $found = mip_sql($node, q[SELECT classid, objid FROM pg_locks
		WHERE locktype = 'userlock' AND mode = 'ExclusiveLock' AND granted]);
	$gate->sql('SELECT pg_advisory_unlock(1)');
	$s->finish;
	mip_sql($node, q[SELECT FROM mip.rollback('tagged', 1); SELECT mip.forget('tagged')]);
	$s->quit;
	return $found;
}

my $tag = tag();
like($tag, qr/^\d+\|\d+$/, 'a family has a tag');
is(tag(), $tag, 'always the same');
$gate->quit;
$node->restart;
$gate = session($node, 'gate');
isnt(tag(), $tag, 'but not after a restart: it depends on a secret');
$gate->quit;

$node->stop;
done_testing();
