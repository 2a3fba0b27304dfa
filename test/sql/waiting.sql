-- Who waits for whom: siblings never for each other, whoever stands in line;
-- outsiders as they would on heap tables; deadlocks through a sibling are
-- found, and nothing else is taken for one.
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
CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
INSERT INTO t SELECT i, 0 FROM generate_series(1, 9) i;
SELECT test.open('t1', 't2', 't3', 'u', 'v', 'w', 'c');
SELECT count(test.run(s, 'SET lock_timeout = 0')) FROM unnest('{t1,t2,t3,u,v,w}'::text[]) s;

-- The first instance waits in line, an outsider behind it; the second instance
-- does not end up behind that outsider, who then waits for the first.
SELECT test.steps($$
	u: BEGIN
	u: UPDATE t SET v = v + 1000 WHERE id = 1
	t1: MIP line-a 1
	t1& UPDATE t SET v = v + 1 WHERE id = 1
	t1? waits
	w& UPDATE t SET v = v + 100 WHERE id = 1
	w? waits
	t2: MIP line-a 2
	t2& UPDATE t SET v = v + 2 WHERE id = 1
	t2? waits
	u: ROLLBACK
	t1? result
	t2? result
	w? waits
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	c: SELECT xinst || ' ' || state FROM mip.commit('line-a', 2)
	w? result
$$);
-- The outsider is before the first instance: nobody has to give way either.
SELECT test.steps($$
	u: BEGIN
	u: UPDATE t SET v = v + 1000 WHERE id = 1
	w& UPDATE t SET v = v + 100 WHERE id = 1
	w? waits
	t1: MIP line-b 1
	t1& UPDATE t SET v = v + 1 WHERE id = 1
	t1? waits
	t2: MIP line-b 2
	t2& UPDATE t SET v = v + 2 WHERE id = 1
	t2? waits
	u: ROLLBACK
	t1? result
	t2? result
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	c: SELECT xinst || ' ' || state FROM mip.commit('line-b', 2)
	w? result
$$);
-- The header says of a change rolled back that the key is changing: heap would
-- stand in line behind the outsider, who waits for the first instance.
SELECT test.steps($$
	t1: MIP dead 1
	t1: SELECT id FROM t WHERE id = 9 FOR KEY SHARE
	t1: SAVEPOINT s
	t1: DELETE FROM t WHERE id = 9
	t1: ROLLBACK TO s
	w& DELETE FROM t WHERE id = 9
	w? waits
	t1: RELEASE s
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP dead 2
	t2: SET LOCAL statement_timeout = '10s'
	t2: SELECT id FROM t WHERE id = 9 FOR KEY SHARE
	t2: SELECT id FROM t WHERE id = 9 FOR SHARE
	t2: UPDATE t SET v = v + 2 WHERE id = 9
	w? waits
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	c: SELECT xinst || ' ' || state FROM mip.commit('dead', 2)
	w? result
	u: INSERT INTO t VALUES (9, 0)
$$);
-- An update has committed beside the first instance's lock: heap would wait for
-- that lock before it says so.
SELECT test.steps(format($$
	t1: MIP stale-%1$s 1
	t1: SELECT id FROM t WHERE id = 9 FOR KEY SHARE
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	u: BEGIN
	u: UPDATE t SET v = v + 100 WHERE id = 9
	t2: MIP stale-%1$s 2
	t2: SET LOCAL statement_timeout = '10s'
	t2& %2$s
	t2? waits
	u: COMMIT
	t2? result
	t2: ROLLBACK
	t2: MIP stale-%1$s 3 REPEATABLE READ
	t2: SELECT v FROM t WHERE id = 9
	t2: SET LOCAL statement_timeout = '10s'
	u: UPDATE t SET v = v + 100 WHERE id = 9
	t2: %2$s
	t2: ROLLBACK
	c: SELECT xinst || ' ' || state FROM mip.commit('stale-%1$s', 1)
$$, row_number() OVER (), sql)) FROM unnest(ARRAY[
	'DELETE FROM t WHERE id = 9', 'SELECT v FROM t WHERE id = 9 FOR UPDATE',
	'UPDATE t SET id = 90 WHERE id = 9', 'UPDATE t SET v = v + 2 WHERE id = 9']) sql;
-- The same with the lock after the update.
SELECT test.steps(format($$
	u: BEGIN
	u: UPDATE t SET v = v + 100 WHERE id = 9
	t1: MIP late-%1$s 1
	t1: SELECT id FROM t WHERE id = 9 FOR KEY SHARE
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP late-%1$s 2
	t2: SET LOCAL statement_timeout = '10s'
	t2& %2$s
	t2? waits
	u: COMMIT
	t2? result
	t2: ROLLBACK
	c: SELECT xinst || ' ' || state FROM mip.commit('late-%1$s', 1)
$$, row_number() OVER (), sql)) FROM unnest(ARRAY[
	'DELETE FROM t WHERE id = 9', 'SELECT v FROM t WHERE id = 9 FOR UPDATE',
	'UPDATE t SET id = 90 WHERE id = 9', 'UPDATE t SET v = v + 2 WHERE id = 9']) sql;
-- The next version is locked no more than the update needs.
SELECT test.steps($$
	v: BEGIN
	v: UPDATE t SET v = v WHERE id = 8
	t1: MIP no-key 1
	t1& UPDATE t SET v = v + 1 WHERE id IN (8, 9)
	t1? waits
	u: UPDATE t SET v = v + 100 WHERE id = 9
	w: BEGIN
	w: SELECT id FROM t WHERE id = 9 FOR KEY SHARE
	v: ROLLBACK
	t1? result
	t1: ROLLBACK
	w: COMMIT
$$);
UPDATE t SET v = 0 WHERE id = 9;
-- The outsider comes to wait for the second instance, while the first is in
-- line behind it: the first leaves the line.
SELECT test.steps($$
	u: BEGIN
	u: SELECT id FROM t WHERE id = 1 FOR KEY SHARE
	w& DELETE FROM t WHERE id = 1
	w? waits
	t1: MIP line-c 1
	t1& SELECT v FROM t WHERE id = 1 FOR UPDATE
	t1? waits
	t2: MIP line-c 2
	t2: UPDATE t SET v = v + 2 WHERE id = 1
	u: ROLLBACK
	t1? result
	t1: UPDATE t SET v = v + 1 WHERE id = 1
	w? waits
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	c: SELECT xinst || ' ' || state FROM mip.commit('line-c', 1)
	w? result
$$);
INSERT INTO t VALUES (1, 0);
-- In line, an instance still hears of timeouts, of a cancel, and of a winner.
SELECT test.steps($$
	u: BEGIN
	u: SELECT id FROM t WHERE id = 1 FOR KEY SHARE
	w& DELETE FROM t WHERE id = 1
	w? waits
	t1: MIP line-d 1
	t1: SAVEPOINT s
	t1: SELECT v FROM t WHERE id = 1 FOR UPDATE NOWAIT
	t1: ROLLBACK TO s
	t1: SELECT v FROM t WHERE id = 1 FOR UPDATE SKIP LOCKED
	t1: SET lock_timeout = '50ms'
	t1: SELECT v FROM t WHERE id = 1 FOR UPDATE
	t1: ROLLBACK TO s
	t1: SET statement_timeout = '50ms'
	t1: DO 'BEGIN PERFORM v FROM t WHERE id = 1 FOR UPDATE; EXCEPTION WHEN query_canceled THEN UPDATE t SET v = 4 WHERE id = 2; END'
	t1: ROLLBACK TO s
	t1: SET lock_timeout = 0
	t1: SET statement_timeout = '20s'
	t1& SELECT v FROM t WHERE id = 1 FOR UPDATE
	t1? waits
	c: SELECT pg_cancel_backend(pid) FROM test.session WHERE name = 't1'
	t1? result
	t1: ROLLBACK TO s
	t1& SELECT v FROM t WHERE id = 1 FOR UPDATE
	t1? waits
	t2: MIP line-d 2
	t2: SELECT state FROM mip.commit_one_phase(NULL, NULL)
	t1? result
	u: ROLLBACK
	w? result
$$);
SELECT test.close('t1'), test.open('t1'), test.run('t1', 'SET lock_timeout = 0');
INSERT INTO t VALUES (1, 0);

-- A row that an overlay has moved out of the way of a partial index, an
-- expression index, or an exclusion constraint: the outsider waits, as it
-- would for heap's update, and then gets in.
CREATE TABLE k (id int PRIMARY KEY, p int, e int, r int4range, on_ boolean,
	EXCLUDE USING gist (r WITH &&)) USING mip;
CREATE UNIQUE INDEX k_partial ON k (p) WHERE on_;
CREATE UNIQUE INDEX k_expression ON k ((e + 1));
INSERT INTO k SELECT i, i, i, int4range(i, i + 1), true FROM generate_series(1, 9) i;
SELECT test.steps($$
	t1: MIP keys 1
	t1: UPDATE k SET id = id WHERE id < 4
	t2: MIP keys 2
	t2: UPDATE k SET on_ = false WHERE id = 1
	t2: UPDATE k SET e = 102 WHERE id = 2
	t2: UPDATE k SET r = '[103,104)' WHERE id = 3
	t1: ROLLBACK
	u& INSERT INTO k VALUES (11, 1, 11, '[11,12)', true)
	u? waits
	v& INSERT INTO k VALUES (12, 12, 2, '[12,13)', true)
	v? waits
	w& INSERT INTO k VALUES (13, 13, 13, '[3,4)', true)
	w? waits
	t2: SELECT state FROM mip.prepare(NULL, NULL)
	c: SELECT state FROM mip.commit('keys', 2)
	u? result
	v? result
	w? result
$$);
-- A mere lock of an instance is not in the way of unique checks.
SELECT test.steps($$
	t1: MIP keys-b 1
	t1: SELECT id FROM k WHERE id = 5 FOR UPDATE
	u: INSERT INTO k VALUES (5, 15, 15, '[15,16)', true)
	t1: ROLLBACK
$$);
DROP TABLE k;

-- FOR UPDATE of a row of one's own overlay is FOR UPDATE of the row.
SELECT test.steps($$
	t1: MIP own 1
	t1: UPDATE t SET v = 1 WHERE id = 2
	t2: MIP own 2
	t2: UPDATE t SET v = 2 WHERE id = 2
	u: SELECT id FROM t WHERE id = 2 FOR KEY SHARE NOWAIT
	t2: SELECT v FROM t WHERE id = 2 FOR UPDATE
	u: SELECT id FROM t WHERE id = 2 FOR KEY SHARE NOWAIT
	u: SELECT id FROM t WHERE id = 2 FOR KEY SHARE SKIP LOCKED
	t2: ROLLBACK
	u: BEGIN
	u: SELECT id FROM t WHERE id = 2 FOR KEY SHARE
	t2: MIP own 3
	t2: UPDATE t SET v = 2 WHERE id = 2
	t2: SAVEPOINT s
	t2: SELECT v FROM t WHERE id = 2 FOR UPDATE NOWAIT
	t2: ROLLBACK TO s
	t2: SELECT v FROM t WHERE id = 2 FOR UPDATE SKIP LOCKED
	t2& SELECT v FROM t WHERE id = 2 FOR UPDATE
	t2? waits
	u: COMMIT
	t2? result
	t1: ROLLBACK
	t2: ROLLBACK
$$);

-- Deadlocks through a sibling: who waits for it has to give way, whatever the
-- locks are. Foreign keys:
CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t) USING mip;
SELECT test.steps($$
	t1: MIP wait-a 1
	t1: DELETE FROM t WHERE id = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	u: BEGIN
	u: INSERT INTO child VALUES (2, 2)
	t2: MIP wait-a 2
	t2& DELETE FROM t WHERE id = 2
	t2? waits
	u& INSERT INTO child VALUES (1, 1)
	u? result
	u: ROLLBACK
	t2? result
	t2: ROLLBACK
	c: SELECT state FROM mip.rollback('wait-a', 1)
$$);
DROP TABLE child;
-- tables, where the retry stands in line behind the outsider,
SELECT test.steps($$
	t1: MIP wait-b 1
	t1: UPDATE t SET v = v + 1 WHERE id = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	u& CREATE INDEX t_v ON t (v)
	u? waits
	t2: MIP wait-b 2
	t2& UPDATE t SET v = v + 2 WHERE id = 1
	u? result
	t2? result
	u& ALTER TABLE t ADD n int
	u? waits
	t3: MIP wait-b 3
	t3& SELECT v FROM t WHERE id = 2
	u? result
	t3? result
	t3: ROLLBACK
	t2: ROLLBACK
	c: SELECT state FROM mip.rollback('wait-b', 1)
$$);
-- a chain of outsiders, the last of whom waits for a sibling that is active,
SELECT test.steps($$
	t1: MIP wait-c 1
	t1: UPDATE t SET v = v + 1 WHERE id = 1
	u: BEGIN
	u: UPDATE t SET v = v + 100 WHERE id = 2
	v: BEGIN
	v: UPDATE t SET v = v + 100 WHERE id = 3
	t2: MIP wait-c 2
	t2& UPDATE t SET v = v + 2 WHERE id = 2
	t2? waits
	u& UPDATE t SET v = v + 100 WHERE id = 3
	u? waits
	v& UPDATE t SET v = v + 100 WHERE id = 1
	v? result
	v: ROLLBACK
	u? result
	t2? waits
	u: COMMIT
	t2? result
	t1: ROLLBACK
	t2: ROLLBACK
$$);
-- an instance of another family,
SELECT test.steps($$
	t1: MIP wait-d 1
	t1: UPDATE t SET v = v + 1 WHERE id = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t3: MIP wait-other 1
	t3: UPDATE t SET v = v + 100 WHERE id = 2
	t2: MIP wait-d 2
	t2& UPDATE t SET v = v + 2 WHERE id = 2
	t2? waits
	t3& UPDATE t SET v = v + 100 WHERE id = 1
	t3? result
	t3: ROLLBACK
	t2? result
	t2: ROLLBACK
	c: SELECT state FROM mip.rollback('wait-d', 1)
$$);
-- a retry of another family, whose first instance is in the way of ours,
SELECT test.steps($$
	t1: MIP wait-f 1
	t1: UPDATE t SET v = v + 1 WHERE id = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t3: MIP wait-g 1
	t3: UPDATE t SET v = v + 100 WHERE id = 2
	t3: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP wait-f 2
	t2& UPDATE t SET v = v + 2 WHERE id = 2
	t2? waits
	u: MIP wait-g 2
	u& UPDATE t SET v = v + 200 WHERE id = 1
$$);
-- of whom one, either, has to give way, until a request is given up;
SELECT test.first_result('t2', 'u');
SELECT test.steps($$
	c: SELECT state FROM mip.rollback('wait-f', 1) WHERE xinst = 1
	c: SELECT state FROM mip.rollback('wait-g', 1) WHERE xinst = 1
$$);
SELECT test.first_result('t2', 'u');
SELECT test.run(s, 'ROLLBACK') FROM unnest('{t2,u}'::text[]) s;
-- and deferred constraints, which wait at the end.
CREATE TABLE d (id int UNIQUE DEFERRABLE INITIALLY DEFERRED) USING mip;
SELECT test.steps($$
	t1: MIP wait-e 1
	t1: INSERT INTO d VALUES (1)
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	u: BEGIN
	u: INSERT INTO d VALUES (1), (2)
	t2: MIP wait-e 2
	t2: INSERT INTO d VALUES (2)
	t2& SELECT state FROM mip.prepare(NULL, NULL)
	t2? waits
	u& COMMIT
	u? result
	t2? result
	c: SELECT state FROM mip.commit('wait-e', 2)
$$);
SELECT * FROM d;
DROP TABLE d;

-- Two who hold a lock on what the retry waits for, but are not in its way, and
-- wait for the first instance, one of them behind the retry: no deadlock. Two
-- that are show that the detector has looked.
SELECT test.open('x');
CREATE TABLE other (id int PRIMARY KEY, v int) USING mip;
CREATE INDEX ON other (v);
SELECT test.steps($$
	t1: MIP bystander 1
	t1: SELECT count(*) FROM other
	t1: UPDATE t SET v = v + 1 WHERE id = 3
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	u: BEGIN
	u: LOCK TABLE other IN SHARE MODE
	v: BEGIN
	v: SELECT count(*) FROM other
	v& UPDATE t SET v = v + 100 WHERE id = 3
	v? waits
	t2: MIP bystander 2
	t2& INSERT INTO other VALUES (1, 2)
	t2? waits
	x: BEGIN
	x: SELECT count(*) FROM other
	x& LOCK TABLE other IN ACCESS EXCLUSIVE MODE
	x? waits
	t1: MIP decoy-a 1
	t1: UPDATE t SET v = v + 1 WHERE id = 5
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	w: BEGIN
	w: UPDATE t SET v = v + 100 WHERE id = 6
	t3: MIP decoy-a 2
	t3& UPDATE t SET v = v + 1 WHERE id = 6
	t3? waits
	w& UPDATE t SET v = v + 100 WHERE id = 5
	w? result
	w: ROLLBACK
	t3? result
	t3: ROLLBACK
	w: BEGIN
	w: UPDATE t SET v = v + 100 WHERE id = 6
	t3: MIP decoy-a 3
	t3& UPDATE t SET v = v + 1 WHERE id = 6
	t3? waits
	w& UPDATE t SET v = v + 100 WHERE id = 5
	w? result
	w: ROLLBACK
	t3? result
	t3: ROLLBACK
	v? waits
	x? waits
	u: COMMIT
	t2? result
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	c: SELECT xinst || ' ' || state FROM mip.commit('bystander', 1)
	v? result
	v: COMMIT
	x? result
	x: COMMIT
	c: SELECT state FROM mip.rollback('decoy-a', 1)
$$);
DROP TABLE other;
SELECT test.check('t');
SELECT test.corruption('t');
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.close('t1', 't2', 't3', 'u', 'v', 'w', 'x', 'c');
DROP TABLE t;
