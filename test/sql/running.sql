-- Statements and cursors that run while the rows under them change: by the
-- instance itself, over a sibling's rows, or by an outsider it has waited for.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set steps :srcdir '/sql/include/steps.psql'
\set ECHO none
\i :sessions
\i :steps
\set ECHO all
\pset format unaligned
\pset tuples_only on
SET lock_timeout = '30s';
SELECT test.open('t1', 't2', 'u', 'v', 'c');
SELECT count(test.run(s, 'SET lock_timeout = 0')) FROM unnest('{t1,t2,u,v}'::text[]) s;
CREATE TABLE a (id int PRIMARY KEY, v int) USING mip;
CREATE TABLE b (id int PRIMARY KEY, v int) USING mip;
INSERT INTO a SELECT i, 0 FROM generate_series(1, 1000) i;
INSERT INTO b SELECT i, 0 FROM generate_series(1, 1000) i;
VACUUM (ANALYZE) a, b;

-- A cursor sees what it saw when it was opened, even by an index only; an
-- update WHERE CURRENT OF finds what has become of the row.
SELECT test.steps($$
	t2: MIP cursor 2
	t2: SET LOCAL enable_seqscan = off
	t2: SET LOCAL enable_bitmapscan = off
	t2: DECLARE keys SCROLL CURSOR FOR SELECT id FROM a WHERE id < 6 ORDER BY id
	t2: DECLARE rows SCROLL CURSOR FOR SELECT id || ':' || v FROM a WHERE id < 6 ORDER BY id
	t2: FETCH 2 FROM keys
	t2: FETCH 2 FROM rows
	t1: MIP cursor 1
	t1: UPDATE a SET v = -1 WHERE id < 6
	t2: UPDATE a SET v = 1 WHERE CURRENT OF rows
	t2: UPDATE a SET v = v + 10 WHERE CURRENT OF rows
	t2: DELETE FROM a WHERE id IN (3, 4)
	t2: UPDATE a SET id = 1001 WHERE id = 5
	t1: ROLLBACK
	c: VACUUM (INDEX_CLEANUP off) a
	t2: FETCH ALL FROM keys
	t2: FETCH ALL FROM rows
	t2: FETCH BACKWARD ALL FROM keys
	t2: FETCH BACKWARD ALL FROM rows
	t2: MOVE ABSOLUTE 3 IN rows
	t2: UPDATE a SET v = 3 WHERE CURRENT OF rows
	t2: MOVE ABSOLUTE 5 IN rows
	t2: DELETE FROM a WHERE CURRENT OF rows
	t2: SELECT id || ':' || v FROM a WHERE id < 7 OR id > 1000 ORDER BY id
	t2: SAVEPOINT s
	t2: DECLARE locked CURSOR FOR SELECT id FROM a WHERE id < 3 FOR UPDATE
	t2: FETCH 1 FROM locked
	t2: UPDATE a SET v = v + 100 WHERE CURRENT OF locked
	t2: FETCH 1 FROM locked
	t2: DELETE FROM a WHERE CURRENT OF locked
	t2: SELECT id || ':' || v FROM a WHERE id < 7 ORDER BY id
	t2: ROLLBACK TO s
	t2: SELECT id || ':' || v FROM a WHERE id < 7 ORDER BY id
	t2: RELEASE s
	t2: SELECT state FROM mip.prepare(NULL, NULL)
	c: SELECT state FROM mip.commit('cursor', 2)
	u: SELECT id || ':' || v FROM a WHERE id < 7 OR id > 1000 ORDER BY id
$$);
-- WITH HOLD: not in an instance, whose session others use; and one of before not
-- in a prepared transaction, but after a commit in one phase.
SELECT test.steps($$
	t1: MIP hold-cursor 1
	t1: DECLARE h CURSOR WITH HOLD FOR SELECT id FROM a WHERE id < 7
	t1: ROLLBACK
	t1: BEGIN
	t1: DECLARE h CURSOR WITH HOLD FOR SELECT id FROM a WHERE id < 7
	t1: SELECT mip.begin('hold-cursor', 1)
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t1: ROLLBACK
	t1: MIP hold-cursor 2
	t1: UPDATE a SET v = -1 WHERE id < 7
	t2: BEGIN
	t2: DECLARE h CURSOR WITH HOLD FOR SELECT id || ':' || v FROM a WHERE id < 7 ORDER BY id
	t2: SELECT mip.begin('hold-cursor', 3)
	t2: UPDATE a SET v = 5 WHERE id < 7
	t1: ROLLBACK
	t2: SELECT state FROM mip.commit_one_phase(NULL, NULL)
	t2: FETCH ALL FROM h
	t2: CLOSE h
$$);

-- A statement whose function makes the overlay's first entry goes on as it
-- began; functions that look anew see the change.
CREATE FUNCTION change(n int) RETURNS int LANGUAGE plpgsql AS $$
	BEGIN UPDATE a SET v = v + 1 WHERE id = n; RETURN (SELECT v FROM a WHERE id = n); END $$;
CREATE FUNCTION look(n int) RETURNS int LANGUAGE plpgsql STABLE AS $$
	BEGIN RETURN (SELECT v FROM a WHERE id = n); END $$;
SELECT test.steps($$
	t1: MIP function 1
	t1: UPDATE a SET v = -1 WHERE id > 990
	t2: MIP function 2
	t2: SELECT id || ':' || v || ':' || change(id) || ':' || look(id) FROM a WHERE id BETWEEN 995 AND 997
	t2: SELECT id || ':' || v || ':' || look(id) FROM a WHERE id BETWEEN 995 AND 997 ORDER BY id
	t2: WITH w AS (UPDATE a SET v = v + 10 WHERE id = 996 RETURNING v) SELECT w.v || ':' || a.v FROM w, a WHERE a.id = 996
	t2: WITH w AS (DELETE FROM a WHERE id = 997 RETURNING v) SELECT w.v || ':' || (SELECT count(*) FROM a WHERE id = 997) FROM w
	t2: UPDATE a SET v = change(996) WHERE id = 996
	t2: ROLLBACK
	t1: ROLLBACK
$$);

-- Both siblings have waited for an outsider, and look again at what it has
-- made of the row (EvalPlanQual), in joins, MERGE and ON CONFLICT.
CREATE FUNCTION pg_temp.recheck(xid text, iso text, change text, statement text) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT test.steps(format(E'u: BEGIN\nu: %3$s\nt1: MIP %1$s 1 %2$s\nt1& %4$s\nt1? waits\nt2: MIP %1$s 2 %2$s\nt2& %4$s\nt2? waits\n'
		'u: COMMIT\nt1? result\nt2? result\nt1: SELECT id || '':'' || v FROM a WHERE id IN (20, 21, 2000) ORDER BY id\n'
		't2: SELECT id || '':'' || v FROM a WHERE id IN (20, 21, 2000) ORDER BY id\nt1: ROLLBACK\nt2: ROLLBACK\nu: UPDATE a SET v = 0 WHERE id = 20\nu: UPDATE b SET v = 0 WHERE id = 20',
		xid, iso, change, statement))
$$;
SELECT pg_temp.recheck('recheck-a', 'READ COMMITTED', 'UPDATE a SET v = 7 WHERE id = 20',
	'UPDATE a SET v = a.v + b.v + 1 FROM b WHERE a.id = b.id AND a.id IN (20, 21) RETURNING a.id || '':'' || a.v');
SELECT pg_temp.recheck('recheck-b', 'READ COMMITTED', 'UPDATE a SET v = 7 WHERE id = 20',
	'UPDATE a SET v = v + 1 WHERE id IN (20, 21) AND v < 5 RETURNING id || '':'' || v');
SELECT pg_temp.recheck('recheck-c', 'READ COMMITTED', 'UPDATE b SET v = 7 WHERE id = 20',
	'SELECT a.id || '':'' || a.v || '':'' || b.v FROM a JOIN b USING (id) WHERE id IN (20, 21) FOR UPDATE');
SELECT pg_temp.recheck('recheck-d', 'READ COMMITTED', 'UPDATE a SET v = 7 WHERE id = 20',
	'MERGE INTO a USING (VALUES (20), (21)) s(id) ON a.id = s.id WHEN MATCHED AND v > 5 THEN DELETE WHEN MATCHED THEN UPDATE SET v = v + 1');
SELECT pg_temp.recheck('recheck-e', 'READ COMMITTED', 'UPDATE a SET id = 2000 WHERE id = 20',
	'INSERT INTO a VALUES (20, 5), (21, 5) ON CONFLICT (id) DO UPDATE SET v = a.v + excluded.v RETURNING id || '':'' || v');
UPDATE a SET id = 20, v = 0 WHERE id = 2000;
SELECT pg_temp.recheck('recheck-f', 'READ COMMITTED', 'UPDATE a SET v = 7 WHERE id = 20',
	'DELETE FROM a USING b WHERE a.id = b.id AND a.id IN (20, 21) AND a.v = (SELECT max(v) FROM b) RETURNING a.id || '':'' || a.v');
SELECT pg_temp.recheck('recheck-g', 'REPEATABLE READ', 'UPDATE a SET v = 7 WHERE id = 20',
	'UPDATE a SET v = a.v + 1 WHERE id IN (20, 21) RETURNING id || '':'' || v');

-- An outsider looks again at the winner's version.
SELECT test.steps($$
	t1: MIP winner 1
	t1: UPDATE a SET v = 1 WHERE id = 20
	t1: UPDATE b SET v = 1 WHERE id = 20
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP winner 2
	t2: UPDATE a SET v = 2 WHERE id = 20
	t2: UPDATE b SET v = 2 WHERE id = 20
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	u& UPDATE a SET v = a.v * 10 + b.v FROM b WHERE a.id = b.id AND a.id = 20 RETURNING a.v
	u? waits
	v& SELECT a.v || ':' || b.v FROM a JOIN b USING (id) WHERE id = 20 FOR UPDATE OF b
	v? waits
	c: SELECT xinst || ' ' || state FROM mip.commit('winner', 2)
	u? result
	v? result
$$);
SELECT test.check('a'), test.check('b');
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.close('t1', 't2', 'u', 'v', 'c');
DROP FUNCTION change, look;
DROP TABLE a, b;
