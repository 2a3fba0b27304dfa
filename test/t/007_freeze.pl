# VACUUM FREEZE of transaction ids and multixacts while two siblings are
# prepared, one of them with an overlay: neither loses its hold on a row. [lockers-stay]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node(
	'freeze',
	vacuum_freeze_min_age => 0,
	vacuum_freeze_table_age => 0,
	vacuum_multixact_freeze_min_age => 0,
	vacuum_multixact_freeze_table_age => 0);
my $n = 0;

# Uses up ids of both kinds.
sub consume
{
	mip_sql(
		$node, q[
		CREATE TABLE IF NOT EXISTS other (id int);
		TRUNCATE other;
		INSERT INTO other VALUES (1);
		DO $$ BEGIN
			FOR i IN 1..200 LOOP
				PERFORM pg_current_xact_id();
				COMMIT;
			END LOOP;
		END $$]);
	my %s = map { $_ => session($node, "locker $_") } 1, 2;
	for (1 .. 3)
	{
		$s{$_}->sql('BEGIN; SELECT * FROM other FOR SHARE') for 1, 2;
		$s{$_}->sql('COMMIT') for 1, 2;
	}
	$_->quit for values %s;
	return;
}

sub freeze
{
	my ($name) = @_;
	for my $vacuum ('VACUUM', 'VACUUM (FREEZE)',
		'VACUUM (FREEZE, DISABLE_PAGE_SKIPPING)')
	{
		my ($rc, $out, $err) = $node->psql('postgres', $vacuum);
		is($err, '', "$name: $vacuum");
	}
	return;
}

for my $case ([ 1, 1, 2 ], [ 2, 1, 2 ], [ 1, 2, 1 ], [ 2, 2, 1 ], [ 2, 1, 3, 2 ])
{
	my ($winner, @order) = @$case;
	my $xid = 'freeze-' . ++$n;
	my $name = "$winner of " . join(' ', @order);

	fill($node);
	freeze("$name: before");
	begin_prepared($node, $xid, @order);
	consume();
	freeze("$name: prepared");
	is_rows($node, 0, "$name: prepared");

	# an outsider still has to wait for every one of them
	my $s = session($node, 'outsider');
	$s->refused('SET lock_timeout = 100; UPDATE a SET v = 0 WHERE id = 1',
		'55P03', "$name: an outsider waits");
	# the refused attempt must not have changed that
	consume();
	freeze("$name: after the outsider");
	$s->refused('DELETE FROM a WHERE id = 3',
		'55P03', "$name: an outsider waits for the deleted row");

	# the native updater gone, only lockers are left on the rows
	if (@order == 3)
	{
		mip_sql($node, "SELECT * FROM mip.rollback('$xid', $order[0])");
		freeze("$name: native updater rolled back");
		is_rows($node, 0, "$name: native updater rolled back");
		$s->refused('UPDATE a SET v = 0 WHERE id = 1',
			'55P03', "$name: an outsider waits for the others");
	}
	power_cut($node);
	consume();
	freeze("$name: after a crash");
	mip_sql($node, "SELECT * FROM mip.commit('$xid', $winner)");
	is_decided($node, $name);
	is_rows($node, $winner, $name);
	consume();
	freeze("$name: decided");
	is_rows($node, $winner, "$name: frozen");
	is_sound($node, $name);
	$s->quit;
}

# ---- key updates alone, for which heap expects no multixact ----

{
	my %s = map { $_ => session($node, "instance $_") } 1, 2;
	fill($node);
	consume();
	for my $k (1, 2)
	{
		$s{$k}->sql('BEGIN');
		$s{$k}->sql("SELECT mip.begin('keys', $k)");
		$s{$k}->sql("UPDATE b SET id = 10 + $k WHERE id = 1");
		freeze("key updates: instance $k has written");
	}
	$s{$_}->sql("SELECT * FROM mip.prepare('', '')") for 1, 2;
	consume();
	freeze('key updates: both prepared');
	mip_sql($node, "SELECT * FROM mip.commit('keys', 2)");
	is(mip_sql($node, 'SELECT id FROM b WHERE id NOT IN (2, 3)'),
		12, 'key updates: the winner');
	$_->quit for values %s;
	is_sound($node, 'key updates');
}

# ---- an active sibling, and outsiders' multixacts beside it ----

{
	my %s = map { $_ => session($node, "instance $_") } 1, 2;
	my $key = session($node, 'key share');
	fill($node);
	mip_sql($node, 'CREATE TABLE child (a int REFERENCES a) USING mip');
	$key->sql('BEGIN; INSERT INTO child VALUES (1)');
	for my $k (1, 2)
	{
		$s{$k}->sql('BEGIN');
		$s{$k}->sql("SELECT mip.begin('locked', $k)");
		$s{$k}->sql("UPDATE a SET note = 'by $k' WHERE id = 1");
		freeze("key share lock: instance $k has written");
	}
	$s{1}->sql("SELECT * FROM mip.prepare('', '')");
	consume();
	freeze('key share lock: 1 prepared');
	$s{2}->sql("SELECT * FROM mip.prepare('', '')");
	consume();
	freeze('key share lock: both prepared');
	mip_sql($node, "SELECT * FROM mip.commit('locked', 2)");
	consume();
	freeze('key share lock: decided');
	# the new version is locked against losing its key
	my $s = session($node, 'outsider');
	$s->refused('SET lock_timeout = 100; DELETE FROM a WHERE id = 1',
		'55P03', 'key share lock: carried to the new version');
	$key->sql('COMMIT');
	$s->refused('DELETE FROM a WHERE id = 1',
		'23503', 'key share lock: the foreign key holds');
	is(mip_sql($node, 'SELECT note FROM a WHERE id = 1'),
		'by 2', 'key share lock: the winner');
	$_->quit for $s, $key, values %s;
	mip_sql($node, 'DROP TABLE child');
	is_sound($node, 'key share lock');
}

$node->stop;
done_testing();
