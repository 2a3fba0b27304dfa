-- mip.enable and mip.disable: a table changes its access method in place.
\set code '\\echo SQLSTATE :SQLSTATE'
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\set ECHO all
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE INDEX ON t (left(v, 10));
INSERT INTO t SELECT i, repeat('x', 3000) || i FROM generate_series(1, 100) i;
ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
INSERT INTO t VALUES (101, repeat('y', 9000));
CREATE FUNCTION am(rel regclass) RETURNS name LANGUAGE sql AS $$
	SELECT amname FROM pg_am JOIN pg_class c ON c.relam = pg_am.oid WHERE c.oid = rel $$;
CREATE FUNCTION depends(rel regclass) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = rel
		AND refclassid = 'pg_am'::regclass AND refobjid = (SELECT oid FROM pg_am WHERE amname = 'mip') $$;
SELECT am('t'), depends('t'), pg_relation_filenode('t') AS file, md5(string_agg(v, ',' ORDER BY id)) AS content FROM t \gset before_
SELECT mip.enable('t');
SELECT am('t'), depends('t'), pg_relation_filenode('t') = :before_file AS same_file,
	md5(string_agg(v, ',' ORDER BY id)) = :'before_content' AS same_content FROM t;
-- again: nothing to do
SELECT mip.enable('t');
SELECT am('t'), depends('t');
SELECT bt_index_check('t_pkey', true), bt_index_check('t_left_idx', true);
SET enable_seqscan = off;
SELECT left(v, 2), length(v) FROM t WHERE id = 101;
RESET enable_seqscan;
INSERT INTO t VALUES (102, 'mip');
UPDATE t SET v = 'changed' WHERE id = 1;
DELETE FROM t WHERE id = 2;
\d t
BEGIN;
SELECT mip.begin('enable', 1);
UPDATE t SET v = 'by an instance' WHERE id = 3;
SELECT xinst, state FROM mip.prepare(NULL, NULL);
-- it waits for all users of the table, prepared instances included
SET lock_timeout = '100ms';
SELECT mip.disable('t');
:code
RESET lock_timeout;
SELECT state FROM mip.commit('enable', 1);
SELECT mip.disable('t');
SELECT am('t'), depends('t');
SELECT mip.disable('t');
SELECT bt_index_check('t_pkey', true), bt_index_check('t_left_idx', true);
SELECT count(*) FROM verify_heapam('t');
SELECT count(*), min(v) FROM t WHERE id IN (1, 3, 102);
-- in a transaction that is rolled back
BEGIN;
SELECT mip.enable('t');
SELECT am('t');
ROLLBACK;
SELECT am('t'), depends('t');
-- with an open cursor
BEGIN;
DECLARE cur CURSOR FOR SELECT id FROM t ORDER BY id;
FETCH cur;
SELECT mip.enable('t');
:code
ROLLBACK;

-- Plans made before know what the table has become
CREATE TABLE planned (id int PRIMARY KEY, v int);
INSERT INTO planned VALUES (1, 0);
SET plan_cache_mode = force_generic_plan;
PREPARE change AS UPDATE planned SET v = v + 1;
EXECUTE change;
SELECT mip.enable('planned');
BEGIN;
SELECT mip.begin('planned', 1);
EXECUTE change;
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT test.open('o'), test.begin('o', 'planned', 2), test.run('o', 'UPDATE planned SET v = v + 2'), test.prepare('o');
SELECT test.commit('o', 'planned', 2), test.close('o');
SELECT mip.disable('planned');
EXECUTE change;
BEGIN;
SELECT mip.begin('planned 2', 1);
EXECUTE change;
:code
ROLLBACK;
SELECT * FROM planned;
DEALLOCATE change;
RESET plan_cache_mode;
DROP TABLE planned;

-- Partitioned tables: with all partitions, nested ones too
CREATE TABLE p (id int, v int) PARTITION BY LIST (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2, 3) PARTITION BY LIST (id);
CREATE TABLE p22 PARTITION OF p2 FOR VALUES IN (2);
SELECT mip.enable('p');
SELECT am('p1'), am('p22'), depends('p1'), depends('p22');
CREATE TABLE p23 PARTITION OF p2 FOR VALUES IN (3);
SELECT am('p23');
SELECT mip.enable('p');
SELECT am('p23');
SELECT mip.disable('p2');
SELECT am('p1'), am('p22'), am('p23');
SELECT mip.disable('p');
SELECT am('p1');

-- Event triggers are told, as of ALTER TABLE
CREATE TABLE told (command text, tag text, identity text) USING heap;
CREATE FUNCTION tell() RETURNS event_trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF TG_EVENT = 'ddl_command_end' THEN
			INSERT INTO told SELECT TG_EVENT, command_tag, object_identity FROM pg_event_trigger_ddl_commands();
		ELSE
			INSERT INTO told VALUES (TG_EVENT, TG_TAG);
		END IF;
	END $$;
CREATE EVENT TRIGGER tell_start ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION tell();
CREATE EVENT TRIGGER tell_end ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION tell();
CREATE EVENT TRIGGER tell_rewrite ON table_rewrite EXECUTE FUNCTION tell();
SELECT mip.enable('p');
SELECT command, tag, identity FROM told ORDER BY command DESC, identity COLLATE "C";
TRUNCATE told;
SELECT mip.disable('p1');
SELECT command, tag, identity FROM told ORDER BY command DESC, identity COLLATE "C";
CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql AS $$
	BEGIN RAISE 'no % today', TG_TAG; END $$;
CREATE EVENT TRIGGER forbid ON ddl_command_end EXECUTE FUNCTION forbid();
SELECT mip.disable('p');
SELECT am('p1'), am('p22');
DROP EVENT TRIGGER forbid;
DROP EVENT TRIGGER tell_start;
DROP EVENT TRIGGER tell_end;
DROP EVENT TRIGGER tell_rewrite;
DROP FUNCTION tell, forbid;
DROP TABLE told;
SELECT mip.disable('p');

-- What is no table of the caller's
CREATE VIEW v AS SELECT 1;
CREATE MATERIALIZED VIEW mv AS SELECT 1;
CREATE SEQUENCE s;
SELECT mip.enable('v');
:code
SELECT mip.enable('mv');
:code
SELECT mip.enable('s');
:code
SELECT mip.enable('t_pkey');
:code
SELECT mip.enable('pg_class');
:code
SELECT mip.disable('pg_class');
:code
SELECT mip.enable('mip.mipt');
:code
SELECT mip.enable('nowhere');
:code
SELECT mip.enable(NULL);
SELECT mip.enable(1);
:code
BEGIN READ ONLY;
SELECT mip.enable('t');
:code
ROLLBACK;
SELECT test.open('o'), test.run('o', 'CREATE TEMP TABLE far (i int)');
SELECT mip.enable(oid) FROM pg_class WHERE relname = 'far';
:code
SELECT test.run('o', 'SELECT mip.enable(''far'')'), test.close('o');
CREATE ROLE mip_enable_user;
SET ROLE mip_enable_user;
SELECT mip.enable('t');
:code
SELECT mip.disable('t');
:code
RESET ROLE;
ALTER TABLE t OWNER TO mip_enable_user;
SET ROLE mip_enable_user;
SELECT mip.enable('t');
RESET ROLE;
SELECT am('t');

-- The access method cannot be dropped under its tables
DROP ACCESS METHOD mip;
:code
CREATE TABLE created (i int) USING mip;
SELECT am('created'), depends('created');
SET default_table_access_method = mip;
CREATE TABLE by_default (i int);
CREATE TABLE by_ctas AS SELECT 1 AS i;
CREATE TEMP TABLE temporary (i int);
RESET default_table_access_method;
SELECT am('by_default'), am('by_ctas'), am('temporary');
ALTER TABLE created SET ACCESS METHOD heap;
SELECT am('created'), depends('created');
ALTER TABLE created SET ACCESS METHOD mip;
SELECT am('created'), depends('created');

-- Inheritance children: with their parent, if they are the caller's
CREATE TABLE parent (i int);
CREATE TABLE heir (j int) INHERITS (parent);
SELECT mip.enable('parent');
SELECT am('parent'), am('heir'), depends('heir');
ALTER TABLE parent OWNER TO mip_enable_user;
SET ROLE mip_enable_user;
SELECT mip.disable('parent');
:code
RESET ROLE;
DROP TABLE parent CASCADE;

-- Called again by the same statement
CREATE TABLE twice (i int);
SELECT mip.enable('twice'), mip.disable('twice');
SELECT am('twice'), depends('twice');
CREATE TABLE above (i int);
CREATE TABLE below () INHERITS (above);
SELECT mip.enable('above'), mip.enable('below');
SELECT mip.disable('below'), mip.enable('above');
SELECT am('above'), am('below'), depends('below');
DROP TABLE twice, above, below;

-- Unlogged and temporary tables
CREATE UNLOGGED TABLE unlogged (i int);
SELECT mip.enable('unlogged');
SELECT mip.enable('temporary');
DROP TABLE t, p, created, by_default, by_ctas, temporary, unlogged;
DROP VIEW v;
DROP MATERIALIZED VIEW mv;
DROP SEQUENCE s;
DROP FUNCTION am, depends;
DROP ROLE mip_enable_user;
