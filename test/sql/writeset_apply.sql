-- Applying writesets. Each is taken from a transaction that is rolled back, so it can be
-- applied to the same tables, or, renamed, to others.
\pset format unaligned
\pset tuples_only on
\set code '\\echo SQLSTATE :SQLSTATE'
\set capture 'BEGIN; SET LOCAL mip.capture_writeset = on;'
\set take 'SELECT mip.writeset() AS w \\gset'
\set apply 'SELECT mip.writeset_apply(:\'w\');'
CREATE SCHEMA ws;
SET search_path = ws, public;

-- Insertions, updates, deletions; a row that is changed twice; out-of-line values stay.
CREATE TABLE t (id int PRIMARY KEY, v text, big text) USING mip;
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, 'v' || i, repeat(chr(64 + i), 5000) FROM generate_series(1, 5) i;
:capture
INSERT INTO t VALUES (6, 'six'), (7, NULL);
UPDATE t SET v = v || '!' WHERE id IN (1, 6);
UPDATE t SET id = 10, big = 'short' WHERE id = 2;
UPDATE t SET id = 11 WHERE id = 10;
DELETE FROM t WHERE id IN (3, 7);
INSERT INTO t VALUES (3, 'three again');
:take
ROLLBACK;
:apply
SELECT id, v, left(big, 5), length(big) FROM t ORDER BY id;

-- All or nothing: the row is not there, or one has the key already.
:capture
INSERT INTO t VALUES (20), (21);
DELETE FROM t WHERE id = 1;
:take
ROLLBACK;
DELETE FROM t WHERE id = 1;
:apply
:code
INSERT INTO t VALUES (1), (21);
:apply
:code
SELECT id FROM t WHERE id >= 20;

-- Keys are swapped; DEFERRABLE constraints are checked, in the end. [trap 5]
CREATE TABLE swap (id int PRIMARY KEY, u int, CONSTRAINT swap_u UNIQUE (u) DEFERRABLE) USING mip;
INSERT INTO swap VALUES (1, 10), (2, 20), (3, 30);
:capture
UPDATE swap SET u = 30 - u WHERE id < 3;
:take
ROLLBACK;
:apply
TABLE swap ORDER BY id;
:capture
UPDATE swap SET u = 40 WHERE id = 1;
:take
ROLLBACK;
UPDATE swap SET u = 40 WHERE id = 3;
:apply
:code
ALTER TABLE swap DROP CONSTRAINT swap_u, ADD CONSTRAINT swap_u UNIQUE (u) DEFERRABLE INITIALLY DEFERRED;
BEGIN;
:apply
:code
ROLLBACK;
TABLE swap ORDER BY id;

-- So they are where the constraint is not DEFERRABLE.
:capture
UPDATE swap SET u = 30 - u WHERE id < 3;
:take
ROLLBACK;
ALTER TABLE swap DROP CONSTRAINT swap_u, ADD CONSTRAINT swap_u UNIQUE (u);
:apply
TABLE swap ORDER BY id;

-- A row that is only here must not be taken for one of the writeset's that has come to have its key.
CREATE TABLE extra (id int PRIMARY KEY, v text) USING mip;
INSERT INTO extra VALUES (1, 'one');
:capture
INSERT INTO extra VALUES (5, 'new');
UPDATE extra SET id = 6 WHERE id = 5;
:take
ROLLBACK;
INSERT INTO extra VALUES (5, 'here');
:apply
:code
:capture
UPDATE extra SET id = 2 WHERE id = 1;
DELETE FROM extra WHERE id = 2;
:take
ROLLBACK;
INSERT INTO extra VALUES (2, 'here');
:apply
:code
:capture
UPDATE extra SET id = 9 WHERE id = 1;
UPDATE extra SET id = 1 WHERE id = 2;
UPDATE extra SET id = 2 WHERE id = 9;
:take
ROLLBACK;
SELECT mip.writeset_compact(:'w') AS compacted \gset
BEGIN;
SELECT mip.writeset_apply(:'compacted');
TABLE extra ORDER BY id;
ROLLBACK;
:apply
TABLE extra ORDER BY id;

-- Exclusion constraints, too.
CREATE TABLE excluded (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&) DEFERRABLE) USING mip;
INSERT INTO excluded VALUES (1, '[1,5)'), (2, '[5,9)');
:capture
UPDATE excluded SET r = CASE id WHEN 1 THEN int4range '[5,9)' ELSE '[1,5)' END;
:take
ROLLBACK;
:apply
TABLE excluded ORDER BY id;
:capture
UPDATE excluded SET r = '[20,30)' WHERE id = 1;
:take
ROLLBACK;
INSERT INTO excluded VALUES (3, '[29,40)');
:apply
:code

-- Columns go by name: others have been dropped here, and their order is another. [trap 7]
CREATE TABLE cols (a int, gone int, id int PRIMARY KEY, b text) USING mip;
ALTER TABLE cols DROP gone;
:capture
INSERT INTO cols VALUES (1, 2, 'three');
UPDATE cols SET a = 7;
:take
ROLLBACK;
DROP TABLE cols;
CREATE TABLE cols (gone int, b text, id int PRIMARY KEY, gone2 int, a int);
ALTER TABLE cols DROP gone, DROP gone2;
:apply
SELECT id, a, b FROM cols;

-- No key: the whole row, the same and not only equal; of equal ones any one. [trap 11]
CREATE TABLE keyless (a numeric, j json, f float8) USING mip;
INSERT INTO keyless VALUES (1.0, '{"a":1}', 'NaN'), (1.0, '{"a":1}', 'NaN'), (1.00, '{"a":1}', 'NaN'), (1.0, '{"a": 1}', '-0');
:capture
DELETE FROM keyless WHERE a::text = '1.00';
DELETE FROM keyless WHERE ctid = '(0,1)';
UPDATE keyless SET f = 0, a = NULL WHERE f = 0;
:take
ROLLBACK;
:apply
TABLE keyless ORDER BY a::text;
:apply
:code

-- A DEFERRABLE primary key is none: it may be there twice for a while.
CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, v text) USING mip;
INSERT INTO late SELECT i, 'v' || i FROM generate_series(1, 6) i;
:capture
UPDATE late SET id = 7 - id;
:take
ROLLBACK;
:apply
TABLE late ORDER BY id;

-- REPLICA IDENTITY goes before the primary key.
CREATE TABLE ident (id int PRIMARY KEY, k text NOT NULL UNIQUE, v int) USING mip;
ALTER TABLE ident REPLICA IDENTITY USING INDEX ident_k_key;
INSERT INTO ident VALUES (1, 'one', 1);
:capture
UPDATE ident SET v = 2;
:take
ROLLBACK;
UPDATE ident SET id = 5;
:apply
TABLE ident;
ALTER TABLE ident DROP CONSTRAINT ident_k_key;
:apply
:code

-- ALWAYS identity and generated columns. [trap 13]
CREATE TABLE gen (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, c int) USING mip;
INSERT INTO gen (a, c) VALUES (1, 1), (2, 2);
:capture
INSERT INTO gen (a, c) VALUES (3, 3);
UPDATE gen SET c = 0 WHERE id = 1;
UPDATE gen SET a = 20 WHERE id = 2;
:take
ROLLBACK;
:apply
TABLE gen ORDER BY id;

-- Partitions, by their own names; inheritance.
CREATE TABLE part (k int, v text) PARTITION BY RANGE (k);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10) USING mip;
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (10) TO (20) USING mip;
INSERT INTO part VALUES (1, 'one'), (11, 'eleven');
CREATE TABLE parent (a int PRIMARY KEY) USING mip;
CREATE TABLE child (b int) INHERITS (parent) USING mip;
INSERT INTO child VALUES (1, 1);
:capture
UPDATE part SET k = k + 10 WHERE k < 10;
INSERT INTO part VALUES (2, 'two');
UPDATE parent SET a = 2;
INSERT INTO parent VALUES (3);
:take
ROLLBACK;
SELECT relation, op FROM mip.writeset_changes(:'w');
:apply
SELECT tableoid::regclass, * FROM part ORDER BY k;
SELECT tableoid::regclass, * FROM parent ORDER BY a;

-- TRUNCATE, of tables that refer to each other; a row of before and one of after it.
CREATE TABLE a (id int PRIMARY KEY) USING mip;
CREATE TABLE b (id int PRIMARY KEY REFERENCES a) USING mip;
INSERT INTO a VALUES (1); INSERT INTO b VALUES (1);
:capture
INSERT INTO b SELECT id FROM a WHERE id > 1;
TRUNCATE a, b;
INSERT INTO a VALUES (9);
:take
ROLLBACK;
:apply
TABLE a; TABLE b;
BEGIN;
SELECT mip.begin('ws-truncate', 1);
:apply
:code
ROLLBACK;

-- One of them once more: what it refers to is not truncated without it, be it taken as a
-- whole, in parts, or compacted.
:capture
TRUNCATE a, b;
INSERT INTO a VALUES (8); INSERT INTO b VALUES (8);
SELECT mip.writeset(0, 1) AS w1 \gset
SELECT mip.writeset() AS w2 \gset
TRUNCATE b;
:take
SELECT mip.writeset(2) AS w3 \gset
SELECT mip.writeset((mip.writeset_info(:'w2')).last) AS w4 \gset
ROLLBACK;
SELECT array_agg(op::text || ' ' || relation) FROM mip.writeset_changes(:'w1');
SELECT array_agg(op::text || ' ' || relation) FROM mip.writeset_changes(:'w');
SELECT array_agg(op::text || ' ' || relation) FROM mip.writeset_changes(mip.writeset_compact(:'w1', :'w3'));
SELECT array_agg(op::text || ' ' || relation) FROM mip.writeset_changes(mip.writeset_compact(:'w2', :'w4'));
:apply
TABLE a; TABLE b;
DELETE FROM a; INSERT INTO a VALUES (9);
:capture
TRUNCATE a, b;
TRUNCATE b, a;
INSERT INTO a VALUES (9);
TRUNCATE b; TRUNCATE b;
:take
SELECT mip.writeset_compact(:'w', :'w') AS w2 \gset
ROLLBACK;
SELECT array_agg(op::text || ' ' || relation) FROM mip.writeset_changes(:'w');
SELECT array_agg(op::text || ' ' || relation) FROM mip.writeset_changes(:'w2');

-- Partitioned tables that refer to each other, or to themselves: if all partitions are truncated, and he may.
CREATE TABLE pa (id int PRIMARY KEY, above int REFERENCES pa) PARTITION BY RANGE (id);
CREATE TABLE pa1 PARTITION OF pa FOR VALUES FROM (0) TO (10) USING mip;
CREATE TABLE pa2 PARTITION OF pa FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
CREATE TABLE pa21 PARTITION OF pa2 FOR VALUES FROM (10) TO (15) USING mip;
CREATE TABLE pb (id int PRIMARY KEY REFERENCES pa) PARTITION BY RANGE (id);
CREATE TABLE pb1 PARTITION OF pb FOR VALUES FROM (0) TO (20) USING mip;
INSERT INTO pa VALUES (1, 1), (11, 1); INSERT INTO pb VALUES (1);
:capture
TRUNCATE pa, pb;
:take
ROLLBACK;
CREATE ROLE ws_emptier;
GRANT USAGE ON SCHEMA ws TO ws_emptier;
ALTER TABLE pa1 OWNER TO ws_emptier; ALTER TABLE pa21 OWNER TO ws_emptier; ALTER TABLE pb1 OWNER TO ws_emptier;
SET ROLE ws_emptier;
:apply
:code
-- What its owner has fire by TRUNCATE is left out by nobody else.
RESET ROLE;
GRANT TRUNCATE ON pa, pa2, pb TO ws_emptier;
CREATE TRIGGER emptied BEFORE TRUNCATE ON pb EXECUTE FUNCTION suppress_redundant_updates_trigger();
SET ROLE ws_emptier;
:apply
:code
RESET ROLE;
DROP TRIGGER emptied ON pb;
SET ROLE ws_emptier;
BEGIN;
:apply
SELECT count(*) FROM ONLY pa1;
ROLLBACK;
RESET ROLE;
BEGIN;
:apply
SELECT count(*) FROM pa; SELECT count(*) FROM pb;
ROLLBACK;
CREATE TABLE pb2 PARTITION OF pb FOR VALUES FROM (20) TO (30);
:apply
:code
DROP TABLE pa, pb;
DROP OWNED BY ws_emptier;
DROP ROLE ws_emptier;

-- Foreign keys are not checked.
:capture
INSERT INTO a VALUES (1);
INSERT INTO b VALUES (1);
:take
ROLLBACK;
DO $$
DECLARE name text;
BEGIN
	FOR name IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'b'::regclass LOOP
		EXECUTE format('ALTER TABLE b ENABLE ALWAYS TRIGGER %I', name);
	END LOOP;
END $$;
ALTER TABLE a RENAME TO a_renamed;
CREATE TABLE a (id int PRIMARY KEY);
:apply
TABLE b;

-- Triggers: those of replicas, and those that always fire; in the session's own settings.
CREATE TABLE trig (id int PRIMARY KEY, d date, v int, r int4range) USING mip;
CREATE TABLE fired (n int GENERATED ALWAYS AS IDENTITY, t text);
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO fired (t) VALUES (concat_ws(' ', TG_NAME, TG_WHEN, TG_OP, OLD.v, NEW.v, COALESCE(NEW.d, OLD.d)));
	IF TG_WHEN = 'BEFORE' AND TG_OP <> 'DELETE' THEN NEW.v := NEW.v + 100; END IF;
	RETURN COALESCE(NEW, OLD);
END $$;
:capture
INSERT INTO trig VALUES (1, '2026-02-01', 1), (2, '2026-02-02', 2);
UPDATE trig SET v = v * 2;
UPDATE trig SET id = 3 WHERE id = 2;
DELETE FROM trig WHERE id = 1;
:take
ROLLBACK;
CREATE TRIGGER plain BEFORE INSERT OR UPDATE OR DELETE ON trig FOR EACH ROW EXECUTE FUNCTION fire();
CREATE TRIGGER off BEFORE INSERT ON trig FOR EACH ROW EXECUTE FUNCTION fire();
ALTER TABLE trig DISABLE TRIGGER off;
CREATE TRIGGER always BEFORE INSERT OR UPDATE OF v OR DELETE ON trig FOR EACH ROW EXECUTE FUNCTION fire();
ALTER TABLE trig ENABLE ALWAYS TRIGGER always;
CREATE TRIGGER replica AFTER INSERT OR UPDATE OR DELETE ON trig FOR EACH ROW EXECUTE FUNCTION fire();
ALTER TABLE trig ENABLE REPLICA TRIGGER replica;
CREATE TRIGGER statement AFTER INSERT ON trig EXECUTE FUNCTION fire();
ALTER TABLE trig ENABLE ALWAYS TRIGGER statement;
SET DateStyle = 'German';
:apply
SELECT t FROM fired ORDER BY n;
RESET DateStyle;
TABLE trig;

-- What a trigger's function keeps from one row to the next is there for it: here who it runs as, and its settings.
CREATE TABLE settles (id int PRIMARY KEY, v text) USING mip;
:capture
INSERT INTO settles SELECT i, repeat('x', 200) FROM generate_series(1, 10) i;
UPDATE settles SET v = repeat('y', 300);
DELETE FROM settles WHERE id > 3;
:take
ROLLBACK;
CREATE FUNCTION settle() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = ws AS 'BEGIN RETURN COALESCE(NEW, OLD); END';
CREATE TRIGGER settle BEFORE INSERT OR UPDATE OR DELETE ON settles FOR EACH ROW EXECUTE FUNCTION settle();
CREATE TRIGGER settled AFTER INSERT OR UPDATE OR DELETE ON settles FOR EACH ROW EXECUTE FUNCTION settle();
ALTER TABLE settles ENABLE ALWAYS TRIGGER settle, ENABLE ALWAYS TRIGGER settled;
:apply
SELECT count(*), min(v) = repeat('y', 300) AS updated FROM settles;

-- Not those with transition tables, which are of statements; of changes for which they do not fire no matter.
CREATE TABLE transition (id int PRIMARY KEY, v text) USING mip;
INSERT INTO transition VALUES (1, 'a');
:capture
INSERT INTO transition VALUES (2, 'b');
SELECT mip.writeset() AS inserted \gset
UPDATE transition SET v = 'c';
:take
ROLLBACK;
CREATE FUNCTION transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO ws.fired (t) SELECT concat_ws(' ', TG_NAME, o.v, n.v) FROM o FULL JOIN n USING (id);
	RETURN NULL;
END $$;
CREATE TRIGGER whole AFTER UPDATE ON transition REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH ROW EXECUTE FUNCTION transition();
ALTER TABLE transition ENABLE ALWAYS TRIGGER whole;
:apply
:code
TABLE transition;
SELECT mip.writeset_apply(:'inserted');
TABLE transition ORDER BY id;
DELETE FROM transition WHERE id = 2;
ALTER TABLE transition ENABLE TRIGGER whole;
:apply
TABLE transition ORDER BY id;

-- A check that looks into other tables sees what came before, whatever its function calls itself.
CREATE TABLE looked_at (id int PRIMARY KEY) USING mip;
CREATE FUNCTION has(i int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RETURN i IS NULL OR EXISTS (SELECT FROM ws.looked_at WHERE id = i); END';
CREATE FUNCTION has_not(i int) RETURNS bool LANGUAGE plpgsql STABLE AS 'BEGIN RETURN NOT EXISTS (SELECT FROM ws.looked_at WHERE id = i); END';
CREATE DOMAIN known AS int CHECK (has(VALUE));
CREATE TABLE looks (id int PRIMARY KEY, there int CHECK (has(there)), absent int CHECK (has_not(absent))) USING mip;
CREATE TABLE looks_by_domain (id int PRIMARY KEY, there known) USING mip;
:capture
INSERT INTO looks VALUES (1, NULL, 7);
INSERT INTO looked_at VALUES (7);
INSERT INTO looks_by_domain VALUES (1, NULL);
INSERT INTO looks VALUES (2, 7, 8);
INSERT INTO looked_at VALUES (8);
INSERT INTO looks_by_domain VALUES (2, 8);
INSERT INTO looks VALUES (3, 8, 9);
INSERT INTO looked_at VALUES (9);
UPDATE looks SET there = 9, absent = 0 WHERE id = 3;
DELETE FROM looked_at WHERE id > 7;
INSERT INTO looks VALUES (4, 7, 8);
:take
ROLLBACK;
:apply
TABLE looks ORDER BY id;
TABLE looks_by_domain ORDER BY id;
:capture
INSERT INTO looked_at VALUES (5);
INSERT INTO looks VALUES (5, NULL, 6);
:take
ROLLBACK;
SELECT mip.writeset_compact(:'w') AS w \gset
ALTER TABLE looks DROP CONSTRAINT looks_absent_check, ADD CONSTRAINT other CHECK (has_not(absent - 1)) NOT VALID;
:apply
:code

-- So do domains, wherever a value becomes one of theirs: within other types, computed, in checks, indexes and bounds.
CREATE PROCEDURE sees(made text, value text) LANGUAGE plpgsql AS $$
DECLARE
	w bytea;
BEGIN
	DROP TABLE IF EXISTS seen;
	EXECUTE made;
	COMMIT;
	SET LOCAL mip.capture_writeset = on;
	INSERT INTO looked_at VALUES (1000);
	EXECUTE format('INSERT INTO seen (v) VALUES (%s)', value);
	w := mip.writeset();
	ROLLBACK;
	RAISE INFO '% changes', mip.writeset_apply(w);
	ROLLBACK;
END $$;
SET client_min_messages = warning;
SET default_table_access_method = mip;
CREATE FUNCTION has_stably(i int) RETURNS bool LANGUAGE plpgsql STABLE AS 'BEGIN RETURN i IS NULL OR EXISTS (SELECT FROM ws.looked_at WHERE id = i); END';
CREATE DOMAIN stable AS int CHECK (has_stably(VALUE));
CREATE DOMAIN stable_too AS stable;
CREATE DOMAIN stable_twice AS int CHECK ((VALUE::stable_too) IS NOT NULL);
CREATE TYPE with_stable AS (gone int, k stable, n int);
ALTER TYPE with_stable DROP ATTRIBUTE gone;
CREATE DOMAIN stables AS with_stable[] CHECK (cardinality(VALUE) > 0);
CREATE TYPE stable_range AS RANGE (subtype = stable_too, multirange_type_name = stable_ranges);
CALL sees('CREATE TABLE seen (v stable_too)', '1000');
CALL sees('CREATE TABLE seen (v stable_twice)', '1000');
CALL sees('CREATE TABLE seen (gone int, v stable[]); ALTER TABLE seen DROP gone', 'ARRAY[NULL,1000]');
CALL sees('CREATE TABLE seen (v with_stable)', '(1000,2)');
CALL sees('CREATE TABLE seen (v stables)', 'ARRAY[(1000,2)::with_stable]');
CALL sees('CREATE TABLE seen (v stable_range)', 'stable_range(1000, NULL)');
CALL sees('CREATE TABLE seen (v stable_ranges)', 'stable_ranges(stable_range(1000, NULL))');
CALL sees('CREATE TABLE seen (v int, g stable GENERATED ALWAYS AS (v) STORED)', '1000');
CALL sees('CREATE TABLE seen (v int, g int GENERATED ALWAYS AS (v::stable::int + 1) STORED)', '1000');
CALL sees('CREATE TABLE seen (v int CHECK (v::stable IS NOT NULL))', '1000');
CALL sees('CREATE TABLE seen (v int[] CHECK ((v::stable[])[1] > 0))', 'ARRAY[1000]');
CALL sees('CREATE TABLE seen (v int); CREATE INDEX ON seen ((v::stable))', '1000');
CALL sees('CREATE TABLE seen (v int); CREATE INDEX ON seen (v) WHERE v::stable > 0', '1000');
CALL sees('CREATE TABLE whole (v int) PARTITION BY RANGE ((v::stable)); CREATE TABLE seen PARTITION OF whole FOR VALUES FROM (MINVALUE) TO (MAXVALUE)', '1000');
DROP TABLE whole;
-- from 17 on, silently
SELECT current_setting('server_version_num')::int < 170000 AS without_json_value \gset
\set made 'CREATE TABLE seen (v jsonb CHECK (JSON_VALUE(v, \'$\' RETURNING stable) IS NOT NULL))'
\set value 'to_jsonb(1000)'
\if :without_json_value
\set made 'CREATE TABLE seen (v stable)'
\set value 1000
\endif
CALL sees(:'made', :'value');
-- So do functions that return values of theirs: they have asked them, whatever they call themselves; and what functions in SQL do.
CREATE FUNCTION as_stable(i int) RETURNS stable LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN i; END';
CREATE FUNCTION as_stables(i int, j int) RETURNS with_stable LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN (i::ws.stable, j); END';
CREATE FUNCTION within(i int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT i::ws.stable::int';
CREATE OPERATOR +% (FUNCTION = as_stable, RIGHTARG = int);
CREATE DOMAIN stable_by_function AS int CHECK (as_stable(VALUE) IS NOT NULL);
CALL sees('CREATE TABLE seen (v int CHECK (as_stable(v) IS NOT NULL))', '1000');
CALL sees('CREATE TABLE seen (v int CHECK ((as_stables(v, 1)).n = 1))', '1000');
CALL sees('CREATE TABLE seen (v int CHECK (abs(+% v) > 0))', '1000');
CALL sees('CREATE TABLE seen (v int CHECK (within(v) > 0))', '1000');
CALL sees('CREATE TABLE seen (v stable_by_function)', '1000');
CALL sees('CREATE TABLE seen (v int, g int GENERATED ALWAYS AS (as_stable(v) + 1) STORED)', '1000');
CALL sees('CREATE TABLE seen (v int, g int GENERATED ALWAYS AS (within(v) + 1) STORED)', '1000');
CALL sees('CREATE TABLE seen (v int); CREATE INDEX ON seen (as_stable(v))', '1000');
CALL sees('CREATE TABLE seen (v int); CREATE INDEX ON seen (v) WHERE as_stable(v) > 0', '1000');
CALL sees('CREATE TABLE seen (v int); CREATE INDEX ON seen (within(v))', '1000');
CALL sees('CREATE TABLE whole (v int) PARTITION BY RANGE (as_stable(v)); CREATE TABLE seen PARTITION OF whole FOR VALUES FROM (MINVALUE) TO (MAXVALUE)', '1000');
DROP TABLE whole;
-- Values by which rows are found are not read before it is their turn.
CREATE TABLE found (v stable[]);
INSERT INTO found VALUES ('{NULL}'), ('{}');
:capture
DELETE FROM found WHERE v = '{NULL}';
INSERT INTO looked_at VALUES (1000);
UPDATE found SET v = '{1000}';
UPDATE found SET v = '{1000,1000}';
UPDATE found SET v = '{1000,7}';
:take
ROLLBACK;
:apply
TABLE found;
-- Domains of which none is asked are looked at as they are stored, without executing anything; and each once.
CREATE SEQUENCE asked;
CREATE FUNCTION asks(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''ws.asked''); RETURN i; END';
CREATE DOMAIN many0 AS int CHECK (VALUE > asks(0));
DO $$ BEGIN
	FOR i IN 1..40 LOOP
		EXECUTE format('CREATE DOMAIN many%s AS int CHECK (VALUE::many%s > 0 OR VALUE::many%2$s < 0)', i, i - 1);
	END LOOP;
END $$;
CREATE TABLE unasked (id int PRIMARY KEY, v many40[]);
:capture
INSERT INTO unasked SELECT i, NULL FROM generate_series(1, 3) i;
UPDATE unasked SET id = id + 3 WHERE id > 1;
DELETE FROM unasked WHERE id = 6;
:take
ROLLBACK;
:apply
TABLE unasked ORDER BY id;
:capture
TRUNCATE unasked;
:take
ROLLBACK;
:apply
SELECT is_called FROM asked;
RESET default_table_access_method;
RESET client_min_messages;

-- What is applied is not captured again, but what triggers write to is; nor behind an error.
CREATE TABLE wide (id int PRIMARY KEY, v text) USING mip;
:capture
INSERT INTO wide VALUES (1, repeat('x', 10000));
:take
ROLLBACK;
CREATE TABLE log (id int) USING mip;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO ws.log VALUES (NEW.id); RETURN NULL; END';
CREATE TRIGGER note AFTER INSERT ON wide FOR EACH ROW EXECUTE FUNCTION note();
ALTER TABLE wide ENABLE ALWAYS TRIGGER note;
BEGIN;
SET LOCAL mip.capture_writeset = on;
:apply
SELECT relation, op, row FROM mip.writeset_changes(mip.writeset());
ROLLBACK;
ALTER TABLE wide ALTER v SET STORAGE PLAIN;
BEGIN;
SET LOCAL mip.capture_writeset = on;
SAVEPOINT s;
:apply
ROLLBACK TO s;
INSERT INTO log VALUES (2);
SELECT relation, op, row FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- So are those of TRUNCATE: what they change, truncate, or apply, is told apart from what is applied, also behind an error there.
CREATE TABLE emptied (id int PRIMARY KEY) USING mip;
CREATE TABLE other (id int PRIMARY KEY) USING mip;
CREATE TABLE third (id int PRIMARY KEY) USING mip;
CREATE TABLE fourth (id int PRIMARY KEY) USING mip;
INSERT INTO fourth VALUES (1);
:capture
TRUNCATE third;
INSERT INTO third VALUES (1);
DELETE FROM fourth;
:take
ROLLBACK;
CREATE TABLE inner_one AS SELECT :'w'::bytea AS w;
:capture
INSERT INTO emptied VALUES (1);
TRUNCATE emptied;
INSERT INTO emptied VALUES (2);
:take
ROLLBACK;
CREATE FUNCTION nested() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO ws.log VALUES (1);
	BEGIN
		PERFORM mip.writeset_apply(w) FROM ws.inner_one;
	EXCEPTION WHEN SQLSTATE 'MP020' THEN
		INSERT INTO ws.log VALUES (2);
	END;
	TRUNCATE ws.other;
	RETURN NULL;
END $$;
CREATE TRIGGER nested BEFORE TRUNCATE ON emptied EXECUTE FUNCTION nested();
ALTER TABLE emptied ENABLE REPLICA TRIGGER nested;
BEGIN;
SET LOCAL mip.capture_writeset = on;
:apply
SELECT relation, op, row FROM mip.writeset_changes(mip.writeset());
TABLE third; TABLE fourth; TABLE emptied;
ROLLBACK;
TRUNCATE fourth;
BEGIN;
SET LOCAL mip.capture_writeset = on;
:apply
SELECT relation, op, row FROM mip.writeset_changes(mip.writeset());
TABLE third; TABLE fourth; TABLE emptied;
TRUNCATE emptied;
SELECT relation, op, row FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- What is truncated in place, as the transaction has made its file, cannot be read any more: other rows are there.
-- What was extracted before does not count, nor what is outdated.
CREATE TABLE place (id int) USING mip;
:capture
TRUNCATE place;
INSERT INTO place VALUES (700), (800);
:take
ROLLBACK;
:capture
TRUNCATE place;
INSERT INTO place VALUES (1), (2);
:apply
SELECT mip.writeset();
:code
ROLLBACK;
DROP TABLE place;
:capture
INSERT INTO log VALUES (0);
CREATE TABLE place (id int) USING mip;
INSERT INTO place VALUES (1);
SELECT relation, op, row FROM mip.writeset_changes(mip.writeset());
:apply
SAVEPOINT s;
SELECT mip.writeset();
:code
ROLLBACK TO s;
INSERT INTO place VALUES (2);
DELETE FROM place WHERE id = 700;
ROLLBACK TO s;
INSERT INTO place VALUES (3);
UPDATE place SET id = 701 WHERE id = 700;
SELECT relation, op, identity, row FROM mip.writeset_changes(mip.writeset(2));
:apply
INSERT INTO place VALUES (4);
SAVEPOINT s;
SELECT mip.writeset(2);
:code
ROLLBACK TO s;
TRUNCATE place;
INSERT INTO place VALUES (5);
SELECT relation, op, row FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- Rights: those to what is changed, of columns, too; row security.
CREATE ROLE mip_regress_applier;
GRANT USAGE ON SCHEMA ws TO mip_regress_applier;
CREATE TABLE rights (id int PRIMARY KEY, v int) USING mip;
INSERT INTO rights VALUES (1, 1), (2, 2);
:capture
UPDATE rights SET v = 3 WHERE id = 1;
:take
ROLLBACK;
\set update :w
:capture
INSERT INTO rights VALUES (3, 3);
:take
ROLLBACK;
\set insert :w
:capture
DELETE FROM rights WHERE id = 2;
:take
ROLLBACK;
\set delete :w
:capture
TRUNCATE rights;
:take
ROLLBACK;
\set truncate :w
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update');
:code
SELECT mip.writeset_apply(:'insert');
:code
SELECT mip.writeset_apply(:'delete');
:code
SELECT mip.writeset_apply(:'truncate');
:code
RESET ROLE;
GRANT UPDATE (id) ON rights TO mip_regress_applier;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update');
:code
RESET ROLE;
GRANT UPDATE (v), INSERT, DELETE ON rights TO mip_regress_applier;
-- Whether a row is there tells what is in it: as an UPDATE or DELETE, it needs SELECT of what is compared.
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'insert');
SELECT mip.writeset_apply(:'update');
:code
SELECT mip.writeset_apply(:'delete');
:code
RESET ROLE;
DELETE FROM rights WHERE id = 3;
GRANT SELECT (v) ON rights TO mip_regress_applier;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'delete');
:code
RESET ROLE;
GRANT SELECT (id) ON rights TO mip_regress_applier;
REVOKE SELECT (v) ON rights FROM mip_regress_applier;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update'), mip.writeset_apply(:'insert'), mip.writeset_apply(:'delete');
RESET ROLE;
TABLE rights ORDER BY id;
-- What an owner has fire by each change, or checked, is passed over: only by who owns the table.
CREATE TABLE rights_child (id int REFERENCES rights) USING mip;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update');
:code
RESET ROLE;
DROP TABLE rights_child;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON rights EXECUTE FUNCTION suppress_redundant_updates_trigger();
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update');
:code
RESET ROLE;
ALTER TABLE rights DISABLE TRIGGER audit;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update');
RESET ROLE;
ALTER TABLE rights ENABLE REPLICA TRIGGER audit;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update');
RESET ROLE;
DROP TRIGGER audit ON rights;
CREATE RULE log AS ON UPDATE TO rights DO ALSO NOTHING;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update');
:code
RESET ROLE;
DROP RULE log ON rights;
-- What a trigger of TRUNCATE executes would be executed as at a replica.
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TABLE mine (id int PRIMARY KEY) USING mip;
CREATE TRIGGER emptied BEFORE TRUNCATE ON mine EXECUTE FUNCTION nothing();
ALTER TABLE mine ENABLE ALWAYS TRIGGER emptied, OWNER TO mip_regress_applier;
:capture
TRUNCATE mine;
:take
ROLLBACK;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'w');
:code
RESET ROLE;
SELECT mip.writeset_apply(:'w');
DROP TABLE mine;
-- A key that is generated, and an index of an expression: neither finds rows, the whole row does.
CREATE TABLE generated (a int, g int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY, x text) USING mip;
CREATE UNIQUE INDEX ON generated (lower(x));
INSERT INTO generated VALUES (1, DEFAULT, 'X'), (2, DEFAULT, 'Y');
:capture
UPDATE generated SET x = 'Z' WHERE g = 2;
UPDATE generated SET a = 3 WHERE g = 2;
DELETE FROM generated WHERE g = 2;
INSERT INTO generated VALUES (4, DEFAULT, 'new');
:take
ROLLBACK;
:apply
TABLE generated ORDER BY a;
DROP TABLE generated;
-- Another one does where that is REPLICA IDENTITY.
CREATE TABLE generated (a int PRIMARY KEY, g int GENERATED ALWAYS AS (a * 2) STORED UNIQUE NOT NULL, x text) USING mip;
ALTER TABLE generated REPLICA IDENTITY USING INDEX generated_g_key;
INSERT INTO generated VALUES (1, DEFAULT, 'X');
:capture
UPDATE generated SET x = 'Z';
:take
ROLLBACK;
SELECT op, identity, row FROM mip.writeset_changes(:'w');
:apply
TABLE generated;
DROP TABLE generated;
-- Published without an identity: its subscribers would miss the change.
CREATE TABLE published (a int, b int) USING mip;
INSERT INTO published VALUES (1, 1);
:capture
INSERT INTO published VALUES (2, 2);
:take
ROLLBACK;
SELECT :'w' AS inserted \gset
:capture
UPDATE published SET b = 2;
:take
ROLLBACK;
SELECT :'w' AS updated \gset
:capture
DELETE FROM published;
:take
ROLLBACK;
SET client_min_messages = error; -- not about wal_level
CREATE PUBLICATION mip_regress FOR TABLE published;
RESET client_min_messages;
:apply
:code
SELECT mip.writeset_apply(:'updated');
:code
SELECT mip.writeset_apply(:'inserted');
ALTER TABLE published REPLICA IDENTITY FULL;
SELECT mip.writeset_apply(:'updated');
TABLE published ORDER BY a;
DROP PUBLICATION mip_regress;
DROP TABLE published;
-- A trigger that executes commands, between two changes of a row
CREATE TABLE twice (id int PRIMARY KEY, v int) USING mip;
INSERT INTO twice VALUES (1, 0);
CREATE TABLE fires (id int PRIMARY KEY) USING mip;
CREATE TABLE executed (id int);
CREATE FUNCTION execute_one() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO executed VALUES (NEW.id); RETURN NEW; END';
CREATE TRIGGER executes BEFORE INSERT ON fires FOR EACH ROW EXECUTE FUNCTION execute_one();
ALTER TABLE fires ENABLE ALWAYS TRIGGER executes;
:capture
UPDATE twice SET v = 1; INSERT INTO fires VALUES (1); UPDATE twice SET v = 2;
:take
ROLLBACK;
:apply
SELECT v, (SELECT count(*) FROM executed) FROM twice;
ALTER TABLE rights ENABLE ROW LEVEL SECURITY;
SET ROLE mip_regress_applier;
SELECT mip.writeset_apply(:'update');
:code
RESET ROLE;
SELECT mip.writeset_apply(:'update');
BEGIN READ ONLY;
SELECT mip.writeset_apply(:'update');
:code
ROLLBACK;

-- To change what is GENERATED ALWAYS AS IDENTITY is its owner's, but not to insert it, as it is by statements.
CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int) USING mip;
INSERT INTO numbered (v) VALUES (1), (2);
GRANT SELECT, INSERT, UPDATE ON numbered TO mip_regress_applier;
:capture
INSERT INTO numbered OVERRIDING SYSTEM VALUE VALUES (7, 7);
UPDATE numbered SET v = 3 WHERE id = 2;
:take
ROLLBACK;
SET ROLE mip_regress_applier;
:apply
RESET ROLE;
:capture
UPDATE numbered SET v = 4 WHERE id = 2;
UPDATE numbered SET id = DEFAULT WHERE id = 2;
:take
ROLLBACK;
SET ROLE mip_regress_applier;
:apply
:code
RESET ROLE;
:apply
TABLE numbered ORDER BY v;
DROP TABLE numbered;

-- Tables that do not fit.
ALTER TABLE rights RENAME v TO w;
SELECT mip.writeset_apply(:'update');
:code
ALTER TABLE rights RENAME w TO v;
ALTER TABLE rights ALTER v TYPE bigint;
SELECT mip.writeset_apply(:'update');
:code
ALTER TABLE rights ALTER v TYPE int, ADD more int;
SELECT mip.writeset_apply(:'update');
:code
ALTER TABLE rights DROP more, DROP CONSTRAINT rights_pkey;
SELECT mip.writeset_apply(:'update');
:code
DROP TABLE rights;
SELECT mip.writeset_apply(:'update');
:code
CREATE VIEW rights AS SELECT 1 AS id, 2 AS v;
SELECT mip.writeset_apply(:'update');
:code
DROP VIEW rights;
CREATE TEMP TABLE rights (id int PRIMARY KEY, v int);
SELECT mip.writeset_apply(:'update');
:code
SELECT mip.writeset_apply('\x4d495057');
:code
SELECT mip.writeset_apply(NULL);

-- A made one, with a row before TRUNCATE: the indexes are opened, closed, and opened again.
CREATE TABLE public.ita (id int PRIMARY KEY) USING mip;
SELECT mip.writeset_apply('\x4d49505701000006bd25c3772554eae39600000000000000010000000000000003000000000000000200000000000000000000000100000002000000010000002500000013000000448341c20d9bc45705b8e78a75dedb890303641403006b067075626c696303697461010502696407696e7465676572ea1763ad6547eeae49000500010000005400004900050001000000e1f1fc61');
TABLE public.ita;
DROP TABLE public.ita;

-- Another one, by which a generated column is of the identity
CREATE TABLE public.ita (v int, id int GENERATED ALWAYS AS (v) STORED PRIMARY KEY);
INSERT INTO public.ita VALUES (1);
SELECT mip.writeset_apply('\x4d49505701000006c60808697598c3b99c0000000000000001000000000000000100000000000000000000000100000000000000000000000200000001000000300000000e000000448341c20d9bc45705b8e78a75dedb890201b44000006b067075626c696303697461020302696407696e746567657200017607696e746567657235b2cca71ced637055000b00010000000200020000002cf1804e');
:code
DROP TABLE public.ita;

-- In an instance: tables that have opted in.
CREATE TABLE inst (id int PRIMARY KEY, v int) USING mip;
INSERT INTO inst VALUES (1, 1), (2, 2);
:capture
UPDATE inst SET v = 5 WHERE id = 1;
UPDATE inst SET v = 6 WHERE id = 1;
DELETE FROM inst WHERE id = 2;
INSERT INTO inst VALUES (2, 7);
:take
ROLLBACK;
BEGIN;
SELECT mip.begin('ws-apply', 1);
:apply
SELECT count(*) FROM mip.prepare('request', 'result');
BEGIN;
SELECT mip.begin('ws-apply', 2);
UPDATE inst SET v = 0 WHERE id = 1;
:apply
TABLE inst ORDER BY id;
SELECT count(*) FROM mip.prepare('request', 'result');
SELECT xinst, state FROM mip.commit('ws-apply', 2) ORDER BY xinst;
TABLE inst ORDER BY id;
SELECT mip.disable('inst');
BEGIN;
SELECT mip.begin('ws-heap', 1);
:apply
:code
ROLLBACK;
SELECT count(*) FROM mip.forget('ws-apply');

-- Types whose values hold OIDs, or are read by settings. [trap 6]
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (m mood, d date);
CREATE TABLE types (id int PRIMARY KEY, m mood, ms mood[], p pair, ps pair[], r daterange, i interval, money money, n positive, nulls text[]) USING mip;
:capture
INSERT INTO types VALUES (1, 'happy', '{sad,happy}', '(sad,2026-03-04)', '{"(happy,2026-05-06)"}', '[2026-01-02,2026-03-04)', '-1 day -02:03', 12.34, 5, '{NULL,"NULL"}');
:take
ROLLBACK;
SET DateStyle = 'SQL, DMY';
SET IntervalStyle = 'sql_standard';
SET array_nulls = off;
:apply
RESET DateStyle; RESET IntervalStyle; RESET array_nulls;
TABLE types;

-- Triggers see what came before, also those whose functions, or WHEN, are STABLE, and nothing of what comes later.
CREATE TABLE ref (id int PRIMARY KEY) USING mip;
CREATE TABLE refers (id int PRIMARY KEY, k int, seen bool) USING mip;
CREATE TABLE saw (m text);
CREATE FUNCTION is_ref(i int) RETURNS bool STABLE LANGUAGE plpgsql AS $$
BEGIN RETURN EXISTS (SELECT FROM ws.ref WHERE id = i); END $$;
CREATE FUNCTION note_seen() RETURNS trigger STABLE LANGUAGE plpgsql AS $$
BEGIN NEW.seen := ws.is_ref(NEW.k); RETURN NEW; END $$;
CREATE FUNCTION must_see() RETURNS trigger STABLE LANGUAGE plpgsql AS $$
BEGIN IF NOT ws.is_ref(NEW.k) THEN RAISE 'no ref %', NEW.k; END IF; RETURN NULL; END $$;
CREATE FUNCTION tell_seen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO ws.saw SELECT format('%s %s: %s', TG_OP, NEW.id, count(*)) FROM ws.ref; RETURN NULL; END $$;
CREATE TRIGGER a BEFORE INSERT ON refers FOR EACH ROW EXECUTE FUNCTION note_seen();
CREATE TRIGGER b AFTER INSERT ON refers FOR EACH ROW EXECUTE FUNCTION must_see();
CREATE TRIGGER c AFTER INSERT ON refers FOR EACH ROW WHEN (is_ref(NEW.k)) EXECUTE FUNCTION tell_seen();
CREATE TRIGGER d AFTER UPDATE ON refers FOR EACH ROW EXECUTE FUNCTION tell_seen();
ALTER TABLE refers ENABLE ALWAYS TRIGGER a, ENABLE ALWAYS TRIGGER b, ENABLE ALWAYS TRIGGER c, ENABLE ALWAYS TRIGGER d;
:capture
INSERT INTO ref VALUES (1);
INSERT INTO refers VALUES (1, 1), (2, 1);
INSERT INTO ref VALUES (2);
UPDATE refers SET k = 2 WHERE id = 1;
DELETE FROM ref WHERE id = 1;
UPDATE refers SET k = 3 WHERE id = 2;
DELETE FROM ref;
TABLE refers ORDER BY id;
TABLE saw;
:take
ROLLBACK;
:apply
TABLE refers ORDER BY id;
TABLE saw;
DROP TABLE refers, saw;

-- A cursor that a STABLE trigger leaves open shows what was there when it was opened, and so does an AFTER trigger.
CREATE TABLE cursors (id int PRIMARY KEY) USING mip;
CREATE FUNCTION open_cursor() RETURNS trigger STABLE LANGUAGE plpgsql AS $$
DECLARE c refcursor := TG_WHEN || NEW.id;
BEGIN OPEN c FOR SELECT count(*) FROM ws.cursors; RETURN NEW; END $$;
CREATE TRIGGER before BEFORE INSERT ON cursors FOR EACH ROW EXECUTE FUNCTION open_cursor();
CREATE TRIGGER after AFTER INSERT ON cursors FOR EACH ROW EXECUTE FUNCTION open_cursor();
:capture
INSERT INTO cursors VALUES (1), (2), (3);
:take
ROLLBACK;
ALTER TABLE cursors ENABLE ALWAYS TRIGGER before, ENABLE ALWAYS TRIGGER after;
BEGIN ISOLATION LEVEL READ COMMITTED;
:apply
FETCH ALL FROM "BEFORE1"; FETCH ALL FROM "BEFORE2"; FETCH ALL FROM "BEFORE3";
FETCH ALL FROM "AFTER1"; FETCH ALL FROM "AFTER2"; FETCH ALL FROM "AFTER3";
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
:apply
FETCH ALL FROM "BEFORE1"; FETCH ALL FROM "BEFORE2"; FETCH ALL FROM "BEFORE3";
FETCH ALL FROM "AFTER1"; FETCH ALL FROM "AFTER2"; FETCH ALL FROM "AFTER3";
ROLLBACK;
DROP TABLE cursors;

-- Triggers of UPDATE OF a generated column fire where it is computed from what is updated.
CREATE TABLE computed (id int PRIMARY KEY, a int, b int, g int GENERATED ALWAYS AS (a * 2) STORED, h int GENERATED ALWAYS AS (b + 1) STORED) USING mip;
INSERT INTO computed VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3);
CREATE TABLE fired_for (n int GENERATED ALWAYS AS IDENTITY, t text);
CREATE FUNCTION note_fired() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO ws.fired_for (t) VALUES (TG_NAME || ' ' || NEW); RETURN NULL; END $$;
CREATE TRIGGER of_g AFTER UPDATE OF g ON computed FOR EACH ROW EXECUTE FUNCTION note_fired();
CREATE TRIGGER of_h AFTER UPDATE OF h ON computed FOR EACH ROW EXECUTE FUNCTION note_fired();
ALTER TABLE computed ENABLE ALWAYS TRIGGER of_g, ENABLE ALWAYS TRIGGER of_h;
:capture
UPDATE computed SET b = 10 WHERE id = 1;
UPDATE computed SET a = 20 WHERE id = 2;
UPDATE computed SET b = 30 WHERE id = 3;
UPDATE computed SET a = 40, b = 50 WHERE id = 1;
SELECT t FROM fired_for ORDER BY n;
:take
ROLLBACK;
:apply
SELECT t FROM fired_for ORDER BY n;
TABLE computed ORDER BY id;
DROP TABLE computed, fired_for;

-- A key that is an array of a domain which looks at other rows is read in its turn, by a deletion, too.
CREATE DOMAIN a_ref AS int CHECK (is_ref(VALUE));
CREATE TABLE by_known (k a_ref[] PRIMARY KEY) USING mip;
INSERT INTO ref VALUES (1);
INSERT INTO by_known VALUES ('{1}');
DELETE FROM ref;
:capture
INSERT INTO ref VALUES (1);
DELETE FROM by_known;
:take
ROLLBACK;
:apply
SELECT count(*) FROM by_known;

-- What changes the row that is being changed, be it a trigger or a check.
CREATE TABLE touched (id int PRIMARY KEY, v int) USING mip;
INSERT INTO touched VALUES (3, 3);
CREATE FUNCTION touch(i int, j int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN IF j = 50 THEN UPDATE ws.touched SET v = v - 1 WHERE id = i; END IF; RETURN true; END $$;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM ws.touch(OLD.id, 50); RETURN coalesce(NEW, OLD); END $$;
:capture
UPDATE touched SET v = 50;
:take
ROLLBACK;
CREATE TRIGGER touch BEFORE UPDATE OF v ON touched FOR EACH ROW WHEN (NEW.v = 50) EXECUTE FUNCTION touch();
ALTER TABLE touched ENABLE ALWAYS TRIGGER touch;
UPDATE touched SET v = 50;
:code
:apply
:code
ALTER TABLE touched DISABLE TRIGGER touch, ADD CHECK (touch(id, v));
UPDATE touched SET v = 50;
:code
:apply
:code
DROP TABLE touched;

-- However values are stored, and however long bodies are: the table becomes the same again.
CREATE TABLE stored (gone int, c bool, s smallint, k bigint, h "char", n name, u uuid, t text COLLATE "C", d float8,
	z interval, e text, PRIMARY KEY (k, t)) USING mip;
ALTER TABLE stored DROP gone, ALTER e SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
INSERT INTO stored SELECT i % 2 = 0, i, -i, 'x', 'name ' || i, md5(i::text)::uuid, repeat('t', i % 150), i / 7.0,
	i * interval '1 hour', repeat('e', CASE i % 10 WHEN 0 THEN 9000 ELSE i % 140 END) FROM generate_series(1, 300) i;
INSERT INTO stored (k, t) SELECT i, 'nulls' FROM generate_series(1, 3) i;
ALTER TABLE stored ADD later int DEFAULT 5, ADD b bool DEFAULT true;
CREATE TABLE stored_before AS TABLE stored;
BEGIN;
SET LOCAL mip.capture_writeset = on;
INSERT INTO stored (s, k, t, e) SELECT i, i, repeat('k', i), repeat('l', i * 131) FROM generate_series(1, 140) i;
UPDATE stored SET e = e || 'f' WHERE k % 3 = 0;
UPDATE stored SET c = NOT c, s = s + 1, u = NULL WHERE k % 4 = 0;
SAVEPOINT here;
UPDATE stored SET d = 0, t = t || 'r' WHERE k % 7 = 0;
ROLLBACK TO here;
UPDATE stored SET later = 6, z = z * 2, t = t || 's' WHERE k % 5 = 0;
DELETE FROM stored WHERE k % 11 = 0;
:take
SELECT mip.relation_checksum('stored') AS checksum \gset
ROLLBACK;
:apply
SELECT mip.relation_checksum('stored') = :'checksum';
SELECT count(*) FROM stored JOIN stored_before USING (k, t) WHERE stored.* IS DISTINCT FROM stored_before.*;
DROP TABLE stored, stored_before;

SET client_min_messages = warning;
DROP SCHEMA ws CASCADE;
DROP ROLE mip_regress_applier;
