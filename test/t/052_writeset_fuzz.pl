# The reader of writesets, built apart under AddressSanitizer, gets a great many that are
# nearly right: it never reads beyond them, and what it takes for one is one. For longer:
# FUZZ_SECONDS; with libFuzzer, see test/fuzz/decode.c.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = abs_path("$FindBin::RealBin/../..");
my $seconds = $ENV{FUZZ_SECONDS} // 10;
my $work = PostgreSQL::Test::Utils::tempdir;

sub config
{
	my ($what) = @_;
	chomp(my $value = `"\${PG_CONFIG:-pg_config}" --$what`);
	return $value;
}

my @build = (
	'cc', '-g', '-O1', '-DALONE', '-D_GNU_SOURCE', '-fsanitize=address,undefined',
	'-fno-sanitize-recover=undefined', "-I$top/src", '-I' . config('includedir-server'),
	"$top/test/fuzz/decode.c", "$top/src/writeset/format_decode.c",
	'-L' . config('pkglibdir'), '-L' . config('libdir'), '-lpgport', '-o', "$work/decode");
is(system(@build), 0, 'the reader is built apart');

my @seeds;
foreach my $saved (glob "$top/test/sql/include/writeset_*.hex")
{
	chomp(my $hex = slurp_file($saved));
	push @seeds, "$work/" . scalar @seeds;
	append_to_file($seeds[-1], pack 'H*', $hex);
}
ok(@seeds > 1, 'there are writesets to begin with');

# what it takes at its exit is nobody's concern
$ENV{ASAN_OPTIONS} = 'detect_leaks=0';
my ($out, $err) = run_command([ "$work/decode", $seconds, time, @seeds ]);
like($out, qr/^\d+ tried, [1-9]\d+ of them writesets$/, 'nothing is found');
is($err, '', 'nor said');

done_testing();
