# A replicated site: whose code is executed at a COMMIT, and where it is applied, what it finds and leaves, and whether
# rows have room there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use MipTest;
use MipTest::Replicas;
use PostgreSQL::Test::Cluster;
use Test::More;

first_replica('a', q[
	CREATE ROLE joe LOGIN;
	CREATE ROLE ann LOGIN;
	CREATE SCHEMA j AUTHORIZATION joe;
	CREATE SCHEMA hidden;
	SET default_table_access_method = mip;
	CREATE TABLE lookup (n int);
	INSERT INTO lookup VALUES (7);

	-- of a superuser, who is not careful with names
	CREATE FUNCTION careless(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN abs($1); END';
	CREATE TABLE chosen (id int PRIMARY KEY, t text);
	CREATE TABLE careless (id int PRIMARY KEY);
	CREATE UNIQUE INDEX ON careless (careless(id));
	CREATE FUNCTION careless_name(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN lower($1); END';
	CREATE TABLE careless_name (id text PRIMARY KEY);
	CREATE UNIQUE INDEX ON careless_name (careless_name(id));
	CREATE FUNCTION looks(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 + (SELECT max(n) FROM lookup); END';
	CREATE DOMAIN looks AS int CHECK (looks(value) IS NOT NULL);
	SET search_path = public;
	CREATE TABLE looking (id int PRIMARY KEY);
	CREATE INDEX ON looking (looks(id));
	CREATE TABLE arrays (id int PRIMARY KEY, l looks[]);
	CREATE FUNCTION opens(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
		$$ DECLARE c refcursor; BEGIN IF pg_catalog.current_setting('transaction_read_only') = 'on' THEN OPEN c FOR SELECT 1; END IF; RETURN $1; END $$;
	CREATE TABLE opening (id int PRIMARY KEY, n int);
	CREATE UNIQUE INDEX ON opening (opens(n));
	CREATE FUNCTION writes(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN IF $1 > 10 THEN INSERT INTO public.lookup VALUES ($1); END IF; RETURN $1; END';
	CREATE FUNCTION lies(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN public.writes($1); END';
	CREATE TABLE lying (id int PRIMARY KEY, n int);
	CREATE UNIQUE INDEX ON lying (lies(n));
	INSERT INTO lying VALUES (9, 19);

	-- of others
	GRANT USAGE, CREATE ON SCHEMA public TO joe;
	GRANT INSERT, UPDATE, DELETE, SELECT ON ALL TABLES IN SCHEMA public TO joe;
	CREATE FUNCTION secret(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
	REVOKE ALL ON FUNCTION secret(int) FROM PUBLIC;
	CREATE TABLE j.secret (n int PRIMARY KEY);
	CREATE INDEX ON j.secret (secret(n));
	ALTER TABLE j.secret OWNER TO joe;
	SET ROLE joe;
	CREATE FUNCTION public.lower(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'code of joe''s, executed by %', current_user; END $$;
	CREATE FUNCTION j.abs(int) RETURNS int LANGUAGE plpgsql AS
		$$ BEGIN IF pg_catalog.current_setting('is_superuser') = 'on' OR current_user <> 'joe' THEN RAISE 'code of joe''s, executed by %', current_user; END IF; RETURN $1; END $$;
	CREATE FUNCTION j.f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
	CREATE DOMAIN j.d AS int CHECK (j.f(value) > 0);
	CREATE TYPE j.row AS (a int, d j.d);
	CREATE FUNCTION j.diff(float8, float8) RETURNS float8 IMMUTABLE LANGUAGE sql AS 'SELECT $1 - $2';
	CREATE TYPE j.range AS RANGE (subtype = float8, subtype_diff = j.diff);
	CREATE TABLE j.indexed (n int PRIMARY KEY);
	CREATE INDEX ON j.indexed (j.f(n));
	CREATE TABLE j.partial (n int PRIMARY KEY);
	CREATE INDEX ON j.partial (n) WHERE j.f(n) > 0;
	CREATE TABLE j.in_array (n int PRIMARY KEY, d j.d[]);
	CREATE TABLE j.in_row (n int PRIMARY KEY, r j.row[]);
	CREATE TABLE j.ranges (n int PRIMARY KEY, r j.range);
	CREATE INDEX ON j.ranges USING gist (r);
	CREATE TABLE j.domain (n int PRIMARY KEY, d j.d CHECK (j.f(d) > 0));
	CREATE TABLE j.later (n int PRIMARY KEY);
	RESET ROLE;

	CREATE DOMAIN recent AS timestamptz CHECK (value > clock_timestamp() - interval '1 hour');
	CREATE TABLE fresh (id int PRIMARY KEY, f recent);
	CREATE TABLE fresh_ones (id int PRIMARY KEY, f recent[]);
	CREATE TYPE strings AS RANGE (subtype = text);
	CREATE TABLE hidden.t (id int PRIMARY KEY, n int);
	CREATE VIEW v AS SELECT * FROM hidden.t;
	GRANT ALL ON v TO joe;

	-- what is stored elsewhere in another way
	CREATE TABLE compressed (t text, u text) USING heap;
	-- the latter is long but for lz4: pglz gives up
	INSERT INTO compressed SELECT repeat('a', 5000), string_agg(chr(33 + ('x' || substr(md5('a' || i), 1, 2))::bit(8)::int % 90), '') || repeat('a', 3000)
		FROM generate_series(1, 1200) i;
	CREATE TABLE external (id int PRIMARY KEY, a int, t text);
	CREATE INDEX ON external (a, t);
	ALTER TABLE external ALTER t SET STORAGE EXTERNAL;
	CREATE TABLE plain (id int PRIMARY KEY, t text, u text);
	ALTER TABLE plain ALTER t SET STORAGE PLAIN, ALTER u SET STORAGE PLAIN;
	CREATE TABLE brin (id int PRIMARY KEY, t text);
	CREATE INDEX ON brin USING brin (t);
	CREATE TABLE keyless (c circle);
	CREATE TABLE keyless_names (r regrole);
	CREATE TABLE by_time (z timetz PRIMARY KEY, n int);
	CREATE DOMAIN positive AS int;
	CREATE TABLE keyless_domain (d positive[]);
	INSERT INTO keyless_domain VALUES ('{-1}');
	ALTER DOMAIN positive ADD CHECK (value > 0) NOT VALID;
	INSERT INTO keyless VALUES (circle(point(0, 0), -1));
	INSERT INTO keyless_names VALUES ('joe');
	INSERT INTO by_time VALUES (timetz '10:00+00' AT TIME ZONE interval '100 hours', 1);
	CREATE TABLE ranges (id int PRIMARY KEY, r strings);
	CREATE INDEX ON ranges USING gist (r);
	CREATE TABLE elements (id int PRIMARY KEY, a text[]);
	CREATE INDEX ON elements USING gin (a);
	CREATE TABLE numerics (id int PRIMARY KEY, n numeric);
	CREATE INDEX ON numerics USING brin (n numeric_minmax_multi_ops);
	CREATE TABLE plain_numerics (n numeric);
	CREATE INDEX ON plain_numerics USING brin (n);

	-- entries of several rows
	CREATE TABLE blooms (a int, b int);
	CREATE INDEX blooms_i ON blooms USING brin (a int4_bloom_ops, b int4_bloom_ops);
	CREATE TABLE bloom (a int, b text);
	CREATE INDEX ON bloom USING brin (a, b text_bloom_ops);
	CREATE INDEX ON bloom USING brin (a int4_bloom_ops(n_distinct_per_range = 100), b text_bloom_ops(n_distinct_per_range = 100, false_positive_rate = 0.1));
	CREATE TABLE uuids (a uuid, b uuid);
	CREATE INDEX uuids_i ON uuids USING brin (a uuid_minmax_multi_ops(values_per_range = 256), b uuid_minmax_multi_ops(values_per_range = 256));
	CREATE TABLE few_uuids (a uuid, b inet, c numrange, d tstzrange, e box);
	CREATE INDEX ON few_uuids USING brin (a uuid_minmax_multi_ops, b inet_minmax_multi_ops);
	CREATE INDEX ON few_uuids USING brin (b inet_inclusion_ops, c, d, e);
	CREATE FUNCTION opcinfo(internal) RETURNS internal IMMUTABLE STRICT LANGUAGE internal AS 'brin_minmax_opcinfo';
	CREATE OPERATOR CLASS unknown_ops FOR TYPE int USING brin AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
		FUNCTION 1 opcinfo(internal), FUNCTION 2 brin_minmax_add_value(internal, internal, internal, internal),
		FUNCTION 3 brin_minmax_consistent(internal, internal, internal), FUNCTION 4 brin_minmax_union(internal, internal, internal);
	CREATE TABLE unknown (a int);
	CREATE INDEX unknown_i ON unknown USING brin (a unknown_ops);
	CREATE TABLE included (p polygon, t text);
	CREATE INDEX ON included USING gist (p) INCLUDE (t);
	ALTER TABLE included ALTER t SET STORAGE EXTERNAL;
	CREATE TABLE included_too (p point, t text);
	CREATE INDEX ON included_too USING spgist (p) INCLUDE (t);
	ALTER TABLE included_too ALTER t SET STORAGE EXTERNAL;
	CREATE TABLE mixed (p polygon, r strings, d daterange);
	CREATE INDEX ON mixed USING gist (p, r, d);
	ALTER TABLE mixed ALTER r SET STORAGE EXTERNAL;
	CREATE TABLE documents_of (t tsvector, q tsquery);
	CREATE INDEX ON documents_of USING gist (t, q);
	CREATE INDEX ON documents_of USING gist (t tsvector_ops (siglen = 1500));
	CREATE TABLE signatures (t tsvector, u tsvector);
	CREATE INDEX signatures_i ON signatures USING gist (t tsvector_ops (siglen = 1500), u tsvector_ops (siglen = 1500));
	CREATE FUNCTION consistent(internal, int[], int2, oid, internal) RETURNS bool IMMUTABLE STRICT LANGUAGE internal AS 'range_gist_consistent';
	CREATE FUNCTION together(internal, internal) RETURNS int[] IMMUTABLE STRICT LANGUAGE internal AS 'range_gist_union';
	CREATE FUNCTION same(int[], int[], internal) RETURNS internal IMMUTABLE STRICT LANGUAGE internal AS 'range_gist_same';
	CREATE OPERATOR CLASS elements_ops FOR TYPE int[] USING gist AS OPERATOR 3 && (anyarray, anyarray), FUNCTION 1 consistent(internal, int[], int2, oid, internal),
		FUNCTION 2 together(internal, internal), FUNCTION 5 range_gist_penalty(internal, internal, internal),
		FUNCTION 6 range_gist_picksplit(internal, internal), FUNCTION 7 same(int[], int[], internal);
	CREATE TABLE unions (a int[]);
	CREATE INDEX unions_i ON unions USING gist (a elements_ops);
	CREATE TABLE strings_apart (r strings, t text);
	CREATE INDEX ON strings_apart USING spgist (r);
	CREATE INDEX ON strings_apart USING spgist (t);
	CREATE TABLE strings_parts (n int, r strings) PARTITION BY LIST (n);
	CREATE TABLE strings_part PARTITION OF strings_parts FOR VALUES IN (1);
	CREATE INDEX ON strings_part USING gist (strings(lower(r), upper(r))) WHERE n > 0;
	DO $$ BEGIN
		EXECUTE 'CREATE TABLE wide (id int PRIMARY KEY, ' || (SELECT string_agg('c' || i || ' text STORAGE EXTERNAL', ', ') FROM generate_series(1, 460) i) || ')';
	EXCEPTION WHEN syntax_error THEN	-- before 16
		EXECUTE 'CREATE TABLE wide (id int PRIMARY KEY, ' || (SELECT string_agg('c' || i || ' text', ', ') FROM generate_series(1, 460) i) || ')';
		EXECUTE 'ALTER TABLE wide ' || (SELECT string_agg('ALTER c' || i || ' SET STORAGE EXTERNAL', ', ') FROM generate_series(1, 460) i);
	END $$;
	DO $$ BEGIN
		EXECUTE 'CREATE TABLE wide_ints (' || (SELECT string_agg('c' || i || ' int', ', ') FROM generate_series(1, 1050) i) || ', t text)';
		EXECUTE 'CREATE TABLE wide_booleans (' || (SELECT string_agg('c' || i || ' boolean', ', ') FROM generate_series(1, 1100) i) || ', t text)';
		EXECUTE 'CREATE TABLE wide_texts (q tsquery, ' || (SELECT string_agg('c' || i || ' text', ', ') FROM generate_series(1, 100) i) || ')';
	END $$;
	CREATE TABLE small (t text) USING heap;
	INSERT INTO small VALUES (repeat('a', 1000));
	CREATE TABLE copied (t text, u text, v int DEFAULT 1);
	ALTER TABLE copied ALTER t SET STORAGE EXTERNAL, ALTER u SET STORAGE EXTERNAL;
	CREATE TABLE documents (id int PRIMARY KEY, x xml);
	CREATE TABLE more_documents (id int PRIMARY KEY, x xml[]);
	CREATE TABLE half (id int PRIMARY KEY, n int);
	INSERT INTO half VALUES (0, 0);
	GRANT ALL ON ALL TABLES IN SCHEMA public TO joe;
	RESET search_path;]);
if (mip_sql($node{a}, q[SELECT count(*) FROM pg_available_extensions WHERE name IN ('btree_gist', 'pg_trgm')]) == 2)
{
	$node{a}->append_conf('postgresql.conf', "mip.replicated_database = ''");
	$node{a}->restart;
	mip_sql($node{a}, q[
		CREATE EXTENSION btree_gist;
		CREATE EXTENSION pg_trgm;
		CREATE TABLE bookings (name text, during daterange, EXCLUDE USING gist (name WITH =, during WITH &&)) USING mip;
		CREATE TABLE numbered (n int, u uuid, d date, during daterange, EXCLUDE USING gist (n WITH =, u WITH =, d WITH =, during WITH &&)) USING mip;
		CREATE TABLE similar_to (t text) USING mip;
		CREATE INDEX ON similar_to USING gist (t gist_trgm_ops)]);
	$node{a}->append_conf('postgresql.conf', "mip.replicated_database = 'postgres'");
	$node{a}->restart;
	start_applier('a');
	receive('a');
}
if ($node{a}->pg_version >= 16)
{
	$node{a}->append_conf('postgresql.conf', "mip.replicated_database = ''");
	$node{a}->restart;
	mip_sql($node{a}, q[
		CREATE TYPE js AS ENUM ('a');
		CREATE FUNCTION js_to_json(js) RETURNS json IMMUTABLE LANGUAGE sql AS $$SELECT '1'::json$$;
		CREATE CAST (js AS json) WITH FUNCTION js_to_json(js);
		CREATE TABLE made_json (id int PRIMARY KEY, c js) USING mip;
		CREATE INDEX ON made_json ((json_array(c RETURNING text)))]);
	$node{a}->append_conf('postgresql.conf', "mip.replicated_database = 'postgres'");
	$node{a}->restart;
	start_applier('a');
	receive('a');
}
join_site('b', 'a');

my $s = session($node{a}, 'client');
my $joe = session($node{a}, 'joe');
$joe->sql('SET ROLE joe');

# ---- whose code it is ----

$joe->refused("INSERT INTO j.$_->[0]", '0A000', "code of others: $_->[0]") for (
	['indexed VALUES (1)'], ['partial VALUES (1)'], ['in_array VALUES (1)'], ['in_row VALUES (1)'], ['ranges VALUES (1)'],
	['secret VALUES (1)']);
$s->refused('INSERT INTO fresh_ones VALUES (1)', '0A000', 'a domain within a column that goes by the clock');
done($s, 'INSERT INTO fresh VALUES (1, now())', 'that is a column\'s own is asked once', 'fresh');
done($joe, 'INSERT INTO j.domain VALUES (1, 1)', 'so are checks', 'j.domain');
done($joe, 'INSERT INTO j.later VALUES (1)', 'a table without code', 'j.later');

# ---- what it finds ----

$joe->sql('SET search_path = j, pg_catalog, public');
done($joe, 'INSERT INTO careless VALUES (-1)', 'names are not looked for in the caller\'s schemas', 'careless');
done($joe, q[INSERT INTO careless_name VALUES ('A')], 'nor in those of who applies', 'careless_name');
$joe->sql('RESET search_path');
$s->refused('INSERT INTO looking VALUES (1)', '42P01', 'what the caller only finds is not there');
is(scalar waiting('a'), 0, 'so it is not published');
$joe->sql('CREATE TEMP VIEW lookup AS SELECT 1 AS n');
$joe->refused("INSERT INTO $_", '0A000', "temporary objects, which functions may find: $_") for ('looking VALUES (2)', q[arrays VALUES (1, '{1}')]);
done($joe, 'INSERT INTO j.later VALUES (2)', 'where there are no functions they may be', 'j.later');
$joe->sql('DISCARD TEMP');

# ---- what it leaves ----

done($s, 'INSERT INTO opening VALUES (1, 1)', 'a cursor that a function leaves open', 'opening');
is($s->sql('SELECT count(*) FROM pg_cursors'), 0, 'it is closed');
done($s, 'UPDATE opening SET n = 2', 'also of an update', 'opening');
is($s->sql('SELECT count(*) FROM pg_cursors'), 0, 'and closed');
$s->refused('INSERT INTO lying VALUES (1, 11)', '25006', 'a function that writes when it is executed once more');
done($s, 'INSERT INTO lying VALUES (1, 1)', 'or not', 'lying', 'lookup');
$s->refused('UPDATE lying SET n = 12 WHERE id = 1', '25006', 'of an update');
$s->refused('DELETE FROM lying WHERE id = 9', '25006', 'for a key of a row that goes');
is(scalar waiting('a'), 0, 'nothing of that is published');
all_are_same('what it has written', 'lookup', 'lying');

# ---- who may not name a table ----

done($joe, 'INSERT INTO v VALUES (1, 1)', 'through a view', 'hidden.t');
done($joe, 'UPDATE v SET n = 2', 'through a view', 'hidden.t');

# ---- room ----

$s->refused($_->[0], $_->[1], $_->[0]) for (
	[ 'INSERT INTO external SELECT 1, 1, t FROM compressed', '54000' ],
	[ 'INSERT INTO plain SELECT 1, t, t FROM compressed', '54000' ],
	[ q[DELETE FROM keyless], '22P03' ],
	[ q[UPDATE by_time SET n = 2], '22P03' ],
	[ q[DELETE FROM keyless_names], '0A000' ],
	[ q[DELETE FROM keyless_domain], '23514' ]);
done($s, q[INSERT INTO external VALUES (2, 1, 'x')], 'what has room', 'external');
$s->refused('UPDATE external SET t = (SELECT t FROM compressed) WHERE id = 2', '54000', 'a column of an index of several');
done($s, q[INSERT INTO plain VALUES (2, 'x', 'y')], 'a row that has room', 'plain');
done($s, 'UPDATE plain SET t = (SELECT t FROM compressed) WHERE id = 2', 'an update that has', 'plain');
$s->refused('UPDATE plain SET u = (SELECT t FROM compressed) WHERE id = 2', '54000', 'and one that has not, with what it leaves as it is');
$s->refused(q[INSERT INTO brin SELECT 1, string_agg(md5(random()::text), '') FROM generate_series(1, 150)], '54000', 'half a page in an index of ranges');
done($s, q[INSERT INTO brin SELECT 1, string_agg(md5(random()::text), '') FROM generate_series(1, 100)], 'less', 'brin');

done($s, q[INSERT INTO ranges VALUES (1, strings(repeat('a', 200), repeat('b', 200)))], 'a range', 'ranges');
$s->refused(q[INSERT INTO ranges SELECT 2, strings(string_agg('a' || md5(random()::text), ''), 'b') FROM generate_series(1, 40)], '54000',
	'that is long, in a tree');
done($s, q[INSERT INTO elements VALUES (1, ARRAY[repeat('a', 3000)])], 'an element that is short once it is compressed', 'elements');
done($s, 'INSERT INTO numerics VALUES (1, 1e300)', 'a number', 'numerics');
$s->refused('INSERT INTO numerics VALUES (2, 1e309)', '22003', 'whose distance to others cannot be told');
$s->refused('INSERT INTO numerics VALUES (3, 1e308)', '22003', 'or only if they are near');
$s->refused(q[INSERT INTO numerics VALUES (4, ('0.' || repeat('1', 600))::numeric)], '54000', 'a long one: many of them are in one entry');
done($s, q[INSERT INTO numerics VALUES (4, repeat('1', 200)::numeric)], 'a shorter one', 'numerics');
done($s, q[INSERT INTO plain_numerics VALUES (1e309), (('0.' || repeat('1', 600))::numeric)], 'elsewhere there are two', 'plain_numerics');

# entries of several rows
my @refused = (['blooms VALUES (1, 1)', 'blooms_i'], ['uuids VALUES (NULL)', 'uuids_i'], ['unknown VALUES (1)', 'unknown_i'],
	['signatures VALUES (NULL)', 'signatures_i'], ['unions VALUES (NULL)', 'unions_i']);
like($s->refused("INSERT INTO $_->[0]", '0A000', "entries that may become too long: $_->[0]"), qr/index "$_->[1]" cannot be replicated/, 'by name')
	for @refused;
done($s, "INSERT INTO $_->[0]", "entries that do not: $_->[0]", $_->[1]) for (
	[q[bloom SELECT i, repeat(i::text, 1000) FROM generate_series(1, 50) i], 'bloom'],
	[q{few_uuids SELECT gen_random_uuid(), '10.0.0.1', '[1, 2]', '[now, infinity)', '((1, 1), (2, 2))' FROM generate_series(1, 50)}, 'few_uuids'],
	[q[included VALUES ('((1, 1), (2, 2))', repeat('x', 2000))], 'included'],
	[q[included_too VALUES ('(1, 1)', repeat('x', 2000))], 'included_too'],
	[q{mixed VALUES ('((1, 1), (2, 2))', strings('a', repeat('b', 400)), '[today, tomorrow)')}, 'mixed'],
	[q[documents_of SELECT to_tsvector('simple', string_agg(i::text, ' ')), 'a & b' FROM generate_series(1, 1000) i], 'documents_of'],
	[q[strings_apart VALUES (strings('a', repeat('b', 400)), repeat('c', 2000))], 'strings_apart']);
$s->refused("INSERT INTO $_->[0]", '54000', $_->[1]) for (
	[q[included SELECT '((1, 1), (2, 2))', t FROM compressed], 'a column of a leaf only, beside what an operator class compresses'],
	[q[included_too SELECT '(1, 1)', t FROM compressed], 'in SP-GiST'],
	[q[mixed SELECT '((1, 1), (2, 2))', strings('a', 'b' || repeat('c', 1000))], 'a key beside one that is compressed'],
	[q[strings_apart SELECT strings('a', 'b' || repeat('c', 1200))], 'bounds of two rows, in SP-GiST']);

# also of what is rolled back, as it would stay in them
sub refused_at_once
{
	my ($sql, $name) = @_;
	$s->sql('BEGIN');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s->refused($sql, '54000', $name);
	$s->sql('ROLLBACK');
	return;
}
my $long = q{(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 150) i)};
refused_at_once("INSERT INTO brin VALUES (3, $long)", 'before it is written');
refused_at_once("UPDATE brin SET t = $long", 'an update');
refused_at_once("INSERT INTO brin VALUES (3, $long) ON CONFLICT DO NOTHING", 'ON CONFLICT');
refused_at_once(q[COPY brin FROM PROGRAM 'printf "3\t%05000d" 1'], 'COPY');
refused_at_once("INSERT INTO strings_parts VALUES (1, strings('a', $long))", 'a partition');
done($s, q[INSERT INTO strings_parts VALUES (1, strings('a', 'b'))], 'what fits', 'strings_parts');

SKIP:
{
	skip 'no btree_gist, or pg_trgm', 5 if mip_sql($node{a}, q[SELECT count(*) FROM pg_available_extensions WHERE name IN ('btree_gist', 'pg_trgm')]) < 2;
	$s->refused(q{INSERT INTO bookings SELECT repeat('a', 950), '[today, tomorrow)'}, '54000', 'a text of which an inner entry has two');
	done($s, q{INSERT INTO bookings VALUES (repeat('a', 800), '[today, tomorrow)')}, 'a shorter one', 'bookings');
	$s->refused(q{INSERT INTO bookings VALUES (repeat('a', 800), '[today, tomorrow)')}, '23P01', 'which excludes others');
	done($s, q{INSERT INTO numbered VALUES (1, gen_random_uuid(), 'today', '[today, tomorrow)')}, 'what is of a fixed length', 'numbered');
	done($s, q[INSERT INTO similar_to SELECT string_agg(md5(i::text), ' ') FROM generate_series(1, 20) i], 'a signature', 'similar_to');
}
$s->refused('INSERT INTO wide SELECT 1, ' . join(', ', ('t') x 460) . ' FROM small', '54000', 'a row of which everything is out of line elsewhere');

done($s, "INSERT INTO wide_ints VALUES (" . join(', ', (1) x 1050) . ", 'x')", 'a row of many short values', 'wide_ints');
done($s, "INSERT INTO wide_booleans VALUES (" . join(', ', ('true') x 1100) . ", 'x')", 'and shorter ones', 'wide_booleans');
done($s, q[INSERT INTO wide_texts VALUES ('a & b', ] . join(', ', (q[repeat(md5(random()::text), 3)]) x 100) . ')', 'texts that go out of line', 'wide_texts');

SKIP:
{
	skip 'casts to json', 1 if $node{a}->pg_version < 16;
	$s->refused('INSERT INTO made_json VALUES (1)', '0A000', 'casts that are looked for when they are executed');
}

SKIP:
{
	skip 'no lz4', 1 if mip_sql($node{a}, q[SELECT count(*) FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)]) eq '0';
	$s->sql(q[SET default_toast_compression = 'lz4']);
	$s->refused('INSERT INTO careless_name SELECT u FROM compressed', '54000', 'what has room only if it is compressed as here');
	$s->sql('RESET default_toast_compression');
}

SKIP:
{
	my ($there) = $s->send_sql(q[SELECT xml '<a/>'])->finish;
	skip 'no xml', 5 if $there eq '';
	done($s, q[INSERT INTO documents VALUES (1, '<?xml version="1.0"?><a/>')], 'xml', 'documents');
	is(mip_sql($node{b}, 'SELECT x::text FROM documents'), '<?xml version="1.0"?><a/>', 'as it is stored, not as it is written');
	$s->refused('INSERT INTO more_documents VALUES (1)', '0A000', 'where that cannot be: arrays of it');
}

# an index that was not built to its end
$s->refused('CREATE INDEX CONCURRENTLY half_n ON half ((1 / n))', '22012', 'an index that cannot be built');
done($s, 'INSERT INTO half VALUES (1, 0)', 'is not looked at', 'half');

# ---- new indexes ----

# compressed where it comes from, and not elsewhere
my $superuser = mip_sql($node{a}, 'SELECT current_user');
my $ddl = session($node{a}, 'ddl');
done($s, 'INSERT INTO copied SELECT t, t FROM compressed', 'a row whose values are copied', 'copied');
define($ddl, 'CREATE INDEX copied_i ON copied (t, u, (t || u))');
$ddl->ends_refused('54000', 'is looked at as it is elsewhere');
define($ddl, 'ALTER TABLE copied ALTER v TYPE bigint, ADD UNIQUE (t, u, v)');
$ddl->ends_refused('54000', 'also for a constraint, of rows that are written anew');
define($ddl, 'CREATE INDEX blooms_j ON blooms USING brin (b int4_bloom_ops, a int4_bloom_ops)');
$ddl->ends_refused('0A000', 'as is an index that may have no room for entries');

# ---- rows that are compressed as their writers have chosen ----

SKIP:
{
	skip 'a server without lz4', 1 if mip_sql($node{a}, q[SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression']) ne 't';
	$s->sql('SET default_toast_compression = lz4');
	done($s, q[INSERT INTO chosen VALUES (1, repeat('x', 300000))], 'a row', 'chosen');
	$s->sql('RESET default_toast_compression');
	$ddl->refused($_, '54000', 'an index that has room for it if it is compressed so') for
		q[SET default_toast_compression = lz4; SELECT mip.replicate_ddl('CREATE INDEX chosen_t ON chosen (t)')],
		q[SET default_toast_compression = pglz; SELECT mip.replicate_ddl('CREATE INDEX chosen_t ON chosen (t)')];
}
is(scalar waiting('a'), 0, 'nothing of that is published');

# ---- temporary definitions ----

$joe->sql($_) for ('CREATE TEMP TABLE x (id serial, n int GENERATED ALWAYS AS IDENTITY)', 'CREATE TEMP TABLE y (LIKE fresh INCLUDING ALL)',
	'CREATE TABLE pg_temp.z AS SELECT 1 AS i', 'CREATE VIEW pg_temp.w AS SELECT 1 AS i', 'SELECT 1 AS i INTO pg_temp.q', q[COMMENT ON TABLE x IS 'x'],
	'GRANT SELECT ON x TO ann', 'ALTER SEQUENCE x_id_seq RESTART', 'CREATE STATISTICS pg_temp.st ON id, n FROM x',
	q[CREATE FUNCTION pg_temp.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'],
	'CREATE TRIGGER t BEFORE INSERT ON x FOR EACH ROW EXECUTE FUNCTION pg_temp.f()', 'DROP TABLE x');
pass('what is temporary is each session\'s own');
$joe->refused($_, '0A000', $_) for (q[COMMENT ON TABLE fresh IS 'x'], 'GRANT SELECT ON j.later TO ann', 'CREATE VIEW j.w AS SELECT 1 AS i',
	'CREATE TRIGGER t BEFORE INSERT ON j.later FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()');

# ---- what is trusted may not be so any more ----

sub defined_everywhere
{
	my ($command) = @_;
	define($ddl, $command);
	take('a');
	receive($_) for qw(a b);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(($ddl->finish)[1], '', $command);
	return;
}
$joe->sql('DISCARD ALL; SET ROLE joe');
defined_everywhere("ALTER FUNCTION j.f(int) OWNER TO $superuser");
done($joe, 'INSERT INTO j.indexed VALUES (1)', 'a function that a superuser owns', 'j.indexed');
done($joe, q[INSERT INTO j.in_row VALUES (1, '{"(1,1)"}')], 'and a domain with it', 'j.in_row');
defined_everywhere('CREATE FUNCTION j.g(int) RETURNS int IMMUTABLE LANGUAGE sql AS $$SELECT $1$$; ALTER FUNCTION j.g(int) OWNER TO joe');
done($ddl, 'INSERT INTO j.later VALUES (3)', 'a table without code yet', 'j.later');
$ddl->refused(q[SELECT mip.replicate_ddl('CREATE INDEX later_g ON j.later (j.g(n))')], '0A000', 'a new index');
defined_everywhere('ALTER TYPE j.row ADD ATTRIBUTE f public.recent');
$joe->refused(q[INSERT INTO j.in_row VALUES (2, NULL)], '0A000', 'a new part of a type');
defined_everywhere('ALTER FUNCTION j.f(int) OWNER TO joe');
$joe->refused('INSERT INTO j.indexed VALUES (2)', '0A000', 'a function that is handed over');
is(scalar waiting('a'), 0, 'nothing of that is published');
all_are_same('all of it', 'j.indexed', 'j.later', 'careless', 'opening');

leave_site($_) for sort keys %node;
done_testing();
