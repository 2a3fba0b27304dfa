# Logical replication: a subscriber has what the publisher has, whichever
# sibling has won, however the subscription receives transactions: at commit,
# at prepare (two_phase), in progress (streaming), and applied in progress
# (streaming = parallel, from 16 on). No subscription can show siblings to a
# subscriber, where they would wait for each other.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $pub = mip_node('publisher',
	allows_streaming => 'logical',
	wal_level => 'logical',
	logical_decoding_work_mem => '64kB');
my $sub = mip_node('subscriber',
	wal_level => 'logical',
	max_worker_processes => 24,
	max_logical_replication_workers => 16,
	wal_retrieve_retry_interval => '100ms');
my $parallel = $pub->pg_version >= 16 ? 'parallel' : 'on';

# "rows" has mip tables and families of its own and asks for everything that a
# subscription may ask for; "plain" knows nothing of pg_mip and notes what is
# done to its tables.
my $tables = q[
	CREATE TABLE t (id int PRIMARY KEY, v int, doc text);
	ALTER TABLE t ALTER doc SET STORAGE external;
	CREATE TABLE p (k int, v int, PRIMARY KEY (k)) PARTITION BY RANGE (k);
	CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
	CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200);
	CREATE TABLE f (v int, note text);
	ALTER TABLE f REPLICA IDENTITY FULL;
	CREATE TABLE big (id int PRIMARY KEY, v text);];
my $data = q[
	INSERT INTO t SELECT i, i * 10, repeat('o', 5000) FROM generate_series(1, 5) i;
	INSERT INTO p VALUES (1, 10), (2, 20), (101, 30);
	INSERT INTO f VALUES (1, 'x'), (2, 'y');
	INSERT INTO big SELECT i, repeat('b', 100) FROM generate_series(1, 1000) i;];

mip_sql($pub, "SET default_table_access_method = mip; $tables $data");
mip_sql($sub, "SET default_table_access_method = mip; $tables");
mip_sql($sub, 'CREATE DATABASE plain');
$sub->safe_psql(
	'plain', "$tables
	CREATE TABLE done (n serial, what text);
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \$\$BEGIN
		INSERT INTO public.done (what) VALUES (concat_ws(' ', TG_TABLE_NAME, TG_OP,
			md5(old::text), md5(new::text)));
		RETURN NULL; END\$\$;
	DO \$\$DECLARE name text; BEGIN
		FOREACH name IN ARRAY '{t,p1,p2,f,big}'::text[] LOOP
			EXECUTE format('CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON %I
				FOR EACH ROW EXECUTE FUNCTION note()', name);
			EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER note', name);
		END LOOP; END\$\$");

# An entry of the MIPT that must not be copied
my $s = session($pub, 'before');
$s->sql("BEGIN; SELECT mip.begin('before', 1)");
$s->sql("SELECT * FROM mip.commit_one_phase('', 'done')");
$s->quit;

my $conn = $pub->connstr . ' dbname=postgres';
mip_sql($pub,
	'CREATE PUBLICATION everything FOR ALL TABLES;'
	  . ' CREATE PUBLICATION public FOR TABLES IN SCHEMA public');
mip_sql($sub,
	"CREATE SUBSCRIPTION rows CONNECTION '$conn' PUBLICATION everything"
	  . " WITH (two_phase = on, streaming = $parallel)");
$sub->safe_psql('plain',
	"CREATE SUBSCRIPTION plain CONNECTION '$conn' PUBLICATION public"
	  . ' WITH (streaming = on)');

my %database = (rows => 'postgres', plain => 'plain');
my @subscriptions = sort keys %database;
for my $name (@subscriptions)
{
	$sub->poll_query_until($database{$name},
		q[SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel])
	  or die "$name: no initial copy";
}
$sub->poll_query_until('postgres',
	"SELECT subtwophasestate = 'e' FROM pg_subscription WHERE subname = 'rows'")
  or die 'two_phase is not enabled';

my $contents = join ' UNION ALL ',
  map { "SELECT '$_ ' || r FROM (SELECT $_\::text r FROM $_ ORDER BY 1) $_" }
  qw(t p1 p2 f big);

sub is_replicated
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	catch_up($pub, @subscriptions);
	my $published = mip_sql($pub, $contents);
	for my $which (@subscriptions)
	{
		# as a scalar: a difference is large
		ok($sub->safe_psql($database{$which}, $contents) eq $published,
			"$name: equal at \"$which\"");
	}
	return;
}

sub done
{
	catch_up($pub, @subscriptions);
	return $sub->safe_psql('plain', 'SELECT what FROM done ORDER BY n');
}

sub reset_tables
{
	mip_sql($pub, "TRUNCATE t, p, f, big; $data");
	catch_up($pub, @subscriptions);
	$sub->safe_psql('plain', 'TRUNCATE done');
	return;
}

is_replicated('initial copy');
is(mip_sql($sub, "SELECT count(*) FROM mip.mipt"), 0, 'but for the MIPT');

# ---- either winner ----

my $rival = q[UPDATE t SET v = v + 1000; UPDATE p SET v = v + 1000;
	UPDATE f SET v = v + 1000; UPDATE big SET v = 'rival'];
my $small = q[UPDATE t SET v = 0 WHERE id = 1; UPDATE t SET id = 20 WHERE id = 2;
	DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (3, 3, 'again');
	UPDATE t SET doc = repeat('n', 6000) WHERE id = 4;
	SAVEPOINT a; DELETE FROM t; ROLLBACK TO a; RELEASE a;
	DELETE FROM t WHERE id = 5;
	UPDATE p SET k = k + 100 WHERE k = 2; UPDATE p SET v = 1 WHERE k = 1;
	UPDATE f SET note = 'z' WHERE v = 1; DELETE FROM f WHERE v = 2];
my $large = "$small;
	UPDATE big SET v = v || 'w' WHERE id % 10 > 1;
	DELETE FROM big WHERE id % 10 = 0; UPDATE big SET id = -id WHERE id % 10 = 1";

my @s = map { session($pub, "instance $_") } 1 .. 3;

sub prepare
{
	my ($xid, @sql) = @_;
	reset_tables();
	for my $k (1 .. @sql)
	{
		$s[ $k - 1 ]->sql("BEGIN; SELECT mip.begin('$xid', $k)");
		$s[ $k - 1 ]->sql($sql[ $k - 1 ]);
	}
	$s[ $_ - 1 ]->sql("SELECT * FROM mip.prepare('', '')") for 1 .. @sql;
	return;
}

for my $case ([ 'small', $small ], [ 'large', $large ])
{
	my ($size, $sql) = @$case;

	reset_tables();
	my $ordinary = session($pub, 'ordinary');
	$ordinary->sql("BEGIN; $sql; COMMIT");
	$ordinary->quit;
	my $expected = done();
	isnt($expected, '', "$size: an ordinary transaction");

	for my $order ([ 1, $sql, $rival ], [ 2, $rival, $sql ],
		[ 2, $rival, $sql, $rival ])
	{
		my ($winner, @sql) = @$order;
		my $name = "$size, winner $winner of " . @sql;

		prepare($name, @sql);
		# whatever may be sent before the decision is
		$pub->wait_for_catchup($_, 'sent') for @subscriptions;
		is(done(), '', "$name: nothing is applied before the decision");
		mip_sql($pub, "SELECT * FROM mip.commit('$name', $winner)");
		ok(done() eq $expected, "$name: changes arrive as made");
		is_replicated($name);
	}
}
is(mip_sql($pub, "SELECT mip.forget('small, winner 2 of 2')"),
	2, 'entries can be deleted although the table is published');
is(mip_sql($pub, "SELECT count(*) > 0 FROM mip.mipt"),
	't', 'there is a MIPT at the publisher');
is(mip_sql($sub, 'SELECT count(*) FROM mip.mipt'),
	0, 'and none at the subscriber');
is( $sub->safe_psql(
		'postgres',
		'SELECT gid FROM pg_prepared_xacts'),
	'', 'no instance was prepared at the subscriber');

# Other prepared transactions reach a two_phase subscription as before.
mip_sql($pub, "BEGIN; UPDATE t SET v = 77; PREPARE TRANSACTION 'other'");
$sub->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_prepared_xacts WHERE database = 'postgres'")
  or die 'not prepared at the subscriber';
mip_sql($pub, "COMMIT PREPARED 'other'");
is_replicated('an ordinary prepared transaction');

# ---- crashes ----

prepare('crash of the publisher', $rival, $large);
$_->quit for @s;
power_cut($pub);
expect_crash($pub, 'link', 'crash of the publisher', 2);
expect_crash($pub, 'committed', 'crash of the publisher', 2);
mip_sql($pub, "SELECT * FROM mip.commit('crash of the publisher', 2)");
is_replicated('crash of the publisher');

@s = map { session($pub, "instance $_") } 1 .. 3;
prepare('crash of the subscriber', $rival, $large);
power_cut($sub);
catch_up($pub, @subscriptions);
mip_sql($pub, "SELECT * FROM mip.commit('crash of the subscriber', 2)");
power_cut($sub);
is_replicated('crash of the subscriber');

# Other transactions let the slots move on as far as they may, which is not
# beyond the begin of an instance; then decoding starts anew.
prepare('anew', $rival, $large);
for my $i (1 .. 3)
{
	mip_sql($pub, 'CREATE TABLE other (); DROP TABLE other; CHECKPOINT');
	catch_up($pub, @subscriptions);
	$sub->restart;
}
mip_sql($pub, "SELECT * FROM mip.commit('anew', 2)");
is_replicated('decoding starts anew before the decision');

# So it is for an instance that prepares before there is any other, the first
# that a decoding session meets.
my $lsn = $pub->lsn('insert');
wait_until(
	sub {
		mip_sql($pub, 'CREATE TABLE other (); DROP TABLE other; CHECKPOINT');
		catch_up($pub, @subscriptions);
		return mip_sql($pub,
			"SELECT restart_lsn > '$lsn' FROM pg_replication_slots"
			  . " WHERE slot_name = 'rows'") eq 't';
	}) or die 'the slot does not move on';
$sub->restart;
prepare('alone', $large);
catch_up($pub, @subscriptions);
is(mip_sql($sub, 'SELECT gid FROM pg_prepared_xacts'),
	'', 'an instance on its own is not prepared at the subscriber');
$s[1]->sql("BEGIN; SELECT mip.begin('alone', 2)");
$s[1]->sql($rival);
$s[1]->sql("SELECT * FROM mip.prepare('', '')");
mip_sql($pub, "SELECT * FROM mip.commit('alone', 2)");
is_replicated('prepared before the sibling began');

prepare('subscriber away', $large, $rival);
$sub->stop;
mip_sql($pub, "SELECT * FROM mip.commit('subscriber away', 1)");
$sub->start;
is_replicated('subscriber away during the decision');

# ---- the subscriber's own families ----

reset_tables();
my @own = map { session($sub, "subscriber's instance $_") } 1, 2;
for my $k (1, 2)
{
	$own[ $k - 1 ]->sql("BEGIN; SELECT mip.begin('own', $k)");
	$own[ $k - 1 ]->sql(
		"UPDATE t SET doc = 'own $k' WHERE id < 3; DELETE FROM t WHERE id = 4");
}
$_->sql("SELECT * FROM mip.prepare('', '')") for @own;
mip_sql($pub,
	'UPDATE t SET v = 5 WHERE id = 1; DELETE FROM t WHERE id = 2;'
	  . ' UPDATE p SET v = 9 WHERE k = 1');
$sub->poll_query_until('postgres',
	"SELECT count(*) > 0 FROM pg_stat_activity a JOIN pg_locks l USING (pid)"
	  . " WHERE backend_type LIKE 'logical replication%' AND NOT l.granted")
  or die 'apply does not wait';
pass('apply waits for the instances');
mip_sql($sub, "SELECT * FROM mip.commit('own', 2)");
catch_up($pub, @subscriptions);
is( mip_sql($sub, 'SELECT id, v, left(doc, 5) FROM t ORDER BY 1'),
	"1|5|own 2\n3|30|ooooo\n5|50|ooooo",
	'apply goes on from the winner\'s version');
is(mip_sql($sub, 'SELECT v FROM p WHERE k = 1'), 9, '... and further');
is_decided($sub, 'subscriber');
is_sound($sub, 'subscriber');
is_decided($pub, 'publisher');
is_sound($pub, 'publisher');

unlike(slurp_file($sub->logfile), qr/deadlock detected/,
	'no siblings met at the subscriber');

$_->quit for @s, @own;
$sub->stop;
$pub->stop;
done_testing();
