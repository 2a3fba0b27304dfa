# mip.commit_beside need not read the MIPT of who has been alone. After a restart, or on a promoted standby, nobody
# knows that any more: there may be rows to be handed over, and others in the MIPT. [first-header-decides] [one-winner]

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use Test::More;

my $node = mip_node('alone', allows_streaming => 1);
my $standby = standby_of($node, 'other');
mip_sql($node, 'CREATE TABLE t (id int PRIMARY KEY, v int) USING mip; INSERT INTO t VALUES (1, 0)');

sub prepare
{
	my ($xid, $xinst, $v) = @_;
	mip_sql($node, "BEGIN; SELECT mip.begin('$xid', $xinst); UPDATE t SET v = $v WHERE id = 1;"
		  . " SELECT mip.prepare_beside(NULL, NULL)");
}

sub commit_beside
{
	my ($server, $xid, $xinst) = @_;
	return mip_sql($server, "SELECT mip.commit_beside('$xid', $xinst)") || 'nobody';
}

# its version is beside a sibling's, which has gone
for my $mode ('fast', 'immediate')
{
	my $xid = "gone-$mode";
	prepare($xid, 1, 10);
	prepare($xid, 2, 20);
	mip_sql($node, "SELECT FROM mip.rollback('$xid', 1)");
	$node->stop($mode);
	$node->start;
	is(commit_beside($node, $xid, 2), '{1}', "$mode: who else there was");
	is(mip_sql($node, 'SELECT id, v FROM t'), '1|20', "$mode: its version is the row's");
}

# alone it still is
prepare('only', 1, 30);
$node->restart;
is(commit_beside($node, 'only', 1), 'nobody', 'nobody else');
is(mip_sql($node, 'SELECT id, v FROM t'), '1|30', 'committed');

# another one has been committed, as a dump has it
prepare('dumped', 1, 40);
mip_sql($node, "INSERT INTO mip.mipt (xid, xinst, result, owner, since, aborted)"
	  . " VALUES ('dumped', 5, 'restored', current_user::regrole, now(), false)");
$node->stop('immediate');
$node->start;
my ($code, $out, $err) = $node->psql('postgres', "SELECT mip.commit_beside('dumped', 1)", extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
like($err, qr/MP001/, 'no second winner');
mip_sql($node, "SELECT FROM mip.rollback('dumped', 1)");

# a standby takes over
prepare('promoted', 1, 50);
prepare('promoted', 2, 60);
mip_sql($node, "SELECT FROM mip.rollback('promoted', 1)");
catch_up($node, $standby);
$node->stop('immediate');
$standby->promote;
is(commit_beside($standby, 'promoted', 2), '{1}', 'promoted: who else there was');
is(mip_sql($standby, 'SELECT id, v FROM t'), '1|60', "promoted: its version is the row's");

done_testing();
