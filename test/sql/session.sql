-- What an instance does to its session lasts no longer than itself, however it
-- ends.
\set VERBOSITY terse
CREATE DATABASE mip_session;
\c mip_session
CREATE EXTENSION pg_mip;
CREATE ROLE mip_session_role;
CREATE TABLE s (id int PRIMARY KEY) USING mip;
GRANT INSERT ON s TO mip_session_role;
SET lock_timeout = '11s';
SET test.mine = 'before';

-- All ways to leave something, but for the role
CREATE FUNCTION search() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN EXECUTE 'SET search_path = nowhere'; EXECUTE 'PREPARE deep AS SELECT 2'; END $$;
CREATE PROCEDURE leave() LANGUAGE plpgsql AS $$ BEGIN
	EXECUTE 'SET lock_timeout = 5';
	EXECUTE 'SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY';
	EXECUTE 'SET client_encoding = latin1';
	EXECUTE 'SET TIME ZONE ''Asia/Tokyo''';
	PERFORM set_config('test.mine', 'mine', false), set_config('test.new', 'new', false);
	EXECUTE 'PREPARE mine AS SELECT 1';
	PERFORM public.search();
END $$;
CREATE VIEW left_behind AS
	SELECT name, setting FROM pg_settings
	WHERE name IN ('lock_timeout', 'search_path', 'default_transaction_read_only', 'client_encoding')
	UNION ALL SELECT name, current_setting(name, true) FROM (VALUES ('test.mine'), ('test.new')) AS v (name)
	UNION ALL SELECT 'time zone', (current_setting('TimeZone') = 'Asia/Tokyo')::text
	UNION ALL SELECT 'statements', string_agg(name, ',') FROM pg_prepared_statements;
GRANT SELECT ON left_behind TO mip_session_role;
SELECT * FROM left_behind ORDER BY 1;

-- prepared
BEGIN; SELECT mip.begin('prepared', 1); CALL leave();
SELECT * FROM public.left_behind ORDER BY 1;
SELECT state FROM mip.prepare(NULL, NULL);
SELECT * FROM left_behind ORDER BY 1;
SELECT state FROM mip.rollback('prepared', 1);
-- committed in one phase
BEGIN; SELECT mip.begin('one phase', 1); CALL leave();
EXECUTE mine;
SELECT state FROM mip.commit_one_phase(NULL, NULL);
SELECT * FROM left_behind ORDER BY 1;
-- rolled back, also once it has failed
BEGIN; SELECT mip.begin('rolled back', 1); CALL leave();
ROLLBACK;
SELECT * FROM left_behind ORDER BY 1;
BEGIN; SELECT mip.begin('failed', 1);
SAVEPOINT a; CALL leave(); ROLLBACK TO a;
SELECT 1 / 0;
SELECT state FROM mip.prepare(NULL, NULL);
ROLLBACK;
SELECT * FROM left_behind ORDER BY 1;
-- by the statement that prepares, which goes itself
BEGIN; SELECT mip.begin('by a statement', 1);
PREPARE ends AS SELECT state FROM mip.prepare(NULL, NULL);
EXECUTE ends;
SELECT * FROM left_behind ORDER BY 1;
SELECT state FROM mip.rollback('by a statement', 1);

-- Settings for the transaction are what they were, and so is the session's own
-- statement of a name that an instance has tried to take.
PREPARE mine AS SELECT 'the session''s';
BEGIN; SELECT mip.begin('local', 1);
SET LOCAL lock_timeout = 7;
SAVEPOINT a;
PREPARE mine AS SELECT 1;
ROLLBACK TO a; RELEASE a;
SHOW lock_timeout;
SELECT state FROM mip.commit_one_phase(NULL, NULL);
EXECUTE mine;
SHOW lock_timeout;
-- What it takes away is gone.
BEGIN; SELECT mip.begin('deallocates', 1);
DEALLOCATE mine;
PREPARE mine AS SELECT 1;
SELECT state FROM mip.commit_one_phase(NULL, NULL);
EXECUTE mine;

-- A role; the one that has begun has to end.
BEGIN; SELECT mip.begin('role', 1);
SET ROLE mip_session_role;
SELECT state FROM mip.prepare(NULL, NULL);
ROLLBACK;
SELECT current_user = session_user AS myself;
BEGIN; SET ROLE mip_session_role; SELECT mip.begin('role', 1);
INSERT INTO s VALUES (1);
SELECT state, owner FROM mip.prepare(NULL, NULL);
SELECT current_user = session_user AS myself;
SELECT state, owner FROM mip.commit('role', 1);
BEGIN; SET SESSION AUTHORIZATION mip_session_role; SELECT mip.begin('authorization', 1);
SELECT state, owner FROM mip.commit_one_phase(NULL, NULL);
SELECT session_user = 'mip_session_role' AS another;

-- Other transactions are as ever.
BEGIN; SET lock_timeout = '12s';
COMMIT;
BEGIN; SET lock_timeout = '13s'; PREPARE TRANSACTION 'stock';
SHOW lock_timeout;
ROLLBACK PREPARED 'stock';
SET lock_timeout = '11s';

-- Advisory locks of the session, however they are taken
CREATE FUNCTION lock_by_another_name(bigint) RETURNS void LANGUAGE internal AS 'pg_advisory_lock_int8';
CREATE FUNCTION lock_by_an_expression(n int) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE v text; BEGIN v := pg_advisory_lock(n); END $$;
CREATE PROCEDURE lock_all() LANGUAGE plpgsql AS $$ BEGIN
	PERFORM pg_advisory_lock(1), pg_advisory_lock(2, 2), pg_advisory_lock_shared(3), pg_advisory_lock_shared(4, 4),
		pg_try_advisory_lock(5), pg_try_advisory_lock(6, 6), pg_try_advisory_lock_shared(7), pg_try_advisory_lock_shared(8, 8),
		lock_by_another_name(9), lock_by_an_expression(10), pg_advisory_lock(1), pg_advisory_lock_shared(1);
END $$;
CREATE VIEW locks AS
	SELECT count(*), string_agg(objid::text || CASE mode WHEN 'ShareLock' THEN 's' ELSE '' END, ' ' ORDER BY objid, mode) AS keys
	FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
-- how often the session has it; none is left then
CREATE FUNCTION how_often(key bigint) RETURNS int LANGUAGE plpgsql SET client_min_messages = error AS $$
DECLARE n int := 0;
BEGIN
	WHILE pg_advisory_unlock(key) LOOP n := n + 1; END LOOP;
	RETURN n;
END $$;
SELECT lock_by_an_expression(10), pg_advisory_unlock(10);
BEGIN; SELECT mip.begin('locks prepared', 1); CALL lock_all();
SELECT * FROM locks;
SELECT state FROM mip.prepare(NULL, NULL);
SELECT * FROM locks;
SELECT state FROM mip.rollback('locks prepared', 1);
BEGIN; SELECT mip.begin('locks one phase', 1); CALL lock_all();
SELECT state FROM mip.commit_one_phase(NULL, NULL);
SELECT * FROM locks;
BEGIN; SELECT mip.begin('locks rolled back', 1);
SAVEPOINT a; CALL lock_all(); ROLLBACK TO a;
SELECT * FROM locks;
ROLLBACK;
SELECT * FROM locks;
BEGIN; SELECT mip.begin('locks failed', 1); CALL lock_all();
SELECT 1 / 0;
ROLLBACK;
SELECT * FROM locks;
BEGIN;
DECLARE sooner CURSOR FOR SELECT pg_advisory_lock(11);
SELECT mip.begin('locks by a cursor', 1), pg_advisory_lock(12);
FETCH sooner;
CLOSE sooner;
SELECT * FROM locks;
SELECT state FROM mip.commit_one_phase(NULL, NULL);
SELECT * FROM locks;

-- What the session had before it has again, as often, unless it was released;
-- transactions' locks go with them, or stay with what is prepared.
SELECT pg_advisory_lock(1), pg_advisory_lock(1), pg_advisory_lock_shared(1), pg_advisory_lock(2), pg_advisory_lock(3);
BEGIN; SELECT pg_advisory_xact_lock(4), pg_advisory_xact_lock(5), pg_advisory_xact_lock_shared(3);
SELECT mip.begin('counted', 1);
SELECT pg_advisory_lock(1), pg_advisory_unlock_shared(1), pg_advisory_unlock(2), pg_advisory_lock(4), pg_advisory_xact_lock(6),
	pg_advisory_xact_lock(3);
SELECT * FROM locks;
SELECT state FROM mip.commit_one_phase(NULL, NULL);
SELECT * FROM locks;
SELECT how_often(1) AS one, how_often(2) AS two, how_often(3) AS three, how_often(4) AS four;
BEGIN; SELECT pg_advisory_xact_lock(1); SELECT mip.begin('of both', 1);
SELECT pg_advisory_lock(1), pg_advisory_lock(2), pg_advisory_xact_lock_shared(2);
SELECT state FROM mip.prepare(NULL, NULL);
SELECT * FROM locks;
SELECT objid, mode FROM pg_locks WHERE locktype = 'advisory' ORDER BY 1;
SELECT state FROM mip.rollback('of both', 1);
-- Each is one by itself.
SELECT pg_advisory_lock(2);
BEGIN; SELECT mip.begin('each', 1);
SELECT pg_advisory_lock(1), pg_advisory_xact_lock(3), pg_advisory_lock(2, 2);
SELECT state FROM mip.prepare(NULL, NULL);
SELECT * FROM locks;
SELECT state FROM mip.rollback('each', 1);
SELECT how_often(2);

-- PostgreSQL does not prepare it.
SELECT pg_advisory_lock(1);
BEGIN; SELECT mip.begin('of both, before', 1);
SELECT pg_advisory_xact_lock_shared(1);
SELECT state FROM mip.prepare(NULL, NULL);
BEGIN; SELECT pg_advisory_xact_lock(1); SELECT mip.begin('of both, before', 2);
SELECT state FROM mip.prepare(NULL, NULL);
BEGIN; SELECT mip.begin('of both, before', 3);
SELECT pg_advisory_xact_lock(1);
SELECT state FROM mip.commit_one_phase(NULL, NULL);
SELECT how_often(1);

\c contrib_regression
DROP DATABASE mip_session;
DROP ROLE mip_session_role;

-- How a transaction was begun counts until it has ended
CREATE TABLE serial (id int PRIMARY KEY, n int) USING mip;
INSERT INTO serial VALUES (1, 0);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT mip.begin('begun serializable', 1);
UPDATE serial SET n = n + 1 WHERE id = 1;
SELECT xinst, state FROM mip.commit_one_phase('r', 'x');
SHOW transaction_isolation;
DROP TABLE serial;
