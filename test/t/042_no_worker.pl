# While all of max_worker_processes are in use the launcher complains, once, and
# tries again: what is due is done as soon as there is one. So is a push whose
# worker has failed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use Time::Local qw(timegm);

my $node = mip_node(
	'no_worker',
	max_worker_processes => 3,
	max_logical_replication_workers => 0,
	'mip.push_after' => '0');
mip_sql($node, 'CREATE TABLE t (v int) USING mip');

# The third of them is this one's, from the server's start until it is ended.
my $module = module($node, 'holder', <<'C');
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/wait_event.h"

PGDLLEXPORT void hold(Datum arg);
void		_PG_init(void);

void
hold(Datum arg)
{
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	for (;;)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void
_PG_init(void)
{
	BackgroundWorker worker = {0};

	snprintf(worker.bgw_name, BGW_MAXLEN, "holder");
	snprintf(worker.bgw_type, BGW_MAXLEN, "holder");
	snprintf(worker.bgw_library_name, sizeof(worker.bgw_library_name), "%s", LIBRARY);
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name), "hold");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	RegisterBackgroundWorker(&worker);
}
C
$node->append_conf('postgresql.conf', "shared_preload_libraries = '$module, pg_mip'");

my $log;

sub restart_without_workers
{
	my ($push_after) = @_;
	$node->append_conf('postgresql.conf', "mip.push_after = $push_after");
	$node->stop;
	$log = -s $node->logfile;
	$node->start;
	return;
}

sub complaints
{
	my $text = slurp_file($node->logfile, $log);
	return scalar(() = $text =~ /WARNING:  .*pg_mip cannot start a background worker/g);
}

sub complains { return wait_until(sub { complaints() > 0 }); }

sub let_go
{
	mip_sql($node,
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'holder'");
	return;
}

sub prepare
{
	my ($xid) = @_;
	return mip_sql($node, "BEGIN; SELECT mip.begin('$xid', 1); SELECT FROM mip.prepare('', '')");
}

sub pushes { return mip_sql($node, 'SELECT pushes FROM mip.stats'); }

# ---- finding what was prepared before the server started ----

prepare('restart');
restart_without_workers('100ms');
ok(complains(), 'restart: it complains');
sleep 3;
is(complaints(), 1, 'restart: once');
is(mip_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^pg_mip'"),
	1, 'restart: and stays');
is(pushes(), 0, 'restart: nothing is pushed');
let_go();
ok(wait_until(sub { pushes() > 0 }), 'restart: pushed as soon as there is a worker');
is(complaints(), 1, 'restart: still once');
mip_sql($node, "SELECT * FROM mip.commit('restart', 1)");

# ---- pushing: not only when the next push would be due ----

restart_without_workers('8s');
# (somebody else has found what there is)
mip_sql($node, "SELECT * FROM mip.instances('restart')");
prepare('push');
sleep 9;
is(pushes(), 0, 'push: due, and not pushed');
let_go();
my $free = time;
ok(wait_until(sub { pushes() > 0 }), 'push: pushed');
cmp_ok(time - $free, '<', 5, 'push: soon');
mip_sql($node, "SELECT * FROM mip.commit('push', 1)");

# ---- nor where a worker has been started, and failed ----

restart_without_workers('20s');
let_go();
mip_sql($node, "ALTER DATABASE postgres SET mip.debug_stop_at = 'error:push'");
my $reset = pushes();
prepare('failed');
ok( wait_until(
		sub { slurp_file($node->logfile, $log) =~ /pg_mip: stopped at "push"/ }),
	'failed: the worker fails');
mip_sql($node, 'ALTER DATABASE postgres RESET mip.debug_stop_at');
ok(wait_until(sub { pushes() > $reset }), 'failed: pushed by another one');
is( mip_sql($node,
		"SELECT clock_timestamp() - since < '40s' FROM mip.instances('failed')"),
	't', 'failed: before the next push is due');
mip_sql($node, "SELECT * FROM mip.commit('failed', 1)");

# ---- removing: not only in an hour ----

my $time = timegm(0, 0, 0, 1, 0, 2020) * 1000;
my $old = sprintf('%08x-%04x-7000-8000-000000000000', $time >> 16, $time & 0xffff);
restart_without_workers('0');
mip_sql($node, "SET mip.retention = 0; BEGIN; SELECT mip.begin('$old', 1);"
	  . " SELECT FROM mip.commit_one_phase('request', 'result')");
$node->reload;
ok(complains(), 'expire: it complains');
sleep 2;
is(mip_sql($node, "SELECT count(*) FROM mip.mipt WHERE xid = '$old'"),
	1, 'expire: nothing is removed');
let_go();
ok( wait_until(
		sub { mip_sql($node, "SELECT count(*) FROM mip.mipt WHERE xid = '$old'") == 0 }),
	'expire: removed as soon as there is a worker');

$node->stop;
done_testing();
