-- Sessions that a connection pool hands from one client to the next.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set code '\\echo SQLSTATE :SQLSTATE'
\set ECHO none
\i :sessions
\set ECHO all
\pset format unaligned
\pset tuples_only on
CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
INSERT INTO t VALUES (1, 0), (2, 0);
CREATE ROLE mip_pool_a;
CREATE ROLE mip_pool_b;
GRANT ALL ON t TO mip_pool_a, mip_pool_b;
SELECT test.open('s', 'u');

-- Nothing of an instance stays with its session: neither role, nor locks, nor overlay
SELECT test.begin('u', 'p1', 1), test.run('u', 'UPDATE t SET v = 1 WHERE id = 1');
SELECT test.run('s', 'SET ROLE mip_pool_a'), test.begin('s', 'p2', 1);
SELECT test.run('s', 'SET LOCAL work_mem = ''64kB'''), test.run('s', 'UPDATE t SET v = 2 WHERE id = 2'), test.prepare('s');
SELECT test.run('s', 'SELECT count(*)::text FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = ''userlock''');
SELECT test.run('s', 'DISCARD ALL'), test.run('s', 'SELECT (current_user = session_user)::text'),
	test.run('s', 'SELECT (current_setting(''work_mem'') = ''64kB'')::text');
SELECT test.begin('s', 'p1', 2), test.run('s', 'UPDATE t SET v = 3 WHERE id = 1'), test.run('s', 'SELECT v::text FROM t WHERE id = 1');
SELECT test.prepare('u'), test.prepare('s');
SELECT test.run('s', 'SELECT v::text FROM t WHERE id = 1'), test.run('s', 'RESET ALL'), test.run('s', 'SET enable_seqscan = off'),
	test.run('s', 'SELECT v::text FROM t WHERE id = 1');
SELECT test.run('s', 'SET ROLE mip_pool_b'), test.run('s', 'SELECT count(*)::text FROM mip.in_doubt'), test.begin('s', 'p3', 1);
SELECT test.run('s', 'UPDATE t SET v = 4 WHERE id = 2 AND false'), test.prepare('s'), test.commit('s', 'p3', 1);
SELECT test.commit('s', 'p2', 1);
SELECT test.run('s', 'SET SESSION AUTHORIZATION mip_pool_a'), test.commit('s', 'p2', 1);
SELECT test.run('s', 'RESET SESSION AUTHORIZATION'), test.commit('s', 'p1', 2);
SELECT * FROM t ORDER BY id;

-- inside of one, what a pool sends between clients is refused, and the instance lost
SELECT test.run('s', 'RESET ROLE'), test.begin('s', 'p4', 1), test.run('s', 'UPDATE t SET v = 5');
SELECT test.run('s', 'DISCARD ALL'), test.prepare('s');
SELECT test.run('s', 'ROLLBACK'), count(*) FROM mip.instances('p4');
-- parameters may be reset; they do not matter to it
SELECT test.begin('s', 'p4', 1), test.run('s', 'UPDATE t SET v = 6'), test.run('s', 'RESET ALL'), test.prepare('s'), test.commit('s', 'p4', 1);

-- A session that is ended takes its instance with it, and leaves those that are prepared
SELECT test.begin('s', 'p5', 1), test.run('s', 'UPDATE t SET v = 7'), test.prepare('s');
SELECT test.begin('s', 'p6', 1), test.run('s', 'INSERT INTO t VALUES (3, 0)');
SELECT xinst, state FROM mip.instances('p6');
SELECT pg_terminate_backend(pid, 10000) FROM test.session WHERE name = 's';
SELECT count(*) FROM mip.instances('p6');
SELECT test.begin('u', 'p6', 1), test.run('u', 'INSERT INTO t VALUES (3, 1)'), test.prepare('u'), test.commit('u', 'p6', 1);
SELECT test.commit('u', 'p5', 1);
SELECT * FROM t ORDER BY id;
-- also in the middle of a statement, beside a sibling
SELECT dblink_disconnect('s');
SELECT test.open('s', 'x'), test.run('x', 'BEGIN'), test.run('x', 'UPDATE t SET v = 8 WHERE id = 2');
SELECT test.begin('u', 'p7', 1), test.run('u', 'UPDATE t SET v = 9 WHERE id = 1');
SELECT test.begin('s', 'p7', 2), test.run('s', 'UPDATE t SET v = 10 WHERE id = 1');
SELECT test.send('s', 'UPDATE t SET v = 11 WHERE id = 2'), test.waits('s');
SELECT pg_terminate_backend(pid, 10000) FROM test.session WHERE name = 's';
SELECT string_agg(xinst || ' ' || state, ', ') FROM mip.instances('p7');
SELECT test.run('x', 'COMMIT'), test.prepare('u'), test.commit('u', 'p7', 1);
SELECT * FROM t ORDER BY id;
SELECT count(*) FROM pg_prepared_xacts;

SELECT dblink_disconnect('s'), test.close('u', 'x');
DROP TABLE t;
DROP ROLE mip_pool_a, mip_pool_b;
