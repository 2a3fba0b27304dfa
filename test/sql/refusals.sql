-- What a MIP transaction may not do.
\set code '\\echo SQLSTATE :SQLSTATE'
CREATE TABLE ours (id int PRIMARY KEY, v int) USING mip;
CREATE TABLE theirs (id int PRIMARY KEY, v int) USING heap;
CREATE TABLE part (id int, v int) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (1) TO (10) USING mip;
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (10) TO (20) USING heap;
CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES theirs) USING mip;
CREATE VIEW v AS SELECT * FROM theirs;
CREATE TABLE log (i int) USING heap;
CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (1); RETURN NEW; END $$;
CREATE TABLE logged (i int) USING mip;
CREATE TRIGGER log BEFORE INSERT ON logged FOR EACH ROW EXECUTE FUNCTION log();
CREATE MATERIALIZED VIEW mv AS SELECT 1 AS i;
INSERT INTO ours VALUES (1, 0);
INSERT INTO theirs VALUES (1, 0);

-- Each statement in a MIP transaction of its own, once with the text of the
-- error, once with its SQLSTATE.
CREATE TABLE stmt (id serial, sql text);
INSERT INTO stmt (sql) VALUES
	('INSERT INTO theirs VALUES (2, 0)'),
	('UPDATE theirs SET v = 1'),
	('DELETE FROM theirs'),
	('MERGE INTO theirs USING ours ON theirs.id = ours.id WHEN MATCHED THEN DELETE'),
	('WITH d AS (DELETE FROM theirs RETURNING *) SELECT * FROM d'),
	('UPDATE ours SET v = 1 FROM theirs WHERE ours.id = theirs.id AND theirs.v = 0 AND EXISTS (SELECT FROM theirs FOR UPDATE)'),
	('SELECT * FROM theirs FOR UPDATE'),
	('SELECT * FROM theirs FOR NO KEY UPDATE'),
	('SELECT * FROM ours JOIN theirs USING (id) FOR UPDATE OF theirs'),
	('UPDATE v SET v = 1'),
	('SELECT * FROM v FOR UPDATE'),
	('INSERT INTO part VALUES (1, 1)'),
	('UPDATE part SET v = 1 WHERE id = 1'),
	('DELETE FROM part2'),
	('INSERT INTO logged VALUES (1)'),
	('DO ''BEGIN INSERT INTO theirs VALUES (3, 0); END'''),
	('COPY theirs FROM PROGRAM ''true'''),
	('COPY part FROM PROGRAM ''true'''),
	('PREPARE s AS DELETE FROM theirs; EXECUTE s'),
	('EXPLAIN ANALYZE DELETE FROM theirs'),
	('CREATE TABLE x (i int)'),
	('CREATE TEMP TABLE x (i int)'),
	('CREATE TABLE x AS SELECT 1'),
	('SELECT 1 AS i INTO x'),
	('DROP TABLE ours'),
	('ALTER TABLE ours ADD c int'),
	('ALTER TABLE ours SET (fillfactor = 50)'),
	('CREATE INDEX ON ours (v)'),
	('CREATE VIEW x AS SELECT 1'),
	('CREATE FUNCTION x() RETURNS int LANGUAGE sql AS ''SELECT 1'''),
	('CREATE ROLE x'),
	('GRANT SELECT ON ours TO PUBLIC'),
	('COMMENT ON TABLE ours IS ''x'''),
	('TRUNCATE ours'),
	('TRUNCATE theirs'),
	('LOCK TABLE ours IN ACCESS SHARE MODE'),
	('LOCK TABLE theirs'),
	('REFRESH MATERIALIZED VIEW mv'),
	('REINDEX TABLE ours'),
	('CLUSTER ours USING ours_pkey'),
	('ANALYZE ours'),
	('VACUUM ours'),
	('NOTIFY x'),
	('DISCARD ALL'),
	('DISCARD PLANS'),
	('LISTEN x'),
	('DO ''BEGIN CREATE TABLE x (i int); END'''),
	('DO ''BEGIN TRUNCATE ours; END'''),
	('SELECT mip.enable(''theirs'')'),
	('SELECT mip.disable(''ours'')');
\set VERBOSITY terse
\o /dev/null
SELECT 'BEGIN', 'SELECT mip.begin(''refused'', 1)', sql, 'ROLLBACK' FROM stmt ORDER BY id
\gexec
-- nor in the statement that begins
BEGIN;
INSERT INTO theirs SELECT 5, 0 FROM mip.begin('refused', 1);
ROLLBACK;
BEGIN;
WITH d AS (DELETE FROM theirs RETURNING id) SELECT mip.begin('refused', 1) FROM d;
ROLLBACK;
BEGIN;
PREPARE begins AS INSERT INTO theirs SELECT 5, 0 FROM mip.begin('refused', 1);
EXECUTE begins;
ROLLBACK;
-- nor before it in the same transaction
SELECT 'BEGIN', sql, 'SELECT mip.begin(''refused'', 1)', 'ROLLBACK' FROM unnest(ARRAY[
	'LISTEN x', 'NOTIFY x', 'UNLISTEN x', 'LOCK TABLE theirs', 'LOCK TABLE ours IN SHARE UPDATE EXCLUSIVE MODE', 'ANALYZE ours',
	'DISCARD PLANS', 'DO ''BEGIN NOTIFY x; END''', 'TRUNCATE log', 'CREATE TEMP TABLE x (i int)', 'DELETE FROM theirs WHERE false',
	'EXPLAIN ANALYZE DELETE FROM theirs WHERE false', 'EXPLAIN CREATE TABLE x AS SELECT 1']) sql
\gexec
\o
\set VERBOSITY sqlstate
\o /dev/null
SELECT 'BEGIN', 'SELECT mip.begin(''refused'', 1)', sql, 'ROLLBACK' FROM stmt ORDER BY id
\gexec
\o
\set VERBOSITY default
BEGIN;
SELECT mip.begin('refused', 1);
UPDATE theirs SET v = 1;
:code
ROLLBACK;
SELECT * FROM ours, theirs;
SELECT count(*) FROM pg_prepared_xacts;

-- Reading them, and what locks no row against siblings, is fine.
BEGIN;
SELECT mip.begin('allowed', 1);
SELECT * FROM theirs;
SELECT * FROM v;
SELECT * FROM theirs FOR SHARE;
SELECT * FROM theirs FOR KEY SHARE;
INSERT INTO child VALUES (1, 1);
INSERT INTO part1 VALUES (1, 1);
EXPLAIN (COSTS OFF) DELETE FROM ours;
SET LOCAL work_mem = '1MB';
SHOW work_mem;
DECLARE cur CURSOR FOR SELECT * FROM ours;
FETCH cur;
CLOSE cur;
COPY ours TO STDOUT;
SET CONSTRAINTS ALL IMMEDIATE;
DO $$ BEGIN UPDATE ours SET v = 1; END $$;
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT xinst, state FROM mip.commit('allowed', 1);
SELECT count(*) FROM mip.in_doubt;

-- What PREPARE TRANSACTION refuses, mip.prepare does
BEGIN;
DECLARE cur CURSOR WITH HOLD FOR SELECT * FROM ours;
SELECT mip.begin('hold', 1);
SELECT * FROM mip.prepare(NULL, NULL);
:code
BEGIN;
SELECT mip.begin('hold', 1);
SELECT pg_notify('x', 'y');
SELECT * FROM mip.prepare(NULL, NULL);
:code
BEGIN;
SELECT mip.begin('hold', 1);
SELECT pg_export_snapshot() IS NULL;
SELECT * FROM mip.prepare(NULL, NULL);
:code
-- before the family lock is taken, which is the next step
SET mip.debug_stop_at = 'error:turn';
CREATE TEMP TABLE temporary (i int);
BEGIN;
SELECT mip.begin('hold', 1);
INSERT INTO temporary VALUES (1);
SELECT * FROM mip.prepare(NULL, NULL);
:code
BEGIN;
SELECT mip.begin('hold', 1);
SELECT pg_export_snapshot() IS NULL;
SELECT * FROM mip.prepare(NULL, NULL);
:code
BEGIN;
SELECT mip.begin('hold', 1);
SELECT pg_notify('x', 'y');
SELECT * FROM mip.prepare(NULL, NULL);
:code
RESET mip.debug_stop_at;
DROP TABLE temporary;
SELECT * FROM mip.instances('hold');
BEGIN;
SELECT mip.begin('hold', 1);
SELECT pg_notify('x', 'y');
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);

-- Functions written in C may lock objects unseen, and keep the lock: refused at the
-- end of the statement, whatever it is (tables: t/044_kept_locks)
SELECT pg_replication_origin_create('refused') > 0;
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF pg_replication_origin_drop('refused') IS NULL THEN NULL; END IF;
		RETURN NULL;
	END $$;
CREATE TABLE keeper (i int) USING mip;
CREATE TRIGGER keep AFTER INSERT ON keeper FOR EACH ROW EXECUTE FUNCTION keep();
\set VERBOSITY sqlstate
\o /dev/null
SELECT 'BEGIN', 'SELECT mip.begin(''keeps'', 1)', sql, 'ROLLBACK' FROM unnest(ARRAY[
	'SELECT pg_replication_origin_drop(''refused'')',
	'EXPLAIN ANALYZE SELECT pg_replication_origin_drop(''refused'')',
	'PREPARE keep AS SELECT pg_replication_origin_drop(''refused''); EXECUTE keep',
	'DECLARE cur CURSOR FOR SELECT pg_replication_origin_drop(''refused''); FETCH cur',
	'DO ''BEGIN IF pg_replication_origin_drop(''''refused'''') IS NULL THEN NULL; END IF; END''',
	'INSERT INTO keeper VALUES (1)']) sql
\gexec
\o
-- in a deferred trigger, outside of any statement
DROP TRIGGER keep ON keeper;
CREATE CONSTRAINT TRIGGER keep AFTER INSERT ON keeper DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION keep();
BEGIN;
SELECT mip.begin('keeps', 2);
INSERT INTO keeper VALUES (1);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
BEGIN;
SELECT mip.begin('keeps', 3);
INSERT INTO keeper VALUES (1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
\set VERBOSITY default
-- large objects are the handler's own business
SELECT lo_create(4711);
BEGIN;
SELECT mip.begin('keeps', 4);
SELECT lo_unlink(4711);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT state FROM mip.commit('keeps', 4);
SELECT pg_replication_origin_drop('refused');
DROP TABLE keeper;
DROP FUNCTION keep;

DROP TABLE ours, child, theirs, part, log, logged, stmt CASCADE;
DROP FUNCTION log();
DROP MATERIALIZED VIEW mv;
