-- The writesets of instances: their own, siblings', and once they are prepared.
CREATE EXTENSION IF NOT EXISTS dblink;
CREATE TABLE ci (id int PRIMARY KEY, v int, big text) USING mip;
ALTER TABLE ci ALTER big SET STORAGE EXTERNAL;
CREATE TABLE ck (x int, y text) USING mip;
INSERT INTO ci SELECT i, 0, repeat(i::text, 5000) FROM generate_series(1, 9) i;
INSERT INTO ck VALUES (1, 'a'), (1, 'a');

-- two siblings change the same rows: the second one's changes are an overlay
BEGIN;
SELECT mip.begin('ci1', 1);
SET LOCAL mip.capture_writeset = on;
UPDATE ci SET v = 1 WHERE id <= 4;
SAVEPOINT s;
DELETE FROM ci WHERE id = 9;
ROLLBACK TO s;
RELEASE s;
DELETE FROM ci WHERE id = 5;
INSERT INTO ci VALUES (10, 1, repeat('new', 3000));
DELETE FROM ck;
SELECT mip.writeset() AS w1 \gset
SELECT xinst, state FROM mip.prepare('request', NULL);
BEGIN;
SELECT mip.begin('ci1', 2);
SET LOCAL mip.capture_writeset = on;
UPDATE ci SET v = 2 WHERE id <= 3;
UPDATE ci SET v = 3, big = 'short' WHERE id = 3;
UPDATE ci SET id = 40 WHERE id = 4;
DELETE FROM ci WHERE id = 5;
INSERT INTO ci VALUES (10, 2, repeat('new', 3000));
UPDATE ck SET y = 'b';
SAVEPOINT s;
DELETE FROM ci WHERE id = 6;
ROLLBACK TO s;
RELEASE s;
SELECT mip.writeset() AS w2 \gset
SELECT xinst, state FROM mip.prepare('request', NULL);
SELECT number, op, relation, identity, left("row"::text, 40) FROM mip.writeset_changes(:'w1');
-- values that have not been changed are left out, though an overlay's version has its own copy of them
SELECT number, op, relation, identity, left("row"::text, 40) FROM mip.writeset_changes(:'w2');
SELECT mip.writeset('ci1', 1) = :'w1' AS first, mip.writeset('ci1', 2) = :'w2' AS second;
VACUUM ci, ck;
SELECT mip.writeset('ci1', 1) = :'w1' AS first, mip.writeset('ci1', 2) = :'w2' AS second;
-- "did the retry do the same?"
SELECT mip.writeset('ci1', 1) = mip.writeset('ci1', 2) AS same;
-- in parts
DO $$
DECLARE
	after bigint := 0;
	w bytea;
	parts bytea[];
BEGIN
	LOOP
		w := mip.writeset('ci1', 2, after, 300);
		EXIT WHEN (mip.writeset_info(w)).changes = 0;
		after := (mip.writeset_info(w)).last;
		parts := parts || w;
	END LOOP;
	ASSERT cardinality(parts) > 2;
	ASSERT (SELECT array_agg(c ORDER BY number) FROM unnest(parts) part, mip.writeset_changes(part) c) =
		(SELECT array_agg(c ORDER BY number) FROM mip.writeset_changes(mip.writeset('ci1', 2)) c);
END $$;
SELECT mip.writeset('ci1', 1, 1000);
\echo :LAST_ERROR_SQLSTATE
SELECT mip.writeset('ci1', 1, 5);
\echo :LAST_ERROR_SQLSTATE
SELECT mip.writeset('ci1', 1, NULL);
SELECT mip.writeset('ci1', 1, 0, 0);
SELECT mip.writeset('ci1', 3);
\echo :LAST_ERROR_SQLSTATE
SELECT mip.writeset('ci2', 1);
SELECT mip.writeset(NULL, 1);
SELECT mip.writeset('ci1', NULL);
-- whoever may not see the instance; who may, but not the table's rows
CREATE ROLE mip_captured_user;
SET ROLE mip_captured_user;
SELECT mip.writeset('ci1', 1);
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- nobody has to wait for who decides, and what is read of an instance that has ended does not count
SELECT dblink_connect(who, format('host=%s port=%s dbname=%I user=%I', split_part(current_setting('unix_socket_directories'), ',', 1),
	current_setting('port'), current_database(), session_user)) FROM unnest('{other,decides}'::text[]) who;
SELECT dblink_exec('other', 'SET mip.debug_stop_at = ''wait:places''');
SELECT pg_advisory_lock(1);
SELECT dblink_send_query('other', 'SELECT mip.writeset(''ci1'', 1)::text');
DO $$ BEGIN FOR i IN 1 .. 2000 LOOP EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted); PERFORM pg_sleep(0.01); END LOOP; END $$;
SELECT * FROM dblink('decides', 'SELECT xinst, state::text FROM mip.commit(''ci1'', 2)') AS t (xinst int, state text);
VACUUM ci, ck;
SELECT pg_advisory_unlock(1);
SELECT * FROM dblink_get_result('other', false) AS t (w text);
SELECT dblink_error_message('other');
-- also if all that it has changed is still to be read
SELECT * FROM dblink_get_result('other', false) AS t (w text);
BEGIN;
SELECT mip.begin('ci8', 1);
SET LOCAL mip.capture_writeset = on;
INSERT INTO ck VALUES (8, 'c');
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT dblink_exec('other', 'SET mip.debug_stop_at = ''wait:places''');
SELECT pg_advisory_lock(1);
SELECT dblink_send_query('other', 'SELECT mip.writeset(''ci8'', 1)::text');
DO $$ BEGIN FOR i IN 1 .. 2000 LOOP EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted); PERFORM pg_sleep(0.01); END LOOP; END $$;
SELECT * FROM dblink('decides', 'SELECT xinst, state::text FROM mip.rollback(''ci8'', 1)') AS t (xinst int, state text);
SELECT pg_advisory_unlock(1);
SELECT * FROM dblink_get_result('other', false) AS t (w text);
SELECT dblink_error_message('other');
SELECT dblink_disconnect('other'), dblink_disconnect('decides');
SELECT mip.writeset('ci1', 2);
SELECT xinst, places IS NULL AS emptied, links IS NULL AS links FROM mip.mipt WHERE xid = 'ci1' AND NOT aborted;
SELECT id, v, left(big, 10) FROM ci ORDER BY id;
SELECT * FROM ck;

-- without capture, in one phase, with nothing captured
BEGIN;
SELECT mip.begin('ci3', 1);
UPDATE ci SET v = 5 WHERE id = 1;
SELECT mip.writeset();
ROLLBACK;
BEGIN;
SELECT mip.begin('ci3', 2);
UPDATE ci SET v = 5 WHERE id = 1;
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT mip.writeset('ci3', 2);
\echo :LAST_ERROR_SQLSTATE
SELECT xinst, state FROM mip.rollback('ci3', 2);
SET mip.capture_writeset = on;
BEGIN;
SELECT mip.begin('ci4', 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT changes FROM mip.writeset_info(mip.writeset('ci4', 1));
SELECT xinst, state FROM mip.commit('ci4', 1);
BEGIN;
SELECT mip.begin('ci5', 1);
UPDATE ci SET v = 5 WHERE id = 1;
SELECT changes FROM mip.writeset_info(mip.writeset());
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
SELECT xid, xinst FROM mip.mipt WHERE places IS NOT NULL OR links IS NOT NULL;

-- many places, spilled, with an overlay's among them
CREATE TABLE cm (id int PRIMARY KEY, v int) USING mip;
INSERT INTO cm SELECT i, 0 FROM generate_series(1, 20000) i;
SET work_mem = 64;
BEGIN;
SELECT mip.begin('ci6', 1);
UPDATE cm SET v = 1 WHERE id % 2 = 0;
SELECT xinst, state FROM mip.prepare(NULL, NULL);
BEGIN;
SELECT mip.begin('ci6', 2);
UPDATE cm SET v = 2;
SELECT md5(mip.writeset()) AS w \gset
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT md5(mip.writeset('ci6', 2)) = :'w' AS same, updated FROM mip.writeset_info(mip.writeset('ci6', 2));
SELECT xinst, state FROM mip.commit('ci6', 1);
SELECT xid, xinst FROM mip.mipt WHERE places IS NOT NULL OR links IS NOT NULL;

-- in a transaction of its own nothing of it is left behind: also PREPARE TRANSACTION
BEGIN;
INSERT INTO cm SELECT i, 0 FROM generate_series(100000, 110000) i;
PREPARE TRANSACTION 'plain';
ROLLBACK PREPARED 'plain';
BEGIN;
SELECT changes FROM mip.writeset_info(mip.writeset());
ROLLBACK;

-- rows that come in by SQL have neither links nor places
INSERT INTO mip.mipt (xid, xinst, owner, since, aborted, links, places)
	VALUES ('ci7', 1, current_user::regrole, now(), false, '\x12', '\x34');
UPDATE mip.mipt SET places = '\x56' WHERE xid = 'ci7';
SELECT links, places FROM mip.mipt WHERE xid = 'ci7';

SET client_min_messages = warning;
DROP TABLE ci, ck, cm;
DROP ROLE mip_captured_user;
SELECT count(*) FROM (SELECT mip.forget(xid) FROM (SELECT DISTINCT xid FROM mip.mipt) x) f;
