-- What an instance does to its session lasts no longer than itself, however it
-- ends; what cannot be taken back is refused.
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
DEALLOCATE mine;

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

-- Locks of the session
SELECT pg_advisory_lock(1), pg_advisory_unlock(1);
SELECT pg_advisory_lock(2);
CREATE FUNCTION lock() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(3); END $$;
CREATE FUNCTION attempt(sql text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE sql;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;
BEGIN; SELECT mip.begin('locks', 1);
SELECT sql, attempt(sql) FROM unnest(ARRAY['SELECT pg_advisory_lock(3)', 'SELECT pg_advisory_lock(3, 3)',
	'SELECT pg_advisory_lock_shared(3)', 'SELECT pg_advisory_lock_shared(3, 3)',
	'SELECT pg_try_advisory_lock(3)', 'SELECT pg_try_advisory_lock(3, 3)',
	'SELECT pg_try_advisory_lock_shared(3)', 'SELECT pg_try_advisory_lock_shared(3, 3)',
	'SELECT lock()', 'DO ''BEGIN PERFORM lock(); END''',
	'SELECT pg_advisory_xact_lock(4)', 'SELECT pg_advisory_unlock(2)']) AS sql;
SELECT state FROM mip.commit_one_phase(NULL, NULL);
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

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
