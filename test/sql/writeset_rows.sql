-- Which row a change of a writeset is about, where that is not plain.
\pset format unaligned
\pset tuples_only on
\set code '\\echo SQLSTATE :SQLSTATE'
\set capture 'BEGIN; SET LOCAL mip.capture_writeset = on;'
\set take 'SELECT mip.writeset() AS w \\gset'
\set apply 'SELECT mip.writeset_apply(:\'w\');'
CREATE SCHEMA wr;
SET search_path = wr, public;

-- A table that is described in two ways in one writeset is one table: what comes by one of
-- them is found by the other, and it is truncated once.
CREATE TABLE two (id int PRIMARY KEY, k int NOT NULL UNIQUE, v text) USING mip;
INSERT INTO two VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three');
:capture
UPDATE two SET v = 'one!' WHERE id = 1;
INSERT INTO two VALUES (4, 4, 'four'), (5, 5, 'five');
SELECT mip.writeset() AS w1 \gset
COMMIT;
ALTER TABLE two REPLICA IDENTITY USING INDEX two_k_key;
:capture
UPDATE two SET v = v || '?' WHERE id IN (1, 4);
DELETE FROM two WHERE id IN (2, 5);
SELECT mip.writeset() AS w2 \gset
COMMIT;
ALTER TABLE two REPLICA IDENTITY FULL;
CREATE TABLE was AS TABLE two;
TRUNCATE two;
INSERT INTO two VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three');
SELECT mip.writeset_compact(:'w1', :'w2') AS w \gset
SELECT op, identity, row FROM mip.writeset_changes(:'w');
:apply
SELECT count(*) FROM (TABLE two EXCEPT TABLE was) x;
TABLE two ORDER BY id;

-- A long row with many short updates, and some that are as long, compacted
CREATE TABLE long (id int PRIMARY KEY, big text, other text, n int, m int) USING mip;
ALTER TABLE long ALTER big SET STORAGE EXTERNAL;
INSERT INTO long SELECT i, repeat(i::text, 4000), 'other', 0, 0 FROM generate_series(1, 3) i;
:capture
INSERT INTO long VALUES (5, repeat('five', 1000), NULL, 0, NULL);
UPDATE long SET big = repeat(n::text, 3000) WHERE id = 1;
DO $$
BEGIN
	FOR i IN 1..300 LOOP
		UPDATE long SET n = i WHERE id <> 3 OR i < 100;
		UPDATE long SET m = -i WHERE i % 7 = 0 AND id IN (1, 5);
		UPDATE long SET other = repeat('x', 5000), m = NULL WHERE i = 200 AND id IN (2, 5);
		UPDATE long SET id = id + 5 WHERE i = 250 AND id = 5;
	END LOOP;
END $$;
DELETE FROM long WHERE id = 3;
:take
SELECT id, left(big, 4), length(big), length(other), n, m FROM long ORDER BY id;
ROLLBACK;
SELECT mip.writeset_compact(:'w') AS w \gset
SELECT op, identity, length(row->>'big') AS big, length(row->>'other') AS other, row->>'n' AS n, row->>'m' AS m, row ? 'm' AS has_m FROM mip.writeset_changes(:'w');
:apply
SELECT id, left(big, 4), length(big), length(other), n, m FROM long ORDER BY id;

-- By the whole row, and by a key that has been given up
CREATE TABLE gaining (a int, b int) USING mip;
INSERT INTO gaining VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6);
:capture
UPDATE gaining SET b = b + 10 WHERE a < 6;
INSERT INTO gaining VALUES (7, 7), (8, 8);
SELECT mip.writeset() AS w1 \gset
COMMIT;
ALTER TABLE gaining ADD PRIMARY KEY (a);
:capture
UPDATE gaining SET b = b + 100 WHERE a IN (1, 2, 7);
SELECT mip.writeset() AS w2 \gset
COMMIT;
ALTER TABLE gaining DROP CONSTRAINT gaining_pkey;
ALTER TABLE gaining ALTER a DROP NOT NULL;
:capture
UPDATE gaining SET b = b + 1000 WHERE a IN (1, 7, 8);
SELECT mip.writeset() AS w3 \gset
COMMIT;
CREATE TABLE gained AS TABLE gaining;
TRUNCATE gaining;
INSERT INTO gaining VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6);
CREATE UNIQUE INDEX gaining_a ON gaining (a);
SELECT mip.writeset_compact(:'w1', :'w2', :'w3') AS w \gset
:apply
SELECT count(*) FROM (TABLE gaining EXCEPT TABLE gained) x;
SELECT * FROM gaining ORDER BY a;

-- NOT NULL that is NOT VALID, from 18 on, lets an index be REPLICA IDENTITY, and some rows have
-- none by it: the whole row is, until that is validated. Then what had null has no key any more.
SELECT current_setting('server_version_num')::int < 180000 AS always_valid \gset
\set unsure 'ALTER TABLE unsure ADD CONSTRAINT a_there NOT NULL a NOT VALID; ALTER TABLE unsure REPLICA IDENTITY USING INDEX unsure_a;'
\set sure 'ALTER TABLE unsure VALIDATE CONSTRAINT a_there;'
\if :always_valid
\set unsure ''
\set sure 'ALTER TABLE unsure ALTER a SET NOT NULL; ALTER TABLE unsure REPLICA IDENTITY USING INDEX unsure_a;'
\endif
CREATE TABLE unsure (a int, b int) USING mip;
INSERT INTO unsure VALUES (NULL, 1), (NULL, 2), (3, 3);
CREATE UNIQUE INDEX unsure_a ON unsure (a);
:unsure
:capture
UPDATE unsure SET a = b WHERE b = 1;
UPDATE unsure SET b = 4 WHERE a = 3;
DELETE FROM unsure WHERE a IS NULL;
:take
SELECT op, identity, row FROM mip.writeset_changes(:'w');
:sure
SELECT mip.writeset();
:code
ROLLBACK;
:apply
TABLE unsure ORDER BY a;
:sure
:capture
UPDATE unsure SET b = 5 WHERE a = 1;
:take
ROLLBACK;
SELECT op, identity, row FROM mip.writeset_changes(:'w');
DROP TABLE unsure;

-- TRUNCATE, and what is before and behind it
:capture
INSERT INTO two VALUES (7, 7, 'seven');
SELECT mip.writeset() AS w1 \gset
ROLLBACK;
ALTER TABLE two REPLICA IDENTITY DEFAULT;
:capture
TRUNCATE two;
INSERT INTO two VALUES (8, 8, 'eight');
SELECT mip.writeset() AS w2 \gset
ROLLBACK;
ALTER TABLE two REPLICA IDENTITY USING INDEX two_k_key;
:capture
INSERT INTO two VALUES (9, 9, 'nine');
SELECT mip.writeset() AS w3 \gset
ROLLBACK;
:capture
TRUNCATE two;
INSERT INTO two VALUES (10, 10, 'ten');
SELECT mip.writeset() AS w4 \gset
ROLLBACK;
SELECT mip.writeset_compact(:'w1', :'w2') AS w \gset
:apply
TABLE two ORDER BY id;
SELECT mip.writeset_compact(:'w2', :'w3') AS w \gset
:apply
TABLE two ORDER BY id;
SELECT mip.writeset_compact(:'w3', :'w2', :'w3', :'w4') AS w \gset
:apply
TABLE two ORDER BY id;
DROP TABLE two, was, gaining, gained;

-- Unique indexes that have a column twice, or others beside the key's; nulls that are equal
CREATE TABLE doubled (a int NOT NULL, b int NOT NULL, v text) USING mip;
CREATE UNIQUE INDEX doubled_aa ON doubled (a, a);
ALTER TABLE doubled REPLICA IDENTITY USING INDEX doubled_aa;
INSERT INTO doubled VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three');
:capture
UPDATE doubled SET v = 'one!' WHERE a = 1;
UPDATE doubled SET a = 20 WHERE a = 2;
DELETE FROM doubled WHERE a = 3;
:take
ROLLBACK;
SELECT op, identity, row FROM mip.writeset_changes(:'w');
BEGIN;
:apply
TABLE doubled ORDER BY a;
ROLLBACK;
DROP INDEX doubled_aa;
CREATE UNIQUE INDEX doubled_a ON doubled (a) INCLUDE (b, v);
BEGIN;
:apply
TABLE doubled ORDER BY a;
ROLLBACK;
-- As many columns as the key has, but not those: it does not find the row that is meant.
DROP INDEX doubled_a;
CREATE UNIQUE INDEX doubled_ab ON doubled (a, b);
ALTER TABLE doubled REPLICA IDENTITY USING INDEX doubled_ab;
:capture
UPDATE doubled SET v = 'not mine' WHERE a = 1;
:take
ROLLBACK;
DROP INDEX doubled_ab;
CREATE UNIQUE INDEX doubled_aa ON doubled (a, a);
UPDATE doubled SET b = 5 WHERE a = 1;
:apply
:code
TABLE doubled ORDER BY a;
CREATE UNIQUE INDEX doubled_aba ON doubled (a, b, a);
:apply
:code
UPDATE doubled SET b = 1 WHERE a = 1;
:apply
TABLE doubled ORDER BY a;
-- by two operator classes
CREATE TABLE spelled (k text NOT NULL, v int) USING mip;
CREATE UNIQUE INDEX spelled_k ON spelled (k, k text_pattern_ops);
ALTER TABLE spelled REPLICA IDENTITY USING INDEX spelled_k;
INSERT INTO spelled VALUES ('a', 1), ('A', 2), ('b', 3);
:capture
UPDATE spelled SET v = 20 WHERE k = 'A';
DELETE FROM spelled WHERE k = 'a';
UPDATE spelled SET k = 'B' WHERE k = 'b';
UPDATE spelled SET k = 'a' WHERE k = 'B';
:take
SELECT mip.writeset_compact(:'w') AS w2 \gset
ROLLBACK;
BEGIN;
:apply
TABLE spelled ORDER BY k COLLATE "C";
ROLLBACK;
SELECT mip.writeset_apply(:'w2');
TABLE spelled ORDER BY k COLLATE "C";
-- Which constraints are looked at, in the end
CREATE TABLE indexed (id int PRIMARY KEY, a int, b int, c int, d text) USING mip;
CREATE UNIQUE INDEX indexed_aa ON indexed (a, a) INCLUDE (c);
CREATE UNIQUE INDEX indexed_b ON indexed (b) NULLS NOT DISTINCT WHERE c IS NULL;
CREATE UNIQUE INDEX indexed_d ON indexed (lower(d)) INCLUDE (a);
INSERT INTO indexed VALUES (1, 1, 1, 1, 'x'), (2, 2, 2, NULL, 'y');
CREATE PROCEDURE same(sql text) LANGUAGE plpgsql AS $$
DECLARE
	w bytea;
	states text[] := '{}';
	sqls text[];
BEGIN
	-- what others have made before
	SET LOCAL mip.capture_writeset = on;
	EXECUTE sql;
	w := mip.writeset();
	ROLLBACK;
	INSERT INTO indexed VALUES (8, 8, NULL, NULL, 'Q');
	FOREACH sql IN ARRAY ARRAY[sql, format('SELECT mip.writeset_apply(%L)', w)] LOOP
		BEGIN
			EXECUTE sql;
			RAISE SQLSTATE 'UNDO0';
		EXCEPTION WHEN OTHERS THEN
			states := states || concat_ws(' ', SQLSTATE, SQLERRM);
		END;
	END LOOP;
	ROLLBACK;
	RAISE INFO '%', CASE WHEN states[1] = states[2] THEN states[1] ELSE 'DIFFERENT ' || states::text END;
END $$;
CALL same('INSERT INTO indexed VALUES (9, 8, 9, 9, ''z'')');
CALL same('INSERT INTO indexed VALUES (9, NULL, 9, 9, ''z'')');
CALL same('INSERT INTO indexed VALUES (9, 9, NULL, NULL, ''z'')');
CALL same('INSERT INTO indexed VALUES (9, 9, NULL, 9, ''z'')');
CALL same('INSERT INTO indexed VALUES (9, 9, 9, 9, ''q'')');
CALL same('INSERT INTO indexed VALUES (9, 9, 9, 9, NULL)');
CALL same('UPDATE indexed SET b = NULL WHERE id = 1');
CALL same('UPDATE indexed SET b = NULL, c = NULL WHERE id = 1');
CALL same('UPDATE indexed SET c = 8, a = 8 WHERE id = 2');
CALL same('UPDATE indexed SET d = upper(''q'') WHERE id = 2');
CALL same('UPDATE indexed SET d = upper(d)');

-- Many rows of tables without a key: each is found at once, by whatever there is, also where
-- there is little memory for that. (What took the square of their number would not end in time.)
SET statement_timeout = '120s';
CREATE TABLE many (a int, n numeric, j jsonb, r daterange) USING mip;
CREATE PROCEDURE many(what text, fill text, change text) LANGUAGE plpgsql AS $$
DECLARE
	w bytea;
	changes bigint;
	differ bigint;
BEGIN
	SET LOCAL client_min_messages = warning;
	DROP TABLE IF EXISTS made, is_there;
	TRUNCATE wr.many;
	EXECUTE fill;
	COMMIT;
	SET LOCAL mip.capture_writeset = on;
	EXECUTE change;
	w := mip.writeset();
	CREATE TEMP TABLE made AS SELECT many::text AS t, count(*) FROM wr.many GROUP BY 1;
	COMMIT;
	TRUNCATE wr.many;
	EXECUTE fill;
	COMMIT;
	SET LOCAL DateStyle = 'German';
	changes := mip.writeset_apply(w);
	COMMIT;
	CREATE TEMP TABLE is_there AS SELECT many::text AS t, count(*) FROM wr.many GROUP BY 1;
	SELECT count(*) INTO differ FROM (
		(TABLE made EXCEPT TABLE is_there) UNION ALL (TABLE is_there EXCEPT TABLE made)) x;
	RAISE INFO '%: % changes, % rows differ', what, changes, differ;
END $$;
SET DateStyle = 'ISO';
\set same 'INSERT INTO wr.many SELECT 1, 1.50, ''{"a": 1}'', ''[2026-01-02,2026-03-04)'' FROM generate_series(1, 20000)'
\set distinct 'INSERT INTO wr.many SELECT i % 7, i + 0.10, to_jsonb(i), daterange(''2026-01-02'', ''2026-01-03''::date + i) FROM generate_series(1, 20000) i'
CALL many('the same, deleted', :'same', 'DELETE FROM wr.many');
CALL many('the same, updated', :'same', 'UPDATE wr.many SET a = 2');
CALL many('the same, updated to themselves', :'same', 'UPDATE wr.many SET a = a');
CALL many('the same, there and back', :'same', 'UPDATE wr.many SET a = 2; UPDATE wr.many SET a = 1; UPDATE wr.many SET a = 2');
CALL many('distinct', :'distinct', 'UPDATE wr.many SET n = n + 1; DELETE FROM wr.many WHERE a = 1');
CALL many('inserted and updated', :'distinct',
	'INSERT INTO wr.many SELECT 100 FROM generate_series(1, 5000); UPDATE wr.many SET n = 1 WHERE a = 100');
CREATE INDEX ON many (a);
CALL many('the same, by an index', :'same', 'DELETE FROM wr.many');
CALL many('by an index that leads to many', :'distinct', 'UPDATE wr.many SET r = ''empty'' WHERE a < 3');
DROP INDEX many_a_idx;
SET work_mem = '64kB';
CALL many('the same, little memory', :'same', 'UPDATE wr.many SET a = 2; DELETE FROM wr.many WHERE ctid = ANY (ARRAY(SELECT ctid FROM wr.many LIMIT 8000))');
CALL many('distinct, little memory', :'distinct', 'UPDATE wr.many SET n = n + 1; DELETE FROM wr.many WHERE a = 1');
RESET work_mem;
-- whose columns are all the same
DO $$
BEGIN
	EXECUTE format('CREATE TABLE wide (%s) USING mip', (SELECT string_agg(format('c%s int', i), ', ') FROM generate_series(1, 64) i));
	EXECUTE format('INSERT INTO wide SELECT %s FROM generate_series(1, 5000) n', (SELECT string_agg('n', ', ') FROM generate_series(1, 64) i));
END $$;
INSERT INTO wide (c1, c33) VALUES (1, 1), (2, 2), (1, NULL), (NULL, 1);
:capture
DELETE FROM wide WHERE c2 > 1000 OR (c33 IS NULL AND c1 = 1);
UPDATE wide SET c64 = -1 WHERE c1 IS NULL OR c2 = 1000;
:take
ROLLBACK;
:apply
SELECT count(*), sum(c1), sum(c64), count(c64) FROM wide;
SELECT c1, c33, c64 FROM wide WHERE c2 IS NULL ORDER BY c1, c33;
-- Tables that take turns, and are truncated between: each finds its own rows, and those behind the last TRUNCATE.
CREATE TABLE turn1 (a int, v text) USING mip;
CREATE TABLE turn2 (a int, v text) USING mip;
INSERT INTO turn1 SELECT i, 'old' FROM generate_series(1, 9) i;
INSERT INTO turn2 TABLE turn1;
:capture
UPDATE turn1 SET v = 'new' WHERE a < 3;
UPDATE turn2 SET v = 'new' WHERE a < 3;
SELECT mip.writeset() AS w1 \gset
DELETE FROM turn1 WHERE a = 2;
UPDATE turn2 SET a = a + 10 WHERE a > 7;
TRUNCATE turn1;
INSERT INTO turn1 VALUES (1, 'again'), (2, 'again'), (3, 'again');
SELECT mip.writeset((mip.writeset_info(:'w1')).last) AS w2 \gset
UPDATE turn2 SET v = 'newer' WHERE a IN (1, 9);
UPDATE turn1 SET v = 'newer' WHERE a < 3;
DELETE FROM turn2 WHERE a = 18;
TRUNCATE turn2;
DELETE FROM turn1 WHERE a = 1;
INSERT INTO turn2 VALUES (5, 'again'), (6, 'again');
SELECT mip.writeset((mip.writeset_info(:'w2')).last) AS w3 \gset
DELETE FROM turn2 WHERE a = 6;
DELETE FROM turn1 WHERE a = 3;
SELECT mip.writeset((mip.writeset_info(:'w3')).last) AS w4 \gset
TABLE turn1; TABLE turn2;
ROLLBACK;
SELECT mip.writeset_compact(:'w1', :'w2', :'w3', :'w4') AS w \gset
SELECT op, relation, identity->>'a' AS a FROM mip.writeset_changes(:'w');
BEGIN;
:apply
TABLE turn1; TABLE turn2;
ROLLBACK;
SELECT mip.writeset_apply(:'w1'), mip.writeset_apply(:'w2'), mip.writeset_apply(:'w3'), mip.writeset_apply(:'w4');
TABLE turn1; TABLE turn2;
RESET statement_timeout;
RESET DateStyle;

SET client_min_messages = warning;
DROP SCHEMA wr CASCADE;
