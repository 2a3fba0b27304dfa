# A publisher that streams transactions in progress for parallel apply stops doing
# so with the first instance. What it has begun to stream is finished all the same:
# committed, aborted, and a subtransaction of it aborted.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = mip_node('publisher', wal_level => 'logical');
plan skip_all => 'no parallel apply before PostgreSQL 16' if $node->pg_version < 16;
$node->append_conf('postgresql.conf', 'debug_logical_replication_streaming = immediate');
$node->reload;

mip_sql($node, 'CREATE TABLE t (id int PRIMARY KEY) USING mip');
mip_sql($node, 'CREATE PUBLICATION p FOR ALL TABLES');
mip_sql($node, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')");

my ($one, $two) = map { session($node, $_) } 'commits', 'aborts';
$one->sql('BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s; INSERT INTO t VALUES (2)');
$two->sql('BEGIN; INSERT INTO t VALUES (3)');

my $instance = session($node, 'instance');
$instance->sql("BEGIN; SELECT mip.begin('x', 1); INSERT INTO t VALUES (4)");
$instance->sql("SELECT * FROM mip.commit_one_phase('', '')");
mip_sql($node, 'INSERT INTO t VALUES (5)');

$one->sql('ROLLBACK TO s; INSERT INTO t VALUES (6); COMMIT');
$two->sql('INSERT INTO t VALUES (7); ROLLBACK');
mip_sql($node, 'INSERT INTO t VALUES (8)');	# flushes that
$_->quit for $one, $two, $instance;

# B: begin, I: insert, C: commit; S and E: a stream begins and ends, A and c: it is
# aborted and committed
is( mip_sql(
		$node, q[
	SELECT string_agg(message, '') FROM (
		SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_peek_binary_changes('s',
			NULL, NULL, 'proto_version', '4', 'publication_names', 'p',
			'streaming', 'parallel')) m (message)
	WHERE message <> 'R']),
	'SIESIESIEBICBICASIEcABIC',
	'every stream is finished, none begins after an instance');
$node->stop;
done_testing();
