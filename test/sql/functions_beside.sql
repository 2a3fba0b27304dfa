-- mip.prepare_beside, mip.commit_one_phase_beside, mip.commit_beside: the same effects, and who else there is.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\set ECHO all
CREATE TABLE b (id int PRIMARY KEY, v int, t text) USING mip;
INSERT INTO b VALUES (1, 0), (2, 0);

-- alone
BEGIN;
SELECT mip.begin('b1', 1);
UPDATE b SET v = 1 WHERE id = 1;
SELECT mip.prepare_beside('request', 'result');
SELECT xinst, state, request, result FROM mip.instances('b1');
SELECT mip.commit_beside('b1', 1);
SELECT xinst, state, request, result FROM mip.instances('b1');
SELECT * FROM b ORDER BY id;
-- again, of another, and of what is not there
SELECT mip.commit_beside('b1', 1);
SELECT mip.commit_beside('b1', 2);
\echo :LAST_ERROR_SQLSTATE
SELECT mip.commit_beside('b2', 1);
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT mip.begin('b3', 1);
UPDATE b SET v = v + 1 WHERE id = 1;
SELECT mip.commit_one_phase_beside('request', 'result');
SELECT xinst, state, request, result FROM mip.instances('b3');

-- beside a sibling whose row it has changed, too: its versions are handed over
BEGIN;
SELECT mip.begin('b4', 1);
UPDATE b SET v = 10 WHERE id = 1;
SELECT mip.prepare_beside(NULL, 'one');
BEGIN;
SELECT mip.begin('b4', 2);
UPDATE b SET v = 20 WHERE id = 1;
SELECT mip.prepare_beside(NULL, 'two');
SELECT mip.commit_beside('b4', 2);
SELECT xinst, state FROM mip.instances('b4');
SELECT * FROM b ORDER BY id;
-- the sibling has gone, but its changes are still where the winner's have to go
BEGIN;
SELECT mip.begin('b5', 1);
UPDATE b SET v = 30 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
BEGIN;
SELECT mip.begin('b5', 2);
UPDATE b SET v = 40 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
SELECT xinst, state FROM mip.rollback('b5', 1);
SELECT mip.commit_beside('b5', 2);
SELECT * FROM b ORDER BY id;
-- alone when it was prepared, and not any more: a sibling that has come and gone, a refusal
BEGIN;
SELECT mip.begin('b6', 1);
UPDATE b SET v = 50 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
BEGIN;
SELECT mip.begin('b6', 2);
UPDATE b SET v = 60 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
SELECT xinst, state FROM mip.rollback('b6', 2);
SELECT mip.commit_beside('b6', 1);
SELECT xinst, state FROM mip.instances('b6');
BEGIN;
SELECT mip.begin('b7', 1);
UPDATE b SET v = 70 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
SELECT mip.refuse('b7', 2, '{}');
SELECT mip.commit_beside('b7', 1);
SELECT xinst, state FROM mip.instances('b7');
-- a row by SQL
BEGIN;
SELECT mip.begin('b8', 1);
UPDATE b SET v = 80 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
INSERT INTO mip.mipt (xid, xinst, result, owner, since, aborted)
	VALUES ('b8', 5, 'restored', current_user::regrole, now(), false);
SELECT mip.commit_beside('b8', 1);
\echo :LAST_ERROR_SQLSTATE
SELECT xinst, state FROM mip.commit('b8', 5);
-- alone when it began and when it was prepared; but a sibling has been there, of whose row it has a version
SELECT test.open('t1');
BEGIN;
SELECT mip.begin('b11', 1);
SELECT test.begin('t1', 'b11', 2), test.run('t1', 'UPDATE b SET v = 112 WHERE id = 1');
UPDATE b SET v = 111 WHERE id = 1;
SELECT test.run('t1', 'ROLLBACK');
SELECT mip.prepare_beside(NULL, NULL);
SELECT mip.commit_beside('b11', 1);
SELECT * FROM b ORDER BY id;
SELECT test.check('b'), test.close('t1');
-- an error once it is committed
BEGIN;
SELECT mip.begin('b12', 1);
UPDATE b SET v = 120 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
SET mip.debug_stop_at = 'error:finished';
SELECT mip.commit_beside('b12', 1);
RESET mip.debug_stop_at;
SELECT mip.commit_beside('b12', 1);
SELECT * FROM b ORDER BY id;
-- captured changes are kept as long as it is in doubt
BEGIN;
SET LOCAL mip.capture_writeset = on;
SELECT mip.begin('b9', 1);
UPDATE b SET v = 90 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
SELECT changes FROM mip.writeset_info(mip.writeset('b9', 1));
SELECT mip.commit_beside('b9', 1);
SELECT count(*) FROM mip.mipt WHERE links IS NOT NULL OR places IS NOT NULL;

-- keys and roles
CREATE ROLE mip_beside;
BEGIN;
SELECT mip.begin('b10', 1, key => 'secret');
UPDATE b SET v = 100 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL);
ROLLBACK;
BEGIN;
SELECT mip.begin('b10', 2, key => 'secret');
UPDATE b SET v = 100 WHERE id = 1;
SELECT mip.prepare_beside(NULL, NULL, 'secret');
SET ROLE mip_beside;
SELECT mip.commit_beside('b10', 2);
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
BEGIN;
SELECT mip.commit_beside('b10', 2);
ROLLBACK;
SELECT mip.prepare_beside(NULL, NULL);
\echo :LAST_ERROR_SQLSTATE

-- It has to be the whole statement: nobody else can have put it there.
\set VERBOSITY terse
CREATE VIEW bv AS SELECT mip.commit_beside('b10', 2), 1 AS one;
SELECT * FROM bv;
SELECT mip.commit_beside('b10', 2), 1;
SELECT mip.commit_beside('b10', 2) IS NULL;
SELECT mip.commit_beside('b10', 2)::text;
SELECT mip.commit_beside('b10', 2) FROM b;
SELECT * FROM mip.commit_beside('b10', 2);
SELECT (SELECT mip.commit_beside('b10', 2));
SELECT 1 WHERE mip.commit_beside('b10', 2) IS NULL;
SELECT mip.commit_beside('b10', 2) UNION ALL SELECT NULL;
WITH w AS MATERIALIZED (SELECT mip.commit_beside('b10', 2)) SELECT * FROM w;
VALUES (mip.commit_beside('b10', 2));
CREATE DOMAIN bd AS int CHECK (mip.commit_beside('b10', 2) IS NULL);
SELECT 1::bd;
CREATE TABLE bt (id int, x bigint[] DEFAULT mip.commit_beside('b10', 2)) USING mip;
INSERT INTO bt VALUES (1);
INSERT INTO bt VALUES (1, mip.commit_beside('b10', 2));
INSERT INTO bt VALUES (1, NULL);
UPDATE bt SET x = DEFAULT;
GRANT SELECT ON bt TO mip_beside;
GRANT ALL ON SCHEMA public TO mip_beside;
ALTER TABLE bt ENABLE ROW LEVEL SECURITY;
CREATE POLICY bp ON bt USING (mip.commit_beside('b10', 2) IS NULL);
SET ROLE mip_beside;
SELECT id FROM bt;
RESET ROLE;
CREATE TABLE br (id int) USING mip;
CREATE RULE br AS ON INSERT TO br DO ALSO SELECT mip.commit_beside('b10', 2);
INSERT INTO br VALUES (1);
CREATE OR REPLACE RULE br AS ON INSERT TO br DO INSTEAD SELECT mip.commit_beside('b10', 2);
INSERT INTO br VALUES (1);
DO $$ BEGIN PERFORM mip.commit_beside('b10', 2); END $$;
CREATE FUNCTION bf() RETURNS bigint[] LANGUAGE sql AS $$ SELECT mip.commit_beside('b10', 2) $$;
SELECT bf() FROM b;
SELECT xinst, state FROM mip.instances('b10');
-- EXECUTE is the client's own
PREPARE bp AS SELECT mip.commit_beside($1, $2);
EXECUTE bp('b10', 2);
EXECUTE bp('b10', 2);
SELECT xinst, state FROM mip.instances('b10');

DROP TABLE b, bt, br;
DROP VIEW bv;
DROP DOMAIN bd;
DROP FUNCTION bf;
REVOKE ALL ON SCHEMA public FROM mip_beside;
DROP ROLE mip_beside;
SELECT count(*) FROM (SELECT mip.forget(xid) FROM (SELECT DISTINCT xid FROM mip.mipt WHERE xid ~ '^b\d') x) f;
