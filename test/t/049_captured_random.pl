# Random transactions on random tables: what is captured is what row triggers see, and
# applied to a copy of the database it makes the copy the same again. WRITESET_SEED
# repeats a run, WRITESET_ROUNDS is how many sets of tables there are.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{WRITESET_SEED} // time;
my $rounds = $ENV{WRITESET_ROUNDS} // 6;
srand($seed);
diag("seed $seed");

my $node = mip_node('random', 'mip.capture_writeset' => 'on');
my $has_virtual = mip_sql($node, 'SHOW server_version_num') >= 180000;

sub one_of { return $_[ rand @_ ] }
sub chance { return rand() < shift }

# Types, and expressions of values of them, of a number n.
my %types = (
	'int' => 'n',
	'smallint' => 'n % 30000',
	'bigint' => 'n * 5000000000',
	'boolean' => 'n % 2 = 0',
	'numeric' => q[(ARRAY['NaN', '1.0', '1.00', '-0.5', '1e30', 'Infinity'])[1 + n % 6]::numeric + n % 3],
	'numeric(10,2)' => 'n / 7.0',
	'real' => q[(ARRAY['NaN', '-0', '1e-30', 'Infinity', '0.1'])[1 + n % 5]::real],
	'double precision' => q[(ARRAY['NaN', '-0', '1e-300', '-Infinity', '0.1'])[1 + n % 5]::float8 * n],
	'text' => q[CASE n % 4 WHEN 0 THEN '' WHEN 1 THEN repeat(chr(97 + n % 26), 5000) || n ELSE 'ä"\\' || n END],
	'varchar(20)' => q['v' || n],
	'char(5)' => q['c' || n % 100],
	'"char"' => q[chr(65 + n % 20)::"char"],
	'name' => q[('name' || n)::name],
	'bytea' => q[decode(repeat(lpad(to_hex(n % 256), 2, '0'), 1 + n % 9000), 'hex')],
	'date' => q[CASE WHEN n % 9 = 0 THEN 'infinity' ELSE DATE '2000-01-01' + n END],
	'time' => q[TIME '00:00' + n * INTERVAL '1 minute 0.001 s'],
	'timetz' => q[('10:00:00+0' || n % 9)::timetz],
	'timestamp' => q[CASE WHEN n % 9 = 0 THEN '-infinity' ELSE TIMESTAMP '1900-01-01 01:02:03.456789' + n * INTERVAL '1 day' END],
	'timestamptz' => q[TIMESTAMPTZ '2020-03-29 01:30:00+00' + n * INTERVAL '1 hour'],
	'interval' => q[make_interval(n % 5, n % 20, 0, n, 0, -n, 0.5)],
	'uuid' => q[md5(n::text)::uuid],
	'json' => q[('{"a" :' || n || '}')::json],
	'jsonb' => q[jsonb_build_object('a', n, 'b', ARRAY[n, NULL])],
	'inet' => q[('10.0.' || n % 200 || '.1/24')::inet],
	'macaddr' => q[('08:00:2b:01:02:' || lpad(to_hex(n % 256), 2, '0'))::macaddr],
	'bit(8)' => q[(n % 256)::bit(8)],
	'varbit' => q[(n % 256)::bit(8)::varbit],
	'point' => q[point(n, 0.1)],
	'polygon' => q[polygon(box(point(0, 0), point(n, n)))],
	'money' => q[(n * 1.5)::numeric::money],
	'oid' => q[(n + 4000000000)::oid],
	'pg_lsn' => q['0/0'::pg_lsn + n],
	'xid8' => q[n::text::xid8],
	'regclass' => q[(ARRAY['pg_class', 'pg_type', 'pg_proc']::regclass[])[1 + n % 3]],
	'tsvector' => q[to_tsvector('simple', 'some words ' || n)],
	'int4range' => q[int4range(n, n + 5)],
	'tstzmultirange' => q[tstzmultirange(tstzrange('2020-01-01 00:00+00', TIMESTAMPTZ '2020-01-02 00:00+00' + n * INTERVAL '1 hour'))],
	'int[]' => q[CASE n % 3 WHEN 0 THEN '{}' WHEN 1 THEN ARRAY[n, NULL, 3] ELSE '[5:6]={1,2}' END::int[]],
	'date[]' => q[ARRAY[DATE '2000-01-01' + n]],
	'"Odd type"' => q[(ARRAY['a', 'B c', 'd"e'])[1 + n % 3]::"Odd type"],
	'"Odd type"[]' => q[ARRAY[(ARRAY['a', 'B c', 'd"e'])[1 + n % 3]]::"Odd type"[]],
	'pair' => q[ROW(n, 'x' || n, DATE '2020-01-01')::pair],
	'pair[]' => q[ARRAY[ROW(n, 'x', NULL)::pair, NULL]],
	'positive' => q[(n + 1)::positive],
);
my @types = sort keys %types;
# of keys
my @key_types = ('int', 'text', 'uuid', 'timestamptz', 'bigint', 'date', 'numeric(10,2)', '"Odd type"', 'positive', 'varchar(20)');

my $setup = <<'SQL';
CREATE EXTENSION IF NOT EXISTS pg_mip;
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS r CASCADE;
CREATE SCHEMA r;
SET search_path = r, public;
CREATE TYPE "Odd type" AS ENUM ('a', 'B c', 'd"e');
CREATE TYPE pair AS (x int, y text, z date);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE seen (op "char", relation text, identity jsonb, row jsonb) USING heap;
CREATE TABLE writesets (n int, w bytea) USING heap;
CREATE FUNCTION values_sql(relation regclass, who text, chosen text[]) RETURNS text LANGUAGE sql AS $$
	SELECT 'jsonb_build_object(' || string_agg(format('%1$L, CASE WHEN %2$s.%1$I IS DISTINCT FROM NULL THEN format(''%%s'', %2$s.%1$I) END', attname, who), ',') || ')'
	FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped AND attgenerated <> 'v' AND (chosen IS NULL OR attname = ANY (chosen)) $$;
-- The whole row is the identity, without generated columns, unless there is a key.
CREATE FUNCTION watch(relation regclass, key text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	key := coalesce(key, ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped AND attgenerated = ''));
	EXECUTE format('CREATE FUNCTION %I() RETURNS trigger LANGUAGE plpgsql SET search_path = '''' SET DateStyle = ''ISO, YMD''
		SET IntervalStyle = postgres SET TimeZone = UTC SET extra_float_digits = 1 SET bytea_output = hex SET lc_monetary = ''C'' AS %L',
		'see ' || relation, format('
		DECLARE o jsonb; n jsonb; i jsonb;
		BEGIN
			IF TG_OP <> ''INSERT'' THEN o := %1$s; i := %2$s; END IF;
			IF TG_OP <> ''DELETE'' THEN n := %3$s; END IF;
			IF TG_OP = ''UPDATE'' THEN
				n := (SELECT coalesce(jsonb_object_agg(key, value), ''{}'') FROM jsonb_each(n) WHERE value IS DISTINCT FROM o -> key);
			END IF;
			INSERT INTO r.seen VALUES (left(TG_OP, 1)::"char", format(''%%I.%%I'', TG_TABLE_SCHEMA, TG_TABLE_NAME), i, n);
			RETURN NULL;
		END', values_sql(relation, 'OLD', NULL), values_sql(relation, 'OLD', key), values_sql(relation, 'NEW', NULL)));
	EXECUTE format('CREATE TRIGGER zz_see AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %I()', relation, 'see ' || relation);
END $$;
CREATE FUNCTION difference(w bytea) RETURNS SETOF text LANGUAGE sql AS $$
	WITH captured AS MATERIALIZED (SELECT c.op, c.relation, c.identity, c.row FROM mip.writeset_changes(w) c),
	missing AS (SELECT * FROM r.seen EXCEPT ALL SELECT * FROM captured),
	made_up AS (SELECT * FROM captured EXCEPT ALL SELECT * FROM r.seen)
	SELECT 'missing ' || left(m::text, 2000) FROM missing m UNION ALL SELECT 'made up ' || left(m::text, 2000) FROM made_up m
$$;
-- by an independent way, too
CREATE FUNCTION contents() RETURNS TABLE (t text, rows text, checksum text) LANGUAGE plpgsql AS $$
BEGIN
	FOR t IN SELECT c.oid::regclass::text FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relnamespace = 'r'::regnamespace AND amname = 'mip' AND relkind = 'r' ORDER BY relname LOOP
		EXECUTE format('SELECT count(*) || md5(string_agg(x::text, ''|'' ORDER BY x::text COLLATE "C")) FROM ONLY %s x', t) INTO rows;
		checksum := mip.relation_checksum(t::regclass);
		RETURN NEXT;
	END LOOP;
END $$;
SQL

# ---- tables ----

my @tables;    # name, columns (of values), types, whether partitioned

sub quoted { my ($name) = @_; return qq["$name"] }

sub random_table
{
	my ($i) = @_;
	my $table = { name => one_of("t$i", "Odd \"\"name$i", "größe$i") };
	my (@columns, @extra);
	my $kind = one_of('key', 'key', 'key', 'two', 'replica', 'whole', 'whole', 'partitioned', 'deferrable');
	my @key = $kind eq 'two' || $kind eq 'partitioned' ? ('k1', 'k2') : ('k1');
	for my $k (@key)
	{
		my $type = $k eq 'k2' && $kind eq 'partitioned' ? 'int' : one_of(@key_types);
		push @columns, [ $k, $type ];
	}
	push @columns, [ "c$_", one_of(@types) ] for 1 .. 2 + int rand 6;
	@columns = sort { rand() <=> 0.5 } @columns;
	my @definitions = map { "$_->[0] $_->[1]" . ($kind eq 'replica' && $_->[0] eq 'k1' ? ' NOT NULL' : '') } @columns;
	splice @definitions, rand @definitions, 0, 'dropped int' if chance(0.5) and my $dropped = 1;
	push @definitions, 'gen text GENERATED ALWAYS AS (upper(coalesce(g, \'\'))) STORED', 'g text'
	  if chance(0.3) and my $gen = 1;
	push @columns, [ 'g', 'varchar(20)' ] if $gen;
	push @definitions, 'virt int GENERATED ALWAYS AS (h * 2) VIRTUAL', 'h int'
	  if $has_virtual && chance(0.3) and my $virtual = 1;
	push @columns, [ 'h', 'int' ] if $virtual;
	my $keys = join ', ', @key;
	push @definitions, "PRIMARY KEY ($keys)" if $kind =~ /key|two|partitioned/;
	push @definitions, "PRIMARY KEY ($keys) DEFERRABLE" if $kind eq 'deferrable';
	my $name = quoted($table->{name});
	my $sql = "CREATE TABLE $name (" . join(', ', @definitions) . ')'
	  . ($kind eq 'partitioned' ? ' PARTITION BY RANGE (k2);' : ' USING mip;');
	if ($kind eq 'partitioned')
	{
		$sql .= qq[CREATE TABLE ${\quoted("$table->{name} $_")} PARTITION OF $name FOR VALUES FROM ($_) TO ($_ + 50) USING mip;] for 0, 50;
		$sql .= qq[CREATE TABLE ${\quoted("$table->{name} rest")} PARTITION OF $name DEFAULT USING mip;];
	}
	if ($kind eq 'replica')
	{
		$sql .= qq[CREATE UNIQUE INDEX "ri$i" ON $name (k1); ALTER TABLE $name REPLICA IDENTITY USING INDEX "ri$i";];
	}
	$sql .= qq[ALTER TABLE $name DROP dropped;] if $dropped;
	$sql .= qq[ALTER TABLE $name ADD added int DEFAULT $i;] if chance(0.3);
	my $key = $kind =~ /whole|deferrable/ ? 'NULL' : "'{$keys}'";
	$sql .= "SELECT watch(\$\$$name\$\$, $key);";
	# a partition's triggers are clones; inheritance children have their own
	if ($kind eq 'whole' && chance(0.4))
	{
		$sql .= qq[CREATE TABLE "child$i" (own int) INHERITS ($name) USING mip; SELECT watch('"child$i"', NULL);];
		$table->{child} = qq["child$i"];
	}
	$table->{columns} = \@columns;
	$table->{kind} = $kind;
	return ($table, $sql);
}

# ---- statements ----

sub value { my ($type, $n) = @_; (my $v = $types{$type}) =~ s/\bn\b/$n/g; return "($v)" }

sub insert
{
	my ($table, $from, $to) = @_;
	my $name = $table->{child} && chance(0.5) ? $table->{child} : quoted($table->{name});
	my @columns = grep { $_->[0] =~ /^k/ || chance(0.8) } @{ $table->{columns} };
	return "INSERT INTO $name (" . join(', ', map { $_->[0] } @columns) . ') SELECT '
	  . join(', ', map { value($_->[1], 'n') } @columns) . " FROM generate_series($from, $to) n";
}

sub condition
{
	my $m = 2 + int rand 12;
	return 'abs(hashtext(' . one_of('k1::text', 'ctid::text') . ")) % $m = " . int rand $m;
}

sub random_statement
{
	my $table = one_of(@tables);
	my $name = quoted($table->{name});
	my $from = int rand 150;
	my $set = sub {
		my $old = shift // '';
		my @c = grep { chance(0.4) && ($_->[0] !~ /^k/ || chance(0.4)) } @{ $table->{columns} };
		@c = ($table->{columns}[-1]) if !@c;
		my $n = int rand 1000;
		return join ', ', map { "$_->[0] = " . one_of(value($_->[1], $n), value($_->[1], $n), "$old$_->[0]", $_->[0] =~ /^k/ ? "$old$_->[0]" : 'NULL') } @c;
	};
	my $kind = one_of('insert', 'insert', 'update', 'update', 'update', 'delete', 'conflict', 'merge', 'truncate', 'cursor', 'trigger');
	return insert($table, $from, $from + int rand 20) if $kind eq 'insert';
	return "UPDATE $name SET " . $set->() . ' WHERE ' . condition() if $kind eq 'update' || $kind eq 'cursor';
	return "DELETE FROM $name WHERE " . condition() if $kind eq 'delete';
	return insert({ %$table, child => undef }, $from, $from + 20) . ' ON CONFLICT '
	  . ($table->{kind} =~ /key|replica/ && chance(0.7) ? '(k1) DO UPDATE SET ' . $set->('excluded.') : 'DO NOTHING')
	  if $kind eq 'conflict' && $table->{kind} ne 'deferrable';
	return "MERGE INTO $name t USING (SELECT " . value($table->{columns}[0][1], 'n')
	  . " AS v, n FROM generate_series($from, $from + 10) n) s ON t.$table->{columns}[0][0]::text = s.v::text"
	  . ' WHEN MATCHED AND n % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET ' . $set->()
	  if $kind eq 'merge' && !$table->{child};
	return "TRUNCATE ONLY $name" if $kind eq 'truncate' && chance(0.1) && $table->{kind} ne 'partitioned' && !$table->{child};
	return "UPDATE $name SET $table->{columns}[0][0] = $table->{columns}[0][0] WHERE " . condition();
}

# In a block of its own, so that it may fail; or made undone on purpose.
sub guarded
{
	my ($statement) = @_;
	my $undo = chance(0.2) ? q[RAISE division_by_zero;] : '';
	return "DO \$do\$ BEGIN $statement; $undo EXCEPTION WHEN integrity_constraint_violation OR data_exception OR cardinality_violation THEN END \$do\$;";
}

sub random_transaction
{
	my ($n) = @_;
	my $sql = 'BEGIN; TRUNCATE r.seen; SET LOCAL client_min_messages = warning;'
	  . 'SET LOCAL DateStyle = ' . one_of(q['German'], q['ISO, DMY'], q['SQL, MDY']) . ';'
	  . 'SET LOCAL TimeZone = ' . one_of(q['UTC'], q['Asia/Kolkata'], q['America/New_York']) . ';'
	  . 'SET LOCAL bytea_output = ' . one_of('hex', 'escape') . '; SET LOCAL extra_float_digits = ' . one_of(0, 1, -3) . ';'
	  . 'SET LOCAL IntervalStyle = ' . one_of('iso_8601', 'sql_standard') . ';'
	  . 'SET LOCAL work_mem = ' . one_of(64, 4096) . ';';
	my $truncated = 0;
	for (1 .. 3 + int rand 10)
	{
		my $statement = random_statement();
		if ($statement =~ /^TRUNCATE ONLY (".*")$/)
		{
			# row triggers do not see it: what they have seen before is outdated
			$truncated = 1;
		}
		$sql .= "SAVEPOINT s$_;" if chance(0.3);
		$sql .= guarded($statement);
		$sql .= "ROLLBACK TO s$_;" if $sql =~ /SAVEPOINT s$_;/ && chance(0.4);
	}
	$sql .= 'SET CONSTRAINTS ALL IMMEDIATE;';
	$sql .= "INSERT INTO r.writesets VALUES ($n, mip.writeset());";
	$sql .= "SELECT 'difference ' || d FROM r.difference((SELECT w FROM r.writesets WHERE n = $n)) d;" if !$truncated;
	$sql .= one_of(1, 1, 1, 0) ? 'COMMIT;' : "DELETE FROM r.writesets WHERE n = $n; ROLLBACK;";
	return $sql;
}

# ---- the runs ----

sub contents
{
	my ($database) = @_;
	return $node->safe_psql($database, 'SET search_path = r, public; SELECT * FROM contents()');
}

my ($transactions, $changes) = (0, 0);
for my $round (1 .. $rounds)
{
	my $sql = $setup;
	@tables = ();
	for my $i (1 .. 4)
	{
		my ($table, $create) = random_table($i);
		push @tables, $table;
		$sql .= $create;
	}
	$sql .= guarded(insert({ %$_, child => undef }, 1, 60)) for @tables;
	$node->safe_psql('postgres', $sql);
	$node->safe_psql('template1', 'DROP DATABASE IF EXISTS copy');
	$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
	for my $n (1 .. 12)
	{
		my $transaction = random_transaction($n);
		my ($status, $out, $error) = $node->psql('postgres', "SET search_path = r, public; $transaction",
			on_error_stop => 1);
		if ($status != 0)
		{
			# deferred constraints may fail in the end
			ok($error =~ /violates|duplicate key/, "round $round, $n: no other error") or diag("$error\n$transaction");
			next;
		}
		ok($out !~ /difference/, "round $round, $n: captured") or diag("$out\n$transaction");
		my $w = $node->safe_psql('postgres', "SELECT encode(w, 'hex') FROM r.writesets WHERE n = $n");
		next if $w eq '';
		$transactions++;
		my ($done, $count, $why) = $node->psql('copy', "SET mip.capture_writeset = off; SET search_path = r, public;"
			  . " SET TimeZone = 'Asia/Tokyo'; SELECT mip.writeset_apply('\\x$w')");
		is($done, 0, "round $round, $n: applied") or diag("$why\n$transaction");
		last if $done != 0;
		$changes += $count;
		is(contents('copy'), contents('postgres'), "round $round, $n: the same") or diag($transaction), last;
	}
}
note("$transactions transactions, $changes changes");
cmp_ok($changes, '>', 10 * $rounds, 'there was something to capture');
$node->stop;

done_testing();
