-- Materialized views, temporary tables, tablespaces, foreign tables and the
-- contrib modules that look into tables: what each does with mip tables.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set code '\\echo SQLSTATE :SQLSTATE'
\set ECHO none
\i :sessions
\set ECHO all
CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i;
CREATE FUNCTION am(rel regclass) RETURNS name LANGUAGE sql AS $$
	SELECT amname FROM pg_am JOIN pg_class c ON c.relam = pg_am.oid WHERE c.oid = rel $$;
SELECT test.open('a', 'b', 'c', 'u');
SELECT test.run('u', 'SET lock_timeout = 50');

-- Materialized views are tables that nobody but REFRESH writes to
CREATE MATERIALIZED VIEW mv USING mip AS SELECT id, v FROM t;
CREATE UNIQUE INDEX ON mv (id);
SELECT test.begin('a', 'n1', 1), test.run('a', 'UPDATE t SET v = 1');
SELECT test.begin('b', 'n1', 2), test.run('b', 'UPDATE t SET v = 2'), test.prepare('a'), test.prepare('b');
REFRESH MATERIALIZED VIEW mv;
SELECT count(*), sum(v) FROM mv;
SELECT test.commit('c', 'n1', 2);
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SELECT am('mv'), count(*), sum(v) FROM mv;
ALTER MATERIALIZED VIEW mv SET ACCESS METHOD heap;
ALTER MATERIALIZED VIEW mv SET ACCESS METHOD mip;
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SELECT am('mv'), test.check('mv');

-- Temporary tables can be written to, but not be part of what is prepared
CREATE TEMP TABLE tmp (i int) USING mip;
BEGIN;
SELECT mip.begin('n2', 1);
INSERT INTO tmp VALUES (1);
SELECT * FROM mip.prepare(NULL, NULL);
:code
BEGIN;
SELECT mip.begin('n2', 1);
INSERT INTO tmp SELECT id FROM t;
UPDATE t SET v = (SELECT count(*) FROM tmp) WHERE id = 1;
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
SELECT count(*) FROM tmp;
-- Unlogged ones can take part once they are logged
CREATE UNLOGGED TABLE unlogged (i int) USING mip;
BEGIN;
SELECT mip.begin('n3', 1);
INSERT INTO unlogged VALUES (1);
:code
ROLLBACK;
INSERT INTO unlogged VALUES (1);
ALTER TABLE unlogged SET LOGGED;
SELECT test.begin('a', 'n3', 2), test.run('a', 'UPDATE unlogged SET i = 2'), test.prepare('a');
SELECT test.run('u', 'ALTER TABLE unlogged SET UNLOGGED'), test.commit('c', 'n3', 2);
SELECT am('unlogged'), i FROM unlogged;

-- Another tablespace, another access method and back: after those who use the table
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE mip_space LOCATION '';
SELECT test.begin('a', 'n4', 1), test.run('a', 'UPDATE t SET v = 41');
SELECT test.begin('b', 'n4', 2), test.run('b', 'UPDATE t SET v = 42, id = id + 100');
SELECT test.run('u', s) FROM unnest(ARRAY['ALTER TABLE t SET TABLESPACE mip_space', 'ALTER TABLE t SET ACCESS METHOD heap',
	'ALTER TABLE t SET LOGGED', 'SELECT mip.disable(''t'')', 'ALTER TABLE t ADD r float DEFAULT random()',
	'ALTER TABLE t ADD CONSTRAINT c CHECK (v >= 0) NOT VALID']) s;
SELECT test.prepare('a'), test.prepare('b');
SELECT test.run('u', s) FROM unnest(ARRAY['ALTER TABLE t SET TABLESPACE mip_space', 'ALTER TABLE t SET ACCESS METHOD heap',
	'ALTER TABLE t SET LOGGED', 'SELECT mip.disable(''t'')', 'ALTER TABLE t ADD r float DEFAULT random()',
	'ALTER TABLE t ADD CONSTRAINT c CHECK (v >= 0) NOT VALID']) s;
SELECT test.commit('c', 'n4', 2);
ALTER TABLE t SET TABLESPACE mip_space;
ALTER TABLE t SET ACCESS METHOD heap;
SELECT am('t'), min(id), max(v) FROM t;
ALTER TABLE t SET ACCESS METHOD mip;
ALTER TABLE t ADD r float DEFAULT random();
ALTER TABLE t ADD CONSTRAINT c CHECK (v >= 0) NOT VALID;
SELECT am('t'), min(id), max(v), count(DISTINCT r) FROM t;
-- a constraint is validated beside them, and holds for all
SELECT test.begin('a', 'n5', 1), test.run('a', 'UPDATE t SET v = v + 1');
SELECT test.begin('b', 'n5', 2), test.run('b', 'UPDATE t SET v = v + 2'), test.prepare('a'), test.prepare('b');
ALTER TABLE t VALIDATE CONSTRAINT c;
SELECT test.commit('c', 'n5', 2), test.check('t');
SELECT test.begin('a', 'n6', 1), test.run('a', 'UPDATE t SET v = v + 1');
SELECT test.begin('b', 'n6', 2), test.run('b', 'UPDATE t SET v = -1'), test.run('b', 'ROLLBACK'), test.run('a', 'ROLLBACK');
ALTER TABLE t SET TABLESPACE pg_default;

-- Partitions come and go after those who use them
CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10) USING mip;
CREATE TABLE p2 (id int PRIMARY KEY, v int) USING mip;
INSERT INTO p VALUES (1, 0);
INSERT INTO p2 VALUES (11, 0);
SELECT test.begin('a', 'n7', 1), test.run('a', 'UPDATE p SET v = 1'), test.run('a', 'UPDATE p2 SET v = 1');
SELECT test.begin('b', 'n7', 2), test.run('b', 'UPDATE p SET v = 2'), test.run('b', 'UPDATE p2 SET v = 2');
SELECT test.prepare('a'), test.prepare('b');
SELECT test.run('u', 'ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)'), test.run('u', 'ALTER TABLE p DETACH PARTITION p1');
SELECT test.run('u', 'ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY');
SELECT test.commit('c', 'n7', 2);
ALTER TABLE p DETACH PARTITION p1 FINALIZE;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20);
SELECT * FROM p UNION ALL SELECT * FROM p1 ORDER BY id;
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10);
ALTER TABLE p DETACH PARTITION p2 CONCURRENTLY;
SELECT * FROM p;

-- Modules that insist on heap refuse mip tables; disabling them for the moment helps
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgstattuple;
CREATE EXTENSION IF NOT EXISTS pgrowlocks;
CREATE EXTENSION IF NOT EXISTS pg_visibility;
CREATE EXTENSION IF NOT EXISTS pageinspect;
CREATE EXTENSION IF NOT EXISTS postgres_fdw;
RESET client_min_messages;
SELECT * FROM verify_heapam('t');
:code
SELECT * FROM pgstattuple('t');
:code
SELECT * FROM pgstattuple_approx('t');
:code
SELECT * FROM pgrowlocks('t');
:code
SELECT mip.disable('t');
SELECT count(*) FROM verify_heapam('t');
SELECT tuple_count FROM pgstattuple('t');
SELECT approx_tuple_count FROM pgstattuple_approx('t');
SELECT count(*) FROM pgrowlocks('t');
SELECT mip.enable('t');
-- others do not mind
VACUUM (FREEZE) t;
SELECT all_visible = all_frozen FROM pg_visibility_map_summary('t');
SELECT (SELECT count(*) FROM pg_check_visible('t')), (SELECT count(*) FROM pg_check_frozen('t'));
SELECT pg_truncate_visibility_map('t');
SELECT tree_level FROM pgstatindex('t_pkey');
SELECT count(*) > 0 FROM heap_page_items(get_raw_page('t', 0)) WHERE lp_flags = 1;
SELECT bt_index_parent_check('t_pkey', true);

-- Through a foreign server: as any outsider; inside an instance only reading,
-- and nothing that would have to be prepared there
DO $$ BEGIN
	EXECUTE format('CREATE SERVER mip_loop FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host %L, port %L, dbname %L)',
		split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_database());
	EXECUTE format('CREATE USER MAPPING FOR CURRENT_USER SERVER mip_loop OPTIONS (user %L)', session_user);
END $$;
CREATE FOREIGN TABLE ft (id int, v int) SERVER mip_loop OPTIONS (table_name 't');
UPDATE ft SET v = 7 WHERE id = 101;
INSERT INTO ft VALUES (200, 8);
DELETE FROM ft WHERE id = 102;
SELECT count(*), sum(v) FROM ft;
SELECT count(*), sum(v) FROM t;
BEGIN;
SELECT mip.begin('n8', 1);
SELECT sum(v) FROM ft;
SELECT * FROM mip.prepare(NULL, NULL);
:code
BEGIN;
SELECT mip.begin('n8', 1);
SELECT sum(v) FROM ft;
UPDATE t SET v = 0 WHERE id = 101;
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
BEGIN;
SELECT mip.begin('n9', 1);
UPDATE ft SET v = 9 WHERE id = 101;
:code
ROLLBACK;
-- nor may it lock rows there
BEGIN;
SELECT mip.begin('n9', 1);
SELECT v FROM ft WHERE id = 101 FOR SHARE;
SELECT v FROM ft WHERE id = 101 FOR UPDATE;
:code
ROLLBACK;
BEGIN;
DECLARE locked CURSOR FOR SELECT v FROM ft WHERE id = 101 FOR NO KEY UPDATE;
SELECT mip.begin('n9', 1);
FETCH locked;
:code
ROLLBACK;
-- What was done there before would be committed though the instance is not.
CREATE TABLE pf (id int, v int) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE pf1 PARTITION OF pf FOR VALUES FROM (0) TO (1000) SERVER mip_loop OPTIONS (table_name 't');
CREATE TABLE pl (id int, v int) USING mip;
CREATE FOREIGN TABLE pl1 () INHERITS (pl) SERVER mip_loop OPTIONS (table_name 't');
CREATE FUNCTION write_there() RETURNS int LANGUAGE sql AS 'UPDATE ft SET v = 9 WHERE id = 101 RETURNING v';
\set VERBOSITY terse
\o /dev/null
SELECT 'BEGIN', sql, 'SELECT mip.begin(''n9'', 1)', 'ROLLBACK' FROM unnest(ARRAY[
	'UPDATE ft SET v = 9 WHERE id = 101', 'UPDATE ft SET v = 9 + random() WHERE id = 101', 'INSERT INTO ft VALUES (201, 9)',
	'INSERT INTO pf VALUES (201, 9)', 'UPDATE pf SET v = 9 WHERE id = 101', 'UPDATE pl SET v = 9 WHERE id = 101',
	'DELETE FROM ft WHERE id = 101', 'WITH d AS (DELETE FROM ft WHERE id = 101 RETURNING id) SELECT count(*) FROM d',
	'COPY ft FROM PROGRAM ''echo 201,9'' CSV', 'COPY pf FROM PROGRAM ''echo 201,9'' CSV', 'TRUNCATE ft',
	'SELECT v FROM ft WHERE id = 101 FOR UPDATE', 'SELECT write_there()', 'DO ''BEGIN PERFORM write_there(); END''',
	'PREPARE s AS UPDATE ft SET v = 9; EXECUTE s; DEALLOCATE s', 'EXPLAIN ANALYZE UPDATE ft SET v = 9 WHERE id = 101']) sql
\gexec
\o
-- nor from the statement that begins
BEGIN;
SELECT mip.begin('n9', 1) FROM write_there();
ROLLBACK;
BEGIN;
INSERT INTO ft SELECT 201, 9 FROM mip.begin('n9', 1);
ROLLBACK;
\set VERBOSITY default
SELECT count(*), sum(v) FROM t;
-- nor by tuple routing to what has become a partition meanwhile
CREATE TABLE pr (id int, v int) PARTITION BY RANGE (id);
CREATE TABLE ps PARTITION OF pr FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id);
CREATE TABLE ps1 PARTITION OF ps FOR VALUES FROM (0) TO (10) USING mip;
CREATE FUNCTION attach() RETURNS int LANGUAGE sql AS $$
	SELECT length(test.run('u', 'ALTER TABLE ps ATTACH PARTITION ft FOR VALUES FROM (10) TO (1000)')) $$;
BEGIN;
SELECT mip.begin('n9', 1);
INSERT INTO pr SELECT 500, attach();
:code
ROLLBACK;
ALTER TABLE ps DETACH PARTITION ft;
ALTER TABLE pr ALTER v SET DEFAULT attach();
BEGIN;
SELECT mip.begin('n9', 1);
COPY pr (id) FROM PROGRAM 'echo 500';
:code
ROLLBACK;
ALTER TABLE ps DETACH PARTITION ft;
SELECT count(*), sum(v) FROM t;
-- but it may have been read
BEGIN;
SELECT v FROM ft WHERE id = 101;
SELECT mip.begin('n9', 1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
BEGIN;
SELECT v FROM ft WHERE id = 101;
SELECT mip.begin('n10', 1);
SELECT * FROM mip.prepare(NULL, NULL);
:code
SELECT test.close('a', 'b', 'c', 'u');
\set VERBOSITY terse
DROP SERVER mip_loop CASCADE;
DROP MATERIALIZED VIEW mv;
DROP TABLE t, p, p2, unlogged, pf, pl, pr;
DROP TABLESPACE mip_space;
DROP FUNCTION am, write_there, attach;
DROP EXTENSION pgstattuple, pgrowlocks, pg_visibility, pageinspect, postgres_fdw;
