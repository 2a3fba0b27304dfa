-- Every row lock held beside every row lock wanted, by siblings and outsiders,
-- waiting, NOWAIT and SKIP LOCKED: an outsider beside two siblings fares as it
-- would on a heap table beside the stricter of the two, a sibling beside an
-- outsider as it would alone.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
SET client_min_messages = warning;
CREATE TABLE test.op (id int PRIMARY KEY, name text, sql text);
INSERT INTO test.op VALUES
(0, 'key share', 'SELECT v FROM r WHERE id = %s FOR KEY SHARE'),
(1, 'share', 'SELECT v FROM r WHERE id = %s FOR SHARE'),
(2, 'no key update', 'SELECT v FROM r WHERE id = %s FOR NO KEY UPDATE'),
(3, 'for update', 'SELECT v FROM r WHERE id = %s FOR UPDATE'),
(4, 'update', 'UPDATE r SET v = v WHERE id = %s RETURNING v'),
(5, 'update key', 'UPDATE r SET id = -id WHERE id = %s RETURNING v'),
(6, 'delete', 'DELETE FROM r WHERE id = %s RETURNING v');
CREATE FUNCTION test.sql_of(which int, policy text, n int) RETURNS text LANGUAGE sql AS $$
	SELECT format(sql, n) || CASE WHEN id < 4 THEN policy ELSE '' END FROM test.op WHERE id = which
$$;
-- What becomes of it at once; 'waits' if nothing does.
CREATE FUNCTION test.at_once(name text, sql text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.send(name, sql);
	RETURN CASE WHEN test.waits(name) THEN 'waits' ELSE left(test.result(name), 7) END;
END $$;
CREATE FUNCTION test.heap(held int, wanted int, policy text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE result text;
BEGIN
	PERFORM test.run('ref', 'BEGIN'), test.run('ref', test.sql_of(held, '', 1)), test.run('refu', 'BEGIN');
	result := test.at_once('refu', test.sql_of(wanted, policy, 1));
	PERFORM test.run('ref', 'ROLLBACK');
	IF result = 'waits' THEN PERFORM test.result('refu'); END IF;
	PERFORM test.run('refu', 'ROLLBACK');
	RETURN result;
END $$;
CREATE TABLE test.expected (held int, wanted int, policy text, result text, PRIMARY KEY (held, wanted, policy));
CREATE FUNCTION test.expected(held int, wanted int, policy text) RETURNS text LANGUAGE sql AS $$
	SELECT result FROM test.expected e WHERE e.held = expected.held AND e.wanted = expected.wanted AND e.policy = expected.policy
$$;
CREATE FUNCTION test.stricter(a text, b text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN a ~ '^\d$' THEN b ELSE a END
$$;

-- An outsider beside two siblings, in row n; then beside the second alone.
CREATE FUNCTION test.outsider(n int, a int, b int, c int, policy text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	result text;
	alone boolean;
BEGIN
	PERFORM test.begin('t1', 'locks ' || n, 1), test.begin('t2', 'locks ' || n, 2);
	result := test.run('t1', test.sql_of(a, '', n)) || test.run('t2', test.sql_of(b, '', n));
	IF result <> '00' THEN
		RETURN NEXT 'siblings: ' || result;
	END IF;
	IF n % 2 = 0 THEN
		PERFORM test.prepare('t2');
	END IF;
	FOREACH alone IN ARRAY '{false,true}'::boolean[] LOOP
		IF alone THEN
			PERFORM test.run('t1', 'ROLLBACK');
		END IF;
		PERFORM test.run('u', 'BEGIN');
		result := test.at_once('u', test.sql_of(c, policy, n));
		IF result <> (CASE WHEN alone THEN test.expected(b, c, policy) ELSE test.stricter(test.expected(a, c, policy), test.expected(b, c, policy)) END) THEN
			RETURN NEXT result || CASE WHEN alone THEN ' alone' ELSE '' END;
		END IF;
		IF result = 'waits' THEN
			PERFORM test.run('c', format('SELECT pg_cancel_backend(pid) FROM test.session WHERE name = %L', 'u')), test.result('u');
		END IF;
		PERFORM test.run('u', 'ROLLBACK');
	END LOOP;
	IF n % 2 = 0 THEN
		PERFORM test.rollback('c', 'locks ' || n, 2);
	ELSE
		PERFORM test.run('t2', 'ROLLBACK');
	END IF;
END $$;
-- Two siblings beside an outsider who holds a lock, and then is gone.
CREATE FUNCTION test.siblings(n int, held int, a int, b int, policy text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	first text;
	second text;
BEGIN
	PERFORM test.run('u', 'BEGIN'), test.run('u', test.sql_of(held, '', n));
	PERFORM test.begin('t1', 'locks ' || n, 1), test.begin('t2', 'locks ' || n, 2);
	first := test.at_once('t1', test.sql_of(a, policy, n));
	second := test.at_once('t2', test.sql_of(b, policy, n));
	IF first <> test.expected(held, a, policy) OR second <> test.expected(held, b, policy) THEN
		RETURN NEXT format('%s, %s', first, second);
	END IF;
	PERFORM test.run('u', 'ROLLBACK');
	IF first = 'waits' THEN first := test.result('t1'); END IF;
	IF second = 'waits' THEN second := test.result('t2'); END IF;
	-- got it, or has not waited
	IF first !~ '^(0|55P03.*|no rows)$' OR second !~ '^(0|55P03.*|no rows)$' THEN
		RETURN NEXT format('then %s, %s', first, second);
	END IF;
	PERFORM test.run('t1', 'ROLLBACK'), test.run('t2', 'ROLLBACK');
END $$;
RESET client_min_messages;
\set ECHO all
\pset format unaligned
\pset tuples_only on
SET lock_timeout = '30s';
SELECT test.open('t1', 't2', 'u', 'c', 'ref', 'refu');
SELECT count(test.run(s, 'SET lock_timeout = 0')) FROM unnest('{t1,t2,u,refu}'::text[]) s;
CREATE TABLE r (id int PRIMARY KEY, v int) USING heap;
INSERT INTO r VALUES (1, 0);
INSERT INTO test.expected SELECT a.id, b.id, p, test.heap(a.id, b.id, p)
	FROM test.op a, test.op b, unnest('{"", " NOWAIT", " SKIP LOCKED"}'::text[]) p WHERE p = '' OR b.id < 4;
SELECT result, count(*) FROM test.expected GROUP BY 1 ORDER BY 1;
DROP TABLE r;
CREATE TABLE r (id int PRIMARY KEY, v int) USING mip;
INSERT INTO r SELECT n, 0 FROM generate_series(1, 1000) n;
-- every third of all
WITH s AS (SELECT row_number() OVER (ORDER BY a.id, b.id, c.id, e.policy) AS n, a.name AS a, b.name AS b, c.name || e.policy AS c,
		a.id AS a_id, b.id AS b_id, c.id AS c_id, e.policy
	FROM test.op a, test.op b, test.op c JOIN test.expected e ON e.wanted = c.id AND e.held = 0
	WHERE (a.id + b.id + c.id + length(e.policy)) % 3 = 0)
SELECT format('%s and %s, outsider wants %s: %s', a, b, c, o) FROM s, test.outsider(n::int, a_id, b_id, c_id, policy) o;
WITH s AS (SELECT 500 + row_number() OVER (ORDER BY h.id, a.id, b.id, p.p) AS n, h.name AS h, a.name AS a, b.name AS b,
		h.id AS h_id, a.id AS a_id, b.id AS b_id, p.p
	FROM test.op h, test.op a, test.op b, unnest('{"", " NOWAIT", " SKIP LOCKED"}'::text[]) p
	WHERE (p = '' OR a.id < 4 AND b.id < 4) AND (h.id + a.id + b.id + length(p)) % 3 = 0)
SELECT format('outsider has %s, siblings want %s and %s%s: %s', h, a, b, p, o) FROM s, test.siblings(n::int, h_id, a_id, b_id, p) o;
SELECT test.check('r');
SELECT test.corruption('r');
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.close('t1', 't2', 'u', 'c', 'ref', 'refu');
DROP TABLE r;
