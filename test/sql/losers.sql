-- What becomes of the others when an instance wins: active and prepared
-- losers, racing coordinators, outsiders in between.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\set ECHO all
\pset format unaligned
\pset tuples_only on
CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
INSERT INTO t VALUES (1, 0), (2, 0), (3, 0);
SELECT test.open('t1', 't2', 't3', 'u', 'w', 'c');
SELECT test.run(s, 'SET lock_timeout = 0') FROM unnest('{u,w}'::text[]) s;

-- An idle loser loses its session: its locks must not outlive the decision.
SELECT test.begin('t1', 'l1', 1), test.run('t1', 'UPDATE t SET v = 1 WHERE id = 1');
SELECT test.begin('t2', 'l1', 2), test.run('t2', 'UPDATE t SET v = 2 WHERE id = 1');
SELECT test.prepare('t2');
SELECT test.commit('c', 'l1', 2);
SELECT test.run('t1', 'SELECT 1') ~ '^(57P01|08)';
SELECT * FROM t WHERE id = 1;
SELECT test.run('u', 'UPDATE t SET v = v + 100 WHERE id = 1');
SELECT test.close('t1'), test.open('t1');

-- A loser whose statement runs is told why: MP005; its session goes on.
SELECT test.run('u', 'BEGIN'), test.run('u', 'UPDATE t SET v = v WHERE id = 2');
SELECT test.run('t1', 'SET lock_timeout = 0');
SELECT test.begin('t1', 'l2', 1), test.run('t1', 'UPDATE t SET v = 1 WHERE id = 1');
SELECT test.send('t1', 'UPDATE t SET v = 1 WHERE id = 2');
SELECT test.waits('t1');
SELECT test.begin('t2', 'l2', 2), test.run('t2', 'UPDATE t SET v = 3 WHERE id = 1');
SELECT test.prepare('t2');
SELECT test.commit('c', 'l2', 2);
SELECT test.waits('t1'), test.result('t1');
SELECT test.run('t1', 'ROLLBACK'), test.run('t1', 'SELECT v::text FROM t WHERE id = 1');
SELECT test.run('u', 'ROLLBACK');
SELECT test.begin('t1', 'l2', 3);

-- asleep in a statement
SELECT test.begin('t1', 'l3', 1), test.send('t1', 'SELECT pg_sleep(10)::text');
SELECT test.begin('t2', 'l3', 2), test.prepare('t2');
SELECT test.commit('c', 'l3', 2), test.result('t1'), test.run('t1', 'ROLLBACK');

-- Higher prepared first: the lower one is refused, early and late.
SELECT test.begin('t1', 'l4', 1), test.run('t1', 'UPDATE t SET v = 1 WHERE id = 1');
SELECT test.begin('t3', 'l4', 3), test.run('t3', 'UPDATE t SET v = 3 WHERE id = 1'), test.prepare('t3', 'three');
SELECT test.begin('t2', 'l4', 2);
SELECT test.prepare('t1');
SELECT test.run('t1', 'ROLLBACK');
SELECT xinst, state FROM mip.instances('l4');
-- a still higher one may prepare
SELECT test.begin('t2', 'l4', 4), test.run('t2', 'UPDATE t SET v = 4 WHERE id = 1'), test.prepare('t2');
-- the refused one names the highest in its way
SELECT test.begin('t1', 'l4', 2);
SELECT test.commit('c', 'l4', 3);
SELECT * FROM t WHERE id = 1;
SELECT test.commit('c', 'l4', 4), test.commit('c', 'l4', 3);
SELECT test.rollback('c', 'l4', 4), test.rollback('c', 'l4', 3);

-- One phase beside siblings: an active one loses, a prepared one is in the way.
SELECT test.begin('t1', 'l5', 1), test.run('t1', 'UPDATE t SET v = 1 WHERE id = 1');
SELECT test.begin('t2', 'l5', 2), test.run('t2', 'UPDATE t SET v = 50 WHERE id = 1');
SELECT test.run('t2', 'SELECT string_agg(xinst || '' '' || state, '', '') FROM mip.commit_one_phase(NULL, ''five'')');
SELECT * FROM t WHERE id = 1;
SELECT xinst, state FROM mip.instances('l5');
SELECT test.close('t1'), test.open('t1');
SELECT test.begin('t1', 'l6', 1), test.run('t1', 'UPDATE t SET v = 1 WHERE id = 1'), test.prepare('t1');
SELECT test.begin('t2', 'l6', 2), test.run('t2', 'UPDATE t SET v = 2 WHERE id = 1');
SELECT test.run('t2', 'SELECT string_agg(xinst || '' '' || state, '', '') FROM mip.commit_one_phase(NULL, NULL)');
SELECT test.run('t2', 'ROLLBACK'), test.commit('c', 'l6', 1);
-- a lower one in one phase, beside a higher active one with the overlay
SELECT test.begin('t2', 'l7', 2), test.run('t2', 'UPDATE t SET v = 72 WHERE id = 1');
SELECT test.begin('t1', 'l7', 1), test.run('t1', 'UPDATE t SET v = 71 WHERE id = 1'), test.run('t1', 'DELETE FROM t WHERE id = 3');
SELECT test.run('t1', 'SELECT string_agg(xinst || '' '' || state, '', '') FROM mip.commit_one_phase(NULL, NULL)');
SELECT * FROM t ORDER BY id;
SELECT test.close('t2'), test.open('t2');
INSERT INTO t VALUES (3, 0);

-- Rollback of an active instance, from outside
SELECT test.begin('t1', 'l8', 1), test.run('t1', 'UPDATE t SET v = 1 WHERE id = 1');
SELECT test.rollback('c', 'l8', 1);
SELECT test.run('t1', 'SELECT 1') ~ '^(57P01|08)';
SELECT test.close('t1'), test.open('t1');

-- Two coordinators: the same winner, different winners. The family lock is
-- free in between, so one after the other is all there is.
SELECT test.begin('t1', 'l9', 1), test.run('t1', 'UPDATE t SET v = 91 WHERE id = 1'), test.prepare('t1');
SELECT test.begin('t2', 'l9', 2), test.run('t2', 'UPDATE t SET v = 92 WHERE id = 1'), test.prepare('t2');
SELECT test.send('u', 'SELECT xinst FROM mip.commit(''l9'', 2) WHERE state = ''committed''');
SELECT test.send('w', 'SELECT xinst FROM mip.commit(''l9'', 2) WHERE state = ''committed''');
SELECT test.result('u'), test.result('w');
SELECT xinst, state FROM mip.instances('l9');
SELECT * FROM t WHERE id = 1;
SELECT test.begin('t1', 'l10', 1), test.run('t1', 'UPDATE t SET v = 101 WHERE id = 1'), test.prepare('t1');
SELECT test.begin('t2', 'l10', 2), test.run('t2', 'UPDATE t SET v = 102 WHERE id = 1'), test.prepare('t2');
SELECT test.send('u', 'SELECT count(*)::text FROM mip.commit(''l10'', 1)');
SELECT test.send('w', 'SELECT count(*)::text FROM mip.commit(''l10'', 2)');
SELECT bool_or(r = '2'), bool_or(r ~ '^MP001') FROM (VALUES (test.result('u')), (test.result('w'))) r(r);
SELECT count(*) FROM t WHERE id = 1 AND v IN (101, 102);
SELECT count(*) FILTER (WHERE state = 'committed'), count(*) FROM mip.instances('l10');

-- An outsider waits for each in turn, and queues with its like.
SELECT test.begin('t1', 'l11', 1), test.run('t1', 'UPDATE t SET v = 111 WHERE id = 1'), test.prepare('t1');
SELECT test.send('u', 'UPDATE t SET v = v + 1000 WHERE id = 1 RETURNING v::text');
SELECT test.waits('u');
SELECT test.send('w', 'UPDATE t SET v = v + 10000 WHERE id = 1 RETURNING v::text');
SELECT test.waits('w');
SELECT test.begin('t2', 'l11', 2), test.run('t2', 'UPDATE t SET v = 112 WHERE id = 1'), test.prepare('t2');
SELECT test.begin('t3', 'l11', 3), test.run('t3', 'DELETE FROM t WHERE id = 1'), test.run('t3', 'INSERT INTO t VALUES (1, 113)'), test.prepare('t3');
SELECT test.rollback('c', 'l11', 1);
SELECT test.waits('u'), test.waits('w');
SELECT test.rollback('c', 'l11', 3);
SELECT test.waits('u'), test.waits('w');
SELECT test.commit('c', 'l11', 2);
-- heap's line is for one version: on the next one either may come first
SELECT count(*) FROM (VALUES (test.result('u')), (test.result('w'))) r(v) WHERE v IN ('1112', '10112', '11112');
SELECT * FROM t WHERE id = 1;
-- all go away
SELECT test.begin('t1', 'l12', 1), test.run('t1', 'DELETE FROM t WHERE id = 1'), test.prepare('t1');
SELECT test.begin('t2', 'l12', 2), test.run('t2', 'UPDATE t SET v = 122 WHERE id = 1'), test.prepare('t2');
SELECT test.send('u', 'UPDATE t SET v = 0 WHERE id = 1 RETURNING v::text'), test.waits('u');
SELECT test.rollback('c', 'l12', 2), test.waits('u'), test.rollback('c', 'l12', 1), test.result('u');
-- NOWAIT, SKIP LOCKED, lock_timeout
SELECT test.begin('t1', 'l13', 1), test.run('t1', 'UPDATE t SET v = 131 WHERE id = 1'), test.prepare('t1');
SELECT test.begin('t2', 'l13', 2), test.run('t2', 'UPDATE t SET v = 132 WHERE id = 1'), test.run('t2', 'UPDATE t SET v = 132 WHERE id = 2'), test.prepare('t2');
SELECT test.run('u', 'SELECT v::text FROM t WHERE id = 1 FOR UPDATE NOWAIT');
SELECT test.run('u', 'SELECT v::text FROM t WHERE id = 1 FOR KEY SHARE NOWAIT');
SELECT test.run('u', 'SELECT id::text FROM t ORDER BY id FOR UPDATE SKIP LOCKED');
SELECT test.run('u', 'SET lock_timeout = 50'), test.run('u', 'DELETE FROM t WHERE id = 1'), test.run('u', 'SET lock_timeout = 0');
SELECT test.begin('t3', 'l13', 3), test.run('t3', 'SELECT id::text FROM t ORDER BY id FOR UPDATE SKIP LOCKED');
SELECT test.run('t3', 'SELECT id::text FROM t ORDER BY id FOR UPDATE NOWAIT'), test.run('t3', 'ROLLBACK');
SELECT test.commit('c', 'l13', 1);
-- an outsider in the way of a sibling: it waits, NOWAIT fails, SKIP LOCKED skips
SELECT test.run('u', 'BEGIN'), test.run('u', 'UPDATE t SET v = 200 WHERE id = 1');
SELECT test.begin('t1', 'l14', 1), test.run('t1', 'SELECT id::text FROM t ORDER BY id FOR UPDATE SKIP LOCKED');
SELECT test.run('t1', 'SELECT id::text FROM t WHERE id = 1 FOR UPDATE NOWAIT'), test.run('t1', 'ROLLBACK');
SELECT test.begin('t1', 'l14', 1), test.send('t1', 'UPDATE t SET v = v + 1 WHERE id = 1 RETURNING v::text'), test.waits('t1');
SELECT test.begin('t2', 'l14', 2), test.send('t2', 'UPDATE t SET v = v + 2 WHERE id = 1 RETURNING v::text'), test.waits('t2');
SELECT test.run('u', 'COMMIT'), test.result('t1'), test.result('t2');
SELECT test.prepare('t1'), test.prepare('t2'), test.commit('c', 'l14', 2);
SELECT * FROM t WHERE id = 1;
-- and at REPEATABLE READ it is too late
SELECT test.run('u', 'BEGIN'), test.run('u', 'UPDATE t SET v = 200 WHERE id = 1');
SELECT test.begin('t1', 'l15', 1, 'REPEATABLE READ'), test.send('t1', 'UPDATE t SET v = v + 1 WHERE id = 1'), test.waits('t1');
SELECT test.begin('t2', 'l15', 2, 'REPEATABLE READ'), test.send('t2', 'DELETE FROM t WHERE id = 1'), test.waits('t2');
SELECT test.run('u', 'COMMIT'), test.result('t1'), test.result('t2');
SELECT test.run('t1', 'ROLLBACK'), test.run('t2', 'ROLLBACK');

-- Deadlock through a prepared sibling: the outsider has to give way.
SELECT test.begin('t1', 'l16', 1), test.run('t1', 'UPDATE t SET v = 161 WHERE id = 1'), test.prepare('t1');
SELECT test.run('u', 'BEGIN'), test.run('u', 'UPDATE t SET v = 162 WHERE id = 2');
SELECT test.send('u', 'UPDATE t SET v = 162 WHERE id = 1'), test.waits('u');
SELECT test.begin('t2', 'l16', 2), test.run('t2', 'UPDATE t SET v = 163 WHERE id = 2');
SELECT test.result('u'), test.run('u', 'ROLLBACK');
SELECT test.prepare('t2'), test.commit('c', 'l16', 1);
SELECT * FROM t ORDER BY id;

-- Foreign keys: a child of the old version holds the new one, too.
CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t) USING mip;
SELECT test.begin('t1', 'l17', 1), test.run('t1', 'UPDATE t SET v = 171 WHERE id = 1'), test.prepare('t1');
SELECT test.begin('t2', 'l17', 2), test.run('t2', 'UPDATE t SET v = 172 WHERE id = 1'), test.prepare('t2');
SELECT test.run('u', 'BEGIN'), test.run('u', 'INSERT INTO child VALUES (1, 1)');
SELECT test.commit('c', 'l17', 2);
SELECT test.send('w', 'DELETE FROM t WHERE id = 1'), test.waits('w');
SELECT test.run('u', 'COMMIT'), test.result('w');
SELECT * FROM t JOIN child ON t.id = child.t;

-- A commit that has failed after its hand-over is decided: whoever would commit
-- another one is told the result, not a null one.
SELECT test.begin('t1', 'l18', 1), test.run('t1', 'UPDATE t SET v = 181 WHERE id = 1'), test.prepare('t1', 'one');
SELECT test.begin('t2', 'l18', 2), test.run('t2', 'UPDATE t SET v = 182 WHERE id = 1'), test.prepare('t2', 'two');
SET mip.debug_stop_at = 'error:header';
SELECT FROM mip.commit('l18', 2);
RESET mip.debug_stop_at;
SELECT refused_committed AS refused FROM mip.stats \gset
SELECT FROM mip.commit('l18', 1);
\echo SQLSTATE :SQLSTATE
SELECT refused_committed - :refused AS counted FROM mip.stats;
SELECT xinst, state FROM mip.commit('l18', 2);
SELECT * FROM t ORDER BY id;
-- before that nothing is
SELECT test.begin('t1', 'l19', 1), test.run('t1', 'UPDATE t SET v = 191 WHERE id = 1'), test.prepare('t1', 'one');
SELECT test.begin('t2', 'l19', 2), test.run('t2', 'UPDATE t SET v = 192 WHERE id = 1'), test.prepare('t2', 'two');
SET mip.debug_stop_at = 'error:doomed';
SELECT FROM mip.commit('l19', 2);
RESET mip.debug_stop_at;
SELECT xinst, state FROM mip.commit('l19', 1);
SELECT * FROM t ORDER BY id;

-- A commit in one phase that fails has ended its siblings, and they say no more.
SELECT test.begin('t1', 'l20', 1), test.send('t1', 'SELECT pg_sleep(10)::text');
SELECT test.begin('t2', 'l20', 2), test.run('t2', 'SET LOCAL mip.debug_stop_at = ''error:losers''');
SELECT test.run('t2', 'SELECT state::text FROM mip.commit_one_phase(NULL, ''five'')');
SELECT test.result('t1'), test.run('t1', 'ROLLBACK');
SELECT * FROM mip.instances('l20');
-- nor do those that are given up
SELECT test.begin('t1', 'l20', 3), test.send('t1', 'SELECT pg_sleep(10)::text');
SELECT test.rollback('c', 'l20', 3), test.result('t1'), test.run('t1', 'ROLLBACK');

-- The sites that others have declared are seen, however many.
\set n 300
SELECT test.run('t1', 'BEGIN'), test.run('t1', format('SELECT mip.begin(''l21'', 1, ARRAY(SELECT ''site '' || i FROM generate_series(1, %s) i))::text', :n));
SELECT test.run('t2', 'BEGIN'), test.run('t2', format('SELECT mip.begin(''l21'', 2, ARRAY(SELECT ''site '' || i FROM generate_series(1, %s) i))::text', :n));
SELECT xinst, state, array_length(sites, 1), sites[2] FROM mip.instances('l21');
SELECT test.prepare('t2'), test.run('t1', 'ROLLBACK');
SELECT test.rollback('c', 'l21', 2), mip.forget('l21');
\set n 30000
SELECT test.run('t1', 'BEGIN'), test.run('t1', format('SELECT mip.begin(''l21'', 1, ARRAY(SELECT ''site '' || i FROM generate_series(1, %s) i))::text', :n));
SELECT test.run('t2', 'BEGIN'), test.run('t2', format('SELECT mip.begin(''l21'', 2, ARRAY(SELECT ''site '' || i FROM generate_series(1, %s) i))::text', :n));
SELECT xinst, state, array_length(sites, 1), sites[2] FROM mip.instances('l21');
SELECT test.prepare('t2'), test.run('t1', 'ROLLBACK');
SELECT test.rollback('c', 'l21', 2), mip.forget('l21');

-- One statement decides many: their texts do not pile up.
CREATE FUNCTION pg_temp.memory(integer) RETURNS bigint LANGUAGE plpgsql AS $$
	BEGIN RETURN (SELECT sum(total_bytes) FROM pg_get_backend_memory_contexts()); END
$$;
\o /dev/null
SELECT format('BEGIN; SELECT mip.begin(''large %s'', 1); SELECT FROM mip.prepare(repeat(''x'', 1000000), '''')', n)
	FROM generate_series(1, 20) n \gexec
\o
SELECT count(*), sum(xinst), max(memory) - min(memory) < 8000000 AS bounded
	FROM (SELECT pg_temp.memory(n) AS memory, (mip.commit('large ' || n, 1)).xinst
		FROM generate_series(1, 20) n OFFSET 0) s;

SELECT count(*) FROM mip.in_doubt;
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.check('t'), test.check('child');
VACUUM (FREEZE) t, child;
SELECT test.check('t'), test.check('child');
SELECT test.corruption('t');
SELECT test.close('t1', 't2', 't3', 'u', 'w', 'c');
DROP TABLE child, t;
