-- mip.start, which is BEGIN and mip.begin_beside in one; and the procedures, for CALL.
\set VERBOSITY terse
CREATE TABLE s (id int PRIMARY KEY, v int) USING mip;
INSERT INTO s VALUES (1, 0), (2, 0);

-- a block
SELECT mip.start('st1', 1, '{here,there}');
UPDATE s SET v = v + 1 WHERE id = 1;
SELECT mip.prepare_beside('request', 'one');
SELECT mip.start('st1', 2, '{here,there}');
UPDATE s SET v = v + 10 WHERE id = 1;
ROLLBACK;
SELECT mip.commit_beside('st1', 1);
SELECT mip.start('st2', 1);
UPDATE s SET v = v + 100 WHERE id = 2;
SAVEPOINT a;
DELETE FROM s;
ROLLBACK TO a;
RELEASE a;
SELECT xinst, state FROM mip.commit_one_phase(NULL, 'two');
SELECT * FROM s ORDER BY id;
SELECT mip.start('st3', 1);
COMMIT;
-- within one message
SELECT mip.start('st4', 1) \; UPDATE s SET v = v + 1000 WHERE id = 2 \; SELECT mip.commit_one_phase_beside(NULL, 'four');
SELECT mip.start('st5', 1) \; UPDATE s SET v = -1 WHERE id = 2 \; SELECT 1 / 0 \; UPDATE s SET v = -2;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT * FROM s ORDER BY id;

-- what fails leaves a failed block
SELECT mip.start('st2', 2);
\echo :LAST_ERROR_SQLSTATE
UPDATE s SET v = -1;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT mip.start('st6', 0);
UPDATE s SET v = -1;
ROLLBACK;
UPDATE s SET v = -1 \; SELECT mip.start('st6', 1);
UPDATE s SET v = -1;
ROLLBACK;
SELECT * FROM s ORDER BY id;
-- none can be begun where there is one
BEGIN;
SELECT mip.start('st6', 1, isolation => 'serializable');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT mip.start('st6', 1);
SELECT mip.start('st6', 2);
ROLLBACK;
-- its key
SELECT mip.start('st6', 1, '{}', 'secret');
SELECT mip.commit_one_phase_beside(NULL, NULL);
ROLLBACK;

-- how it runs
SELECT mip.start('st7', 1, isolation => 'Read Committed');
SHOW transaction_isolation;
ROLLBACK;
SELECT mip.start('st7', 1, isolation => 'repeatable read');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT mip.start('st7', 1, isolation => '');
SET default_transaction_isolation = 'repeatable read';
SELECT mip.start('st7', 1, isolation => 'read committed');
SELECT mip.start('st7', 1, isolation => 'repeatable read');
SHOW transaction_isolation;
UPDATE s SET v = 7 WHERE id = 2;
SELECT mip.commit_one_phase_beside(NULL, NULL);
RESET default_transaction_isolation;
SET default_transaction_read_only = on;
SELECT mip.start('st8', 1);
UPDATE s SET v = 8 WHERE id = 2;
ROLLBACK;
RESET default_transaction_read_only;

-- only as a statement of its own
SELECT mip.start('st9', 1), 1;
SELECT * FROM mip.start('st9', 1);
SELECT (SELECT mip.start('st9', 1));
SELECT mip.start('st9', 1) FROM s;
EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT mip.start('st9', 1);
COPY (SELECT mip.start('st9', 1)) TO STDOUT;
CREATE TABLE st AS SELECT mip.start('st9', 1);
DO $$ BEGIN PERFORM mip.start('st9', 1); END $$;
CREATE FUNCTION sf() RETURNS bigint[] LANGUAGE plpgsql AS $$ BEGIN RETURN mip.start('st9', 1); END $$;
SELECT sf();
CREATE FUNCTION si() RETURNS bigint[] LANGUAGE sql AS $$ SELECT mip.start('st9', 1) $$;
SELECT si() FROM s;
CREATE TABLE sd (id int, x bigint[] DEFAULT mip.start('st9', 1)) USING mip;
INSERT INTO sd VALUES (1);
SELECT count(*) FROM mip.instances('st9');
CREATE VIEW sv AS SELECT mip.start('st9', 1) AS others;
SELECT * FROM sv;
TABLE sv;
PREPARE sq AS SELECT * FROM sv;
EXECUTE sq;
SELECT si();
CREATE FUNCTION ss() RETURNS SETOF bigint[] STABLE LANGUAGE sql AS $$ SELECT mip.start('st9', 1) $$;
SELECT * FROM ss();
CREATE VIEW sw AS SELECT mip.prepare_beside('theirs', 'theirs') AS others;
BEGIN;
SELECT mip.begin('st9', 1);
SELECT * FROM sw;
ROLLBACK;
SELECT count(*) FROM mip.instances('st9');
DROP VIEW sv, sw;
DROP FUNCTION ss;
-- EXECUTE is the client's own
PREPARE sp AS SELECT mip.start($1, $2);
EXECUTE sp('st10', 1);
UPDATE s SET v = 10 WHERE id = 2;
SELECT mip.commit_one_phase_beside(NULL, NULL);

-- CALL
BEGIN;
CALL mip.do_begin('st11', 1);
UPDATE s SET v = 11 WHERE id = 2;
CALL mip.do_prepare('request', 'eleven');
CALL mip.do_start('st11', 2);
UPDATE s SET v = 12 WHERE id = 2;
CALL mip.do_prepare(NULL, NULL);
CALL mip.do_commit('st11', 1);
SELECT xinst, state, request, result FROM mip.instances('st11');
CALL mip.do_start('st12', 1, key => 'secret', isolation => 'read committed');
UPDATE s SET v = 12 WHERE id = 2;
CALL mip.do_commit_one_phase(NULL, 'twelve', 'secret');
CALL mip.do_start('st13', 1) \; UPDATE s SET v = v + 1 WHERE id = 2 \; CALL mip.do_commit_one_phase(NULL, 'thirteen');
SELECT * FROM s ORDER BY id;
CALL mip.do_commit('st13', 2);
\echo :LAST_ERROR_SQLSTATE
CALL mip.do_begin('st14', 1);
\echo :LAST_ERROR_SQLSTATE
BEGIN;
CALL mip.do_commit('st11', 1);
ROLLBACK;
CALL mip.do_prepare(NULL, NULL);
CALL mip.do_start('st13', 2);
UPDATE s SET v = -1;
ROLLBACK;
-- of the client
BEGIN;
DO $$ BEGIN CALL mip.do_begin('st14', 1); END $$;
ROLLBACK;
CREATE PROCEDURE sc() LANGUAGE plpgsql AS $$ BEGIN CALL mip.do_begin('st14', 1); END $$;
BEGIN;
CALL sc();
ROLLBACK;
CREATE FUNCTION sa() RETURNS text LANGUAGE plpgsql AS $$ BEGIN CALL mip.do_begin('st14', 1); RETURN 'st15'; END $$;
BEGIN;
CALL mip.do_begin(sa(), 1);
ROLLBACK;
CREATE FUNCTION sb() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM mip.begin('st14', 1); RETURN 1; END $$;
BEGIN;
CALL mip.do_begin('st14', sb());
ROLLBACK;
CREATE PROCEDURE sm(text, bigint) LANGUAGE sql AS $$ CALL mip.do_begin($1, $2) $$;
BEGIN;
CALL sm('st14', 1);
ROLLBACK;
-- not even as a function's cursor, where statements do not count
CREATE TABLE sn (x text) USING mip;
CREATE RULE sr AS ON INSERT TO sn DO INSTEAD NOTHING;
CREATE FUNCTION so(what text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE c refcursor; r record;
BEGIN
	OPEN c FOR EXECUTE format('CALL mip.%s(''theirs'', ''theirs'')', what);
	FETCH c INTO r;
	RETURN true;
END $$;
CREATE DOMAIN sx AS text CHECK (so(VALUE));
PREPARE si (sx) AS INSERT INTO sn VALUES ($1);
SELECT mip.start('st14', 1);
EXECUTE si('do_commit_one_phase');
ROLLBACK;
SELECT mip.start('st14', 1);
EXECUTE si('do_prepare');
ROLLBACK;
PREPARE sj (bool) AS INSERT INTO sn VALUES ($1);
SELECT mip.start('st14', 1);
EXECUTE sj(so('do_commit_one_phase'));
ROLLBACK;
SELECT mip.start('st14', 1);
SELECT ROW('do_prepare'::sx);
ROLLBACK;
SELECT count(*) FROM mip.instances('st14');
DROP TABLE sn;
DROP DOMAIN sx;
DROP FUNCTION so;

DROP TABLE s, sd;
DROP FUNCTION sf, si, sa, sb;
DROP PROCEDURE sc, sm;
SELECT count(*) FROM (SELECT mip.forget(xid) FROM (SELECT DISTINCT xid FROM mip.mipt WHERE xid ~ '^st\d') x) f;
