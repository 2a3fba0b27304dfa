-- mip.refuse: an instance that is never prepared here any more.
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
SELECT test.open('t1', 't2', 'u', 'c');

-- never here: it cannot come any more, and the note names the sites; its siblings can
SELECT mip.refuse('rf1', 5, '{b,a,b}');
SELECT xinst, state, request, result, sites, owner = current_user FROM mip.instances('rf1');
SELECT mip.refuse('rf1', 5, '{a,b}');
BEGIN;
SELECT mip.begin('rf1', 5, '{a,b}');
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('rf1', 4, '{a,b}');
UPDATE t SET v = 4 WHERE id = 1;
SELECT xinst, state, sites FROM mip.prepare('four', '4');

-- prepared: too late; and nothing has changed [prepared-stays]
SELECT mip.refuse('rf1', 4, '{a,b}');
SELECT xinst, state FROM mip.instances('rf1');
-- beside it, also one that it supersedes
SELECT mip.refuse('rf1', 3, '{a,b}'), mip.refuse('rf1', 6, '{a,b}');
-- and one over other sites, in whose way it is, and which is in its way elsewhere
SELECT mip.refuse('rf1', 7, '{a,c}'), mip.refuse('rf1', 8, '{}');
SELECT xinst, state, sites FROM mip.instances('rf1');
-- but it is itself over those sites that its begin has named
SELECT mip.refuse('rf1', 4, '{a,c}');
:code
SELECT mip.refuse('rf1', 7);
:code
SELECT xinst, state FROM mip.instances('rf1');

-- rolled back: refused, and it may be repeated [refusal-stays]
SELECT xinst, state FROM mip.rollback('rf1', 4);
SELECT mip.refuse('rf1', 4, '{a,b}'), mip.refuse('rf1', 4, '{a,b}');
SELECT v FROM t WHERE id = 1;

-- committed: the winner is told
BEGIN;
SELECT mip.begin('rf2', 1, '{a,b}');
SELECT xinst FROM mip.prepare('one', '{"it": 1}');
SELECT xinst, state FROM mip.commit('rf2', 1);
SELECT mip.refuse('rf2', 1, '{a,b}');
:code
SELECT mip.refuse('rf2', 2, '{a,b}');
:code
SELECT mip.acknowledge('rf2');
SELECT mip.refuse('rf2', 2, '{a,b}');
:code

-- active and idle: its session ends, an outsider goes on
SELECT test.begin('t1', 'rf3', 1), test.run('t1', 'UPDATE t SET v = 1 WHERE id = 1');
SELECT test.send('u', 'UPDATE t SET v = v + 100 WHERE id = 1'), test.waits('u');
SELECT mip.refuse('rf3', 1, '{}');
SELECT test.result('u');
SELECT test.run('t1', 'SELECT 1') ~ '^(57P01|08)';
SELECT xinst, state FROM mip.instances('rf3');
SELECT test.close('t1'), test.open('t1');

-- also where that one is active
SELECT test.begin('t1', 'rf8', 1);
SELECT mip.refuse('rf8', 2, '{x,y}');
:code
SELECT test.run('t1', 'ROLLBACK');

-- active and running: its statement ends, and it cannot be prepared; a sibling beside it can
SELECT test.begin('t1', 'rf4', 1), test.run('t1', 'UPDATE t SET v = 1 WHERE id = 1');
SELECT test.begin('t2', 'rf4', 2), test.run('t2', 'UPDATE t SET v = 2 WHERE id = 1');
SELECT test.send('t1', 'SELECT pg_sleep(10)::text');
SELECT mip.refuse('rf4', 1, '{}');
SELECT test.result('t1'), test.prepare('t1'), test.run('t1', 'ROLLBACK');
SELECT test.prepare('t2');
SELECT test.commit('c', 'rf4', 2);
SELECT xinst, state FROM mip.instances('rf4');
SELECT v FROM t WHERE id = 1;

-- an instance that was alone hears of it in the MIPT that it gets
SELECT test.begin('t1', 'rf5', 1);
SELECT mip.refuse('rf5', 9, '{}');
SELECT test.prepare('t1');
SELECT test.rollback('c', 'rf5', 1);

-- expired, by its XID's time
SELECT mip.refuse('018cc251-f400-7000-8000-000000000001', 1, '{}');
SELECT mip.expire();
SELECT count(*) FROM mip.instances('018cc251-f400-7000-8000-000000000001');
SELECT mip.refuse('018cc251-f400-7000-8000-000000000001', 1, '{}');
:code

-- arguments
SELECT mip.refuse('', 1, '{}');
:code
SELECT mip.refuse(NULL, 1, '{}');
:code
SELECT mip.refuse('rf6', 0, '{}');
:code
SELECT mip.refuse('rf6', NULL, '{}');
:code
SELECT mip.refuse('rf6', 1, NULL);
:code
SELECT mip.refuse('rf6', 1, '{a,NULL}');
:code

-- a statement of its own: its effect is durable at once
BEGIN;
SELECT mip.refuse('rf6', 1, '{}');
:code
ROLLBACK;
DO $$ BEGIN PERFORM mip.refuse('rf6', 1, '{}'); END $$;
:code
DO $$ DECLARE b bool := mip.refuse('rf6', 1, '{}'); BEGIN ROLLBACK; END $$;
:code
CREATE PROCEDURE take(b bool) LANGUAGE sql AS 'SELECT 1';
CALL take(mip.refuse('rf6', 1, '{}'));
:code
DROP PROCEDURE take;
BEGIN;
SELECT mip.begin('rf6', 1);
SELECT mip.refuse('rf6', 2, '{}');
:code
ROLLBACK;
SELECT count(*) FROM mip.instances('rf6');
-- several at once
SELECT i, mip.refuse('rf6', i, '{}') FROM generate_series(1, 3) i;

-- it is its role's
CREATE ROLE refuser LOGIN;
SET ROLE refuser;
SELECT mip.refuse('rf6', 4, '{}');
:code
SELECT mip.refuse('rf7', 1, '{}');
RESET ROLE;
SELECT xinst, state, owner FROM mip.instances('rf7');
-- another one, with its privileges, notes for the same role
SELECT mip.refuse('rf7', 2, '{}');
SELECT xinst, state, owner FROM mip.instances('rf7');
SELECT mip.forget('rf' || i) FROM generate_series(1, 8) i;
DROP ROLE refuser;

SELECT test.check('t');
SELECT count(*) FROM mip.in_doubt;
DROP TABLE t;
