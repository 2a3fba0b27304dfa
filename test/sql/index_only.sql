-- Kept plans with index-only scans: at SERIALIZABLE and beside siblings they look at the
-- rows, by an index scan of the same index, with the same results as before, and as a
-- heap table's; elsewhere they stay what they are.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\set ECHO all
\pset format unaligned
\pset tuples_only on
SET lock_timeout = '30s';
SELECT test.open('t1');
CREATE SCHEMA only_mip;
CREATE SCHEMA only_heap;
CREATE FUNCTION test.fill(schema name, am name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('search_path', schema || ', public', true), set_config('default_table_access_method', am, true);
	CREATE TABLE t (id int, a int, b int, s text COLLATE "C", n name, p point, r int4range, c varchar(20))
		WITH (autovacuum_enabled = false);
	INSERT INTO t SELECT i, i % 7, i % 11, 'S' || i, 'n' || i, point(i, i % 13), int4range(i, i + 3), 'c' || i
		FROM generate_series(1, 1000) i;
	INSERT INTO t (a) VALUES (NULL), (3);
	CREATE INDEX t_id ON t (id) INCLUDE (a);
	CREATE INDEX t_ab ON t (a, b DESC);
	CREATE INDEX t_lower ON t (lower(s), s, id);
	CREATE INDEX t_n ON t (n);
	CREATE INDEX t_p ON t USING gist (p);
	CREATE INDEX t_r ON t USING spgist (r);
	CREATE INDEX t_c ON t (c, id) WHERE a = 3;
	CREATE TABLE part (k int, v int) PARTITION BY RANGE (k);
	CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (500)
		WITH (autovacuum_enabled = false);
	CREATE TABLE part_2 (v int, x int, k int) WITH (autovacuum_enabled = false);
	ALTER TABLE part_2 DROP x;
	ALTER TABLE part ATTACH PARTITION part_2 FOR VALUES FROM (500) TO (2000);
	INSERT INTO part SELECT i, i % 5 FROM generate_series(0, 1200) i;
	CREATE INDEX part_kv ON part (k) INCLUDE (v);
END $$;
SELECT test.fill('only_mip', 'mip'), test.fill('only_heap', 'heap');
VACUUM (ANALYZE) only_mip.t, only_heap.t, only_mip.part, only_heap.part;

CREATE TABLE test.query (name text PRIMARY KEY, sql text);
INSERT INTO test.query VALUES
	('key', 'SELECT count(id) FROM t WHERE id < $1'),
	('included', 'SELECT id, a FROM t WHERE id BETWEEN $1 - 5 AND $1 ORDER BY id DESC'),
	('filter', 'SELECT sum(id) FROM t WHERE id < $1 AND a <> 3 AND id % 3 = a % 3'),
	('rows', 'SELECT a, b FROM t WHERE (a, b) = (3, 4) OR (a, b) = (5, $1 % 11) ORDER BY a'),
	('row comparison', 'SELECT count(a) FROM t WHERE (a, a) > (3, $1 % 7)'),
	('array', 'SELECT id FROM t WHERE id = ANY (ARRAY[$1, 3, 500, 2000]) ORDER BY id'),
	('nulls', 'SELECT count(*) FROM t WHERE a IS NULL AND $1 > 0'),
	('expression', 'SELECT lower(s), s FROM t WHERE lower(s) = ''s'' || $1'),
	('expression computed', 'SELECT lower(s) || ''!'', length(s) FROM t WHERE lower(s) > ''s99'' AND id > $1 ORDER BY lower(s)'),
	('name', 'SELECT n, length(n::text) FROM t WHERE n > ''n99'' AND $1 > 0 ORDER BY n'),
	('partial', 'SELECT c, id FROM t WHERE a = 3 AND c > ''c9'' AND $1 > 0 ORDER BY c'),
	('nearest', 'SELECT p FROM t ORDER BY p <-> point($1, 3) LIMIT 4'),
	('circle', 'SELECT count(p) FROM t WHERE p <@ circle(point($1, 5), 4)'),
	('range', 'SELECT r FROM t WHERE r @> $1 ORDER BY r'),
	('greatest', 'SELECT max(id), min(a) FROM t WHERE $1 > 0'),
	('subquery', 'SELECT count(id) FROM t WHERE id < (SELECT max(id) FROM t x WHERE x.id < $1)'),
	('correlated', 'SELECT g, (SELECT count(id) FROM t WHERE id < g) FROM generate_series($1, $1 + 2) g'),
	('lateral', 'SELECT g, x.a FROM generate_series($1, $1 + 2) g, LATERAL (SELECT a FROM t WHERE id = g OFFSET 0) x'),
	('not in', 'SELECT id FROM t WHERE id NOT IN (SELECT id FROM t x WHERE x.id > $1) ORDER BY id DESC LIMIT 3'),
	('with', 'WITH w AS MATERIALIZED (SELECT id, a FROM t WHERE id < $1) SELECT count(*), sum(w.a) FROM w JOIN w o USING (id)'),
	('append', 'SELECT count(k), sum(v) FROM part WHERE k > $1'),
	('merge append', 'SELECT k, v FROM part WHERE k > $1 + 380 ORDER BY k LIMIT 30'),
	('union', 'SELECT id FROM t WHERE id < 3 UNION ALL SELECT k FROM part WHERE k > $1 + 1090'),
	('join', 'SELECT count(*) FROM t JOIN part ON k = id WHERE id < $1');
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SET plan_cache_mode = force_generic_plan;
SET max_parallel_workers_per_gather = 0;

-- What kept plans say: so many index-only scans, and the rows.
CREATE FUNCTION test.scans(schema name, name text, OUT only_index int, OUT result text) LANGUAGE plpgsql AS $$
DECLARE
	statement text := quote_ident(schema || ' ' || name);
	line text;
BEGIN
	PERFORM set_config('search_path', schema || ', public', true);
	IF NOT EXISTS (SELECT FROM pg_prepared_statements p WHERE p.name = schema || ' ' || scans.name) THEN
		EXECUTE format('PREPARE %s(int) AS SELECT string_agg(x::text, '' '') FROM (%s) x', statement,
			(SELECT sql FROM test.query q WHERE q.name = scans.name));
	END IF;
	EXECUTE format('EXECUTE %s(100)', statement) INTO result;
	only_index := 0;
	FOR line IN EXECUTE format('EXPLAIN (COSTS OFF) EXECUTE %s(100)', statement) LOOP
		only_index := only_index + (line LIKE '%Index Only Scan%')::int;
	END LOOP;
END $$;
CREATE TABLE test.before AS
	SELECT q.name, m.only_index, m.result FROM test.query q, test.scans('only_mip', q.name) m;
-- all of them have such plans, and the same results as heap
SELECT q.name, b.only_index FROM test.before b JOIN test.query q USING (name), test.scans('only_heap', q.name) h
	WHERE b.only_index = 0 OR b.only_index <> h.only_index OR b.result IS DISTINCT FROM h.result OR b.result IS NULL;

-- At SERIALIZABLE the mip tables' plans have none, with the same results.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT b.name, m.only_index, h.only_index, m.result, b.result
	FROM test.before b, test.scans('only_mip', b.name) m, test.scans('only_heap', b.name) h
	WHERE m.only_index > 0 OR h.only_index <> b.only_index OR m.result IS DISTINCT FROM b.result OR h.result IS DISTINCT FROM b.result;
SET LOCAL search_path = only_mip, public;
EXPLAIN (COSTS OFF) EXECUTE "only_mip nearest"(100);
EXPLAIN (COSTS OFF) EXECUTE "only_mip expression computed"(100);
COMMIT;
-- What is kept is what it was.
SELECT b.name, m.only_index FROM test.before b, test.scans('only_mip', b.name) m WHERE m.only_index <> b.only_index OR m.result <> b.result;
-- Somebody reads backwards, and where he is.
BEGIN ISOLATION LEVEL SERIALIZABLE;
CREATE FUNCTION test.backwards(schema name) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c SCROLL CURSOR FOR SELECT id FROM t WHERE id BETWEEN 10 AND 14 ORDER BY id;
	v int;
	result text := '';
BEGIN
	PERFORM set_config('search_path', schema || ', public', true);
	OPEN c;
	FOR i IN 1 .. 4 LOOP FETCH c INTO v; result := result || v || ' '; END LOOP;
	FOR i IN 1 .. 2 LOOP FETCH PRIOR FROM c INTO v; result := result || v || ' '; END LOOP;
	FETCH ABSOLUTE 5 FROM c INTO v;
	CLOSE c;
	RETURN result || v;
END $$;
SELECT test.backwards('only_mip'), test.backwards('only_heap');
ROLLBACK;

-- Beside a sibling there are none either, and afterwards the kept plans are used again.
CREATE FUNCTION test.change(schema name, by int) RETURNS text LANGUAGE sql AS $$
	SELECT format('UPDATE %1$s.t SET a = a + %2$s, s = s || ''+'', p = p + point(0.5, %2$s) WHERE id %% 5 = 0;'
		' DELETE FROM %1$s.t WHERE id %% 17 = 0; UPDATE %1$s.part SET v = v + %2$s WHERE k %% 3 = 0;'
		' DELETE FROM %1$s.part WHERE k %% 19 = 0', schema, by) $$;
BEGIN;
SELECT mip.begin('index only', 2);
SELECT test.begin('t1', 'index only', 1);
SELECT test.run('t1', test.change('only_mip', 10));
SELECT test.change('only_mip', 1) AS change \gset
:change;
SELECT sum(m.only_index) AS only_index, count(*) FILTER (WHERE m.result IS DISTINCT FROM b.result) AS other_results
	FROM test.before b, test.scans('only_mip', b.name) m;
ROLLBACK;
SELECT test.run('t1', 'ROLLBACK');
SELECT b.name, m.only_index FROM test.before b, test.scans('only_mip', b.name) m WHERE m.only_index <> b.only_index OR m.result <> b.result;

-- Rows that the sibling has changed, too, are read as this instance has them, though the
-- sibling has gone since, and VACUUM finds their pages all-visible.
BEGIN;
SELECT mip.begin('index only', 2);
SELECT test.begin('t1', 'index only', 1);
SELECT test.run('t1', test.change('only_mip', 10));
:change;
SELECT test.run('t1', 'ROLLBACK');
SELECT test.run('t1', 'VACUUM only_mip.t');
SELECT test.run('t1', 'VACUUM only_mip.part');
SELECT test.run('t1', test.change('only_heap', 1));
SELECT b.name, m.only_index, h.only_index, m.result, h.result
	FROM test.before b, test.scans('only_mip', b.name) m, test.scans('only_heap', b.name) h
	WHERE m.only_index > 0 OR h.only_index <> b.only_index OR m.result IS DISTINCT FROM h.result;
ROLLBACK;
SELECT b.name FROM test.before b, test.scans('only_mip', b.name) m WHERE m.result <> b.result;

SELECT test.close('t1');
\set VERBOSITY terse
SET client_min_messages = warning;
DROP SCHEMA only_mip, only_heap, test CASCADE;
