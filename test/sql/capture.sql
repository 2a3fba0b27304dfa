-- Capture: all that row triggers see is in the writeset, in whatever way it came about.
\getenv srcdir PG_ABS_SRCDIR
\set capture :srcdir '/sql/include/capture.psql'
\set ECHO none
\i :capture
\set ECHO all
SET default_table_access_method = mip;
SET mip.capture_writeset = on;
CREATE SCHEMA c;
SET search_path = c, public;
CREATE TABLE a (id int PRIMARY KEY, n numeric, s text, big text);
ALTER TABLE a ALTER big SET STORAGE EXTERNAL;
SELECT test.watch('a', 'id');
INSERT INTO a SELECT i, i, 's' || i, CASE WHEN i <= 5 THEN repeat(i::text, 10000) END FROM generate_series(1, 20) i;
TRUNCATE test.seen;

-- plain, values out of line unchanged, changed, removed, the key
BEGIN;
SELECT * FROM mip.writeset_info(mip.writeset());
INSERT INTO a VALUES (100, 1.50, NULL, NULL);
UPDATE a SET n = n + 1 WHERE id <= 3;
UPDATE a SET big = repeat('x', 9000) WHERE id = 2;
UPDATE a SET big = NULL WHERE id = 3;
UPDATE a SET id = 200 WHERE id = 4;
DELETE FROM a WHERE id IN (5, 6);
UPDATE a SET s = s WHERE id = 7;
UPDATE a SET n = n + 1 WHERE id = 8;
UPDATE a SET n = n + 1 WHERE id = 8;
DELETE FROM a WHERE id = 8;
SELECT * FROM test.compare(mip.writeset());
SELECT number, op, relation, identity, left("row"::text, 60) FROM mip.writeset_changes(mip.writeset());
-- in parts
DO $$
DECLARE
	after bigint := 0;
	w bytea;
	all_of_them bytea[];
BEGIN
	LOOP
		w := mip.writeset(after, 500);
		EXIT WHEN (mip.writeset_info(w)).changes = 0;
		ASSERT octet_length(w) <= 500 OR (mip.writeset_info(w)).changes = 1, 'too long';
		after := (mip.writeset_info(w)).last;
		all_of_them := all_of_them || w;
	END LOOP;
	ASSERT cardinality(all_of_them) > 2;
	ASSERT (SELECT array_agg(c ORDER BY number) FROM unnest(all_of_them) part, mip.writeset_changes(part) c) =
		(SELECT array_agg(c ORDER BY number) FROM mip.writeset_changes(mip.writeset()) c);
END $$;
ROLLBACK;

-- savepoints and EXCEPTION
BEGIN;
UPDATE a SET n = 0 WHERE id = 1;
SAVEPOINT one;
UPDATE a SET n = 0 WHERE id = 2;
SAVEPOINT two;
UPDATE a SET n = 0 WHERE id = 3;
RELEASE two;
SELECT last AS after FROM mip.writeset_info(mip.writeset()) \gset
ROLLBACK TO one;
INSERT INTO a VALUES (101);
SAVEPOINT three;
INSERT INTO a VALUES (102);
RELEASE three;
DO $$
BEGIN
	FOR i IN 1 .. 40 LOOP
		BEGIN
			UPDATE a SET n = i WHERE id = 10;
			INSERT INTO a VALUES (1000 + i);
			IF i % 2 = 0 THEN
				INSERT INTO a VALUES (1);
			END IF;
		EXCEPTION WHEN unique_violation THEN
			DELETE FROM a WHERE id = 1000 + i - 1;
		END;
	END LOOP;
END $$;
SELECT * FROM test.compare(mip.writeset());
SAVEPOINT s;
SELECT mip.writeset(:after);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT mip.writeset(1000000);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT mip.writeset(-1);
ROLLBACK TO s;
SELECT number, op, identity FROM mip.writeset_changes(mip.writeset()) LIMIT 6;
SELECT min(number), count(*) FROM mip.writeset_changes(mip.writeset(1));
ROLLBACK;

-- ON CONFLICT both ways, MERGE, RETURNING, CTE, COPY, cursors
BEGIN;
INSERT INTO a VALUES (1, 5), (300, 5) ON CONFLICT (id) DO UPDATE SET n = excluded.n;
INSERT INTO a VALUES (2, 5), (301, 5) ON CONFLICT DO NOTHING;
MERGE INTO a USING generate_series(9, 31) i ON a.id = i
	WHEN MATCHED AND i % 3 = 0 THEN DELETE
	WHEN MATCHED AND i % 3 = 1 THEN UPDATE SET n = -i
	WHEN NOT MATCHED AND i > 30 THEN INSERT VALUES (i);
WITH gone AS (DELETE FROM a WHERE id = 16 RETURNING *), new AS (INSERT INTO a SELECT id + 400 FROM gone RETURNING id)
	UPDATE a SET n = 400 FROM new WHERE a.id = 17;
COPY a (id, n) FROM STDIN (DELIMITER ',');
500,1
501,2
502,3
\.
DECLARE cur CURSOR FOR SELECT id FROM a WHERE id BETWEEN 1 AND 4 ORDER BY id FOR UPDATE;
FETCH 2 FROM cur;
UPDATE a SET s = 'current' WHERE CURRENT OF cur;
DELETE FROM a WHERE CURRENT OF cur;
SELECT * FROM test.compare(mip.writeset());
ROLLBACK;

-- partitions: moves, COPY into several
CREATE TABLE p (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 (v text, part int NOT NULL, gone int, id int NOT NULL);
ALTER TABLE p2 DROP gone;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2);
SELECT test.watch('p', 'id', 'part');
BEGIN;
COPY p FROM STDIN (DELIMITER ',');
1,1,x
2,2,y
3,1,z
\.
UPDATE p SET part = 3 - part WHERE id < 3;
UPDATE p SET v = 'moved' WHERE id = 1;
SELECT * FROM test.compare(mip.writeset());
SELECT op, relation, identity, row FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- inheritance, no key, duplicates, many versions of one row
CREATE TABLE k (x int, y text);
CREATE TABLE k2 (z int) INHERITS (k);
SELECT test.watch('k'), test.watch('k2');
BEGIN;
INSERT INTO k VALUES (1, 'a'), (1, 'a'), (1, 'a'), (NULL, NULL);
INSERT INTO k2 VALUES (1, 'a', 3);
DELETE FROM k WHERE ctid = (SELECT min(ctid) FROM ONLY k) AND tableoid = 'k'::regclass;
UPDATE k SET y = 'b' WHERE x = 1;
DO $$ BEGIN FOR i IN 1 .. 32 LOOP UPDATE k SET y = 'v' || i WHERE x IS NULL; END LOOP; END $$;
SELECT * FROM test.compare(mip.writeset());
ROLLBACK;

-- foreign keys: what they do to rows
CREATE TABLE f (id int PRIMARY KEY);
CREATE TABLE g (id int PRIMARY KEY, cascaded int REFERENCES f ON DELETE CASCADE ON UPDATE CASCADE, nulled int REFERENCES f ON DELETE SET NULL);
CREATE TABLE h (id int PRIMARY KEY REFERENCES g ON DELETE CASCADE);
SELECT test.watch('f', 'id'), test.watch('g', 'id'), test.watch('h', 'id');
BEGIN;
INSERT INTO f VALUES (1), (2), (3);
INSERT INTO g VALUES (1, 1, 2), (2, 2, 2), (3, 3, 1);
INSERT INTO h VALUES (1), (2);
DELETE FROM f WHERE id = 1;
UPDATE f SET id = 30 WHERE id = 3;
SELECT * FROM test.compare(mip.writeset());
SELECT op, relation, identity, row FROM mip.writeset_changes(mip.writeset(8));
ROLLBACK;

-- triggers that change and drop rows; deferred ones
CREATE FUNCTION before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF OLD.id = 2 THEN RETURN NULL; END IF;
	IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
	NEW.s := 'trigger';
	RETURN NEW;
END $$;
CREATE TRIGGER before BEFORE INSERT OR UPDATE OR DELETE ON a FOR EACH ROW EXECUTE FUNCTION before();
CREATE TABLE w (id int) USING heap;
CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE c.a SET n = n + 1000 WHERE id = 3;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON w DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION later();
BEGIN;
UPDATE a SET n = 7 WHERE id <= 2;
DELETE FROM a WHERE id IN (2, 9);
INSERT INTO a VALUES (400);
INSERT INTO w VALUES (1);
SAVEPOINT s;
SELECT mip.writeset();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT * FROM test.compare(mip.writeset());
ROLLBACK;
DROP TRIGGER before ON a;
-- deferred checks change nothing: they are no reason to wait
CREATE TABLE q (id int PRIMARY KEY REFERENCES f DEFERRABLE INITIALLY DEFERRED, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
BEGIN;
INSERT INTO q VALUES (77, 1), (78, 1);
SELECT changes FROM mip.writeset_info(mip.writeset());
ROLLBACK;

-- not captured: temporary tables, materialized views, tables that have not opted in
BEGIN;
CREATE TEMP TABLE tmp (i int);
INSERT INTO tmp VALUES (1);
CREATE MATERIALIZED VIEW mv AS SELECT 1 AS i;
REFRESH MATERIALIZED VIEW mv;
CREATE TABLE hp (i int) USING heap;
INSERT INTO hp VALUES (1);
CREATE TABLE made AS SELECT 1 AS i;
SELECT op, relation, "row" FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- columns that are computed, or have values of their own
CREATE TABLE gen (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, x int, twice int GENERATED ALWAYS AS (x * 2) STORED, dropped int);
ALTER TABLE gen DROP dropped;
SELECT test.watch('gen', 'id');
BEGIN;
INSERT INTO gen (x) VALUES (1), (2);
UPDATE gen SET x = 5 WHERE id = 1;
ALTER TABLE gen ADD later int DEFAULT 9;
ALTER TABLE gen RENAME x TO y;
SELECT op, relation, identity, "row" FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- identity: what may be violated until the end does not identify
CREATE TABLE loose (id int PRIMARY KEY DEFERRABLE, v int);
CREATE TABLE chosen (id int PRIMARY KEY, u int NOT NULL UNIQUE);
ALTER TABLE chosen REPLICA IDENTITY USING INDEX chosen_u_key;
BEGIN;
INSERT INTO loose VALUES (1, 2);
INSERT INTO chosen VALUES (1, 2);
DELETE FROM loose;
DELETE FROM chosen;
SELECT op, relation, identity FROM mip.writeset_changes(mip.writeset(2));
ROLLBACK;

-- TRUNCATE: outdates what was before, until it is rolled back
CREATE TABLE t (id int PRIMARY KEY, p int REFERENCES f);
BEGIN;
INSERT INTO t VALUES (1), (2);
INSERT INTO f VALUES (5);
SAVEPOINT s;
TRUNCATE t;
INSERT INTO t VALUES (3);
SELECT number, op, relation, "row" FROM mip.writeset_changes(mip.writeset());
SELECT number, op, relation FROM mip.writeset_changes(mip.writeset(1));
ROLLBACK TO s;
SELECT number, op, relation FROM mip.writeset_changes(mip.writeset());
TRUNCATE f CASCADE;
SELECT op, relation FROM mip.writeset_changes(mip.writeset()) ORDER BY relation;
-- a table as new as the transaction
CREATE TABLE fresh (i int);
INSERT INTO fresh VALUES (1);
TRUNCATE fresh;
INSERT INTO fresh VALUES (2);
SELECT op, relation, "row" FROM mip.writeset_changes(mip.writeset()) WHERE relation = 'c.fresh';
ROLLBACK;

-- many tables, which are looked up in another way; one of them has been emptied by a writeset
CREATE TABLE many (id int, v int) PARTITION BY RANGE (id);
SELECT format('CREATE TABLE many_%s PARTITION OF many FOR VALUES FROM (%s) TO (%s)', i, i * 10, i * 10 + 10)
	FROM generate_series(0, 12) i
\gexec
CREATE TABLE fresh (i int);
CREATE TABLE later (i int);
BEGIN;
TRUNCATE fresh, later;
SELECT mip.writeset() AS w \gset
COMMIT;
DROP TABLE fresh, later;
BEGIN;
CREATE TABLE fresh (i int);
CREATE TABLE later (i int);
INSERT INTO fresh VALUES (1);
INSERT INTO later VALUES (1);
SELECT last AS after FROM mip.writeset_info(mip.writeset()) \gset
SELECT mip.writeset_apply(:'w');
INSERT INTO many SELECT i * 10, 0 FROM generate_series(0, 5) i;
INSERT INTO fresh VALUES (2);
SAVEPOINT s;
INSERT INTO many SELECT i * 10 + 1, 0 FROM generate_series(6, 11) i;
INSERT INTO later VALUES (2);
ROLLBACK TO s;
RELEASE s;
INSERT INTO many VALUES (120, 0);
INSERT INTO fresh VALUES (3);
INSERT INTO later VALUES (3);
INSERT INTO many SELECT i * 10 + 2, 0 FROM generate_series(0, 11) i;
UPDATE many SET v = 1 WHERE id % 20 = 0;
DELETE FROM many WHERE id % 20 = 2;
SELECT relation, string_agg(op::text || coalesce("row"::text, identity::text, ''), ' ' ORDER BY number)
	FROM mip.writeset_changes(mip.writeset(:after)) GROUP BY relation ORDER BY min(number);
SELECT last AS after FROM mip.writeset_info(mip.writeset(:after)) \gset
SELECT mip.writeset_apply(:'w');
INSERT INTO fresh VALUES (5);
SELECT op, relation, "row" FROM mip.writeset_changes(mip.writeset(:after));
SELECT mip.writeset();
ROLLBACK;
DROP TABLE many;

-- A part that ends before a TRUNCATE has left out changes. With its rollback they are there again, and so is all behind them, under new numbers.
BEGIN;
INSERT INTO f VALUES (10);
INSERT INTO t VALUES (1), (2);
INSERT INTO f VALUES (11), (12);
SELECT last AS before FROM mip.writeset_info(mip.writeset(0, 1)) \gset
SAVEPOINT s;
TRUNCATE t;
SELECT changes, last FROM mip.writeset_info(mip.writeset(:before, 1)) \gset
SELECT :before AS before, :changes AS changes, :last AS last;
ROLLBACK TO s;
INSERT INTO f VALUES (13);
SELECT mip.writeset(:last);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT number, op, relation, "row" FROM mip.writeset_changes(mip.writeset(:before));
INSERT INTO f VALUES (14);
SELECT number, op, relation, "row" FROM mip.writeset_changes(mip.writeset(:before));
-- again, twice at once, with the second one inside
SAVEPOINT a;
TRUNCATE t;
INSERT INTO t VALUES (3);
SAVEPOINT b;
INSERT INTO f VALUES (15), (16);
TRUNCATE t;
SELECT last FROM mip.writeset_info(mip.writeset(:before, 1)) \gset
ROLLBACK TO b;
SAVEPOINT c;
SELECT mip.writeset(:last);
ROLLBACK TO c;
SELECT number, op, relation, "row" FROM mip.writeset_changes(mip.writeset(:before));
-- what has been there in the end stays valid
SELECT last FROM mip.writeset_info(mip.writeset(:before)) \gset
INSERT INTO f VALUES (17);
SELECT number, op, relation, "row" FROM mip.writeset_changes(mip.writeset(:last));
ROLLBACK TO a;
SELECT number, op, relation, "row" FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- tables that have been rewritten, or are gone
CREATE INDEX a_n ON a (n);
CREATE PROCEDURE test.rewritten(statement text) LANGUAGE plpgsql AS $$
DECLARE
	w bytea;
	state text;
	message text;
BEGIN
	BEGIN
		UPDATE c.a SET n = -id WHERE id IN (1, 10, 20);
		w := mip.writeset();
		EXECUTE statement;
		BEGIN
			PERFORM mip.writeset();
			RAISE NOTICE '%: as before: %', statement, mip.writeset() = w;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
			RAISE NOTICE '%: % %', statement, state, message;
		END;
		-- what has been extracted before is not read again
		PERFORM mip.writeset((mip.writeset_info(w)).last);
		RAISE EXCEPTION USING ERRCODE = 'ZZZZZ';
	EXCEPTION WHEN SQLSTATE 'ZZZZZ' THEN
	END;
	-- rolled back: it is where it was
	UPDATE c.a SET n = -id WHERE id = 1;
	PERFORM mip.writeset();
	ROLLBACK;
END $$;
CALL test.rewritten('CLUSTER c.a USING a_n');
CALL test.rewritten('ALTER TABLE c.a ALTER n TYPE bigint');
CALL test.rewritten('ALTER TABLE c.a ADD r float8 DEFAULT random()');
CALL test.rewritten('ALTER TABLE c.a SET ACCESS METHOD heap');
CALL test.rewritten('ALTER TABLE c.a SET UNLOGGED');
CALL test.rewritten('DROP TABLE c.a');
CALL test.rewritten('SELECT mip.disable(''c.a'')');
CALL test.rewritten('CREATE INDEX ON c.a (s)');
BEGIN;
UPDATE a SET n = 0 WHERE id = 1;
CLUSTER a USING a_n;
UPDATE a SET n = 1 WHERE id = 1;
SELECT number, op, identity, "row" FROM mip.writeset_changes(mip.writeset(1));
TRUNCATE a;
SELECT op, relation FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- What else a transaction may do to a table that it has changed: as before, or refused.
CREATE TABLE n (id int UNIQUE, u int NOT NULL, v text);
ALTER TABLE n ADD CONSTRAINT n_u UNIQUE (u);
INSERT INTO n VALUES (1, 1, 'a'), (2, 2, 'b'), (NULL, 3, 'c'), (NULL, 4, 'd');
CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part2 (id int PRIMARY KEY, v text);
INSERT INTO part VALUES (1, 'a');
INSERT INTO part2 VALUES (101, 'b');
CREATE PROCEDURE test.altered(change text, statement text) LANGUAGE plpgsql AS $$
DECLARE
	w bytea;
	state text;
	message text;
BEGIN
	EXECUTE change;
	w := mip.writeset();
	FOR i IN 1 .. 2 LOOP
		BEGIN
			EXECUTE statement;
			BEGIN
				PERFORM mip.writeset();
				RAISE NOTICE '%: as before: %', statement, mip.writeset() = w;
			EXCEPTION WHEN OTHERS THEN
				GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
				RAISE NOTICE '%: % %', statement, state, message;
			END;
			PERFORM mip.writeset((mip.writeset_info(w)).last);
			RAISE EXCEPTION USING ERRCODE = 'ZZZZZ';
		EXCEPTION WHEN SQLSTATE 'ZZZZZ' THEN
		END;
		ASSERT mip.writeset() = w, 'rolled back';
	END LOOP;
	ROLLBACK;
END $$;
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n ADD c int');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n ADD c int DEFAULT 5');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n DROP v');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n DROP id');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n DROP CONSTRAINT n_u');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n ADD PRIMARY KEY (u)');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n REPLICA IDENTITY USING INDEX n_u');
CALL test.altered('DELETE FROM n WHERE id = 1', 'CREATE UNIQUE INDEX ON n (v)');
CALL test.altered('DELETE FROM n WHERE id = 1', 'CREATE UNIQUE INDEX x ON n (u); ALTER TABLE n REPLICA IDENTITY USING INDEX x');
CALL test.altered('UPDATE n SET id = u WHERE id IS NULL', 'ALTER TABLE n ALTER id SET NOT NULL; ALTER TABLE n REPLICA IDENTITY USING INDEX n_id_key');
CALL test.altered('DELETE FROM n WHERE id = 1', 'REINDEX TABLE n');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n ALTER v TYPE varchar');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n ALTER v TYPE bytea USING v::bytea');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n RENAME TO renamed');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n RENAME v TO renamed');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER SCHEMA c RENAME TO renamed');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n SET SCHEMA public');
CALL test.altered('DELETE FROM n WHERE id = 1', 'CLUSTER n USING n_u');
CALL test.altered('DELETE FROM n WHERE id = 1', 'SELECT mip.disable(''n'')');
CALL test.altered('DELETE FROM n WHERE id = 1', 'SELECT mip.disable(''n''); TRUNCATE n');
CALL test.altered('DELETE FROM n WHERE id = 1', 'ALTER TABLE n SET ACCESS METHOD heap');
CALL test.altered('DELETE FROM n WHERE id = 1', 'SELECT mip.disable(''a''); DELETE FROM a; SELECT mip.enable(''part'')');
CALL test.altered('UPDATE part SET v = ''x''', 'ALTER TABLE part DETACH PARTITION part1');
CALL test.altered('UPDATE part2 SET v = ''x''', 'ALTER TABLE part ATTACH PARTITION part2 FOR VALUES FROM (100) TO (200)');
-- so of what it is a partition of, and of its indexes
CREATE TABLE whole (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CALL test.altered('UPDATE part1 SET v = ''x''', 'ALTER TABLE whole ATTACH PARTITION part FOR VALUES FROM (0) TO (200)');
CREATE TABLE late (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE late1 PARTITION OF late (id NOT NULL) FOR VALUES FROM (0) TO (100);
CREATE UNIQUE INDEX ON late1 (id);
INSERT INTO late VALUES (1, 'a');
CALL test.altered('UPDATE late1 SET v = ''x''', 'CREATE UNIQUE INDEX ON late (id)');
-- an index that has not been built kept nothing apart
CREATE TABLE unbuilt (id int NOT NULL, v text);
INSERT INTO unbuilt VALUES (1, 'a'), (1, 'b');
CREATE UNIQUE INDEX CONCURRENTLY unbuilt_id ON unbuilt (id);
CALL test.altered('DELETE FROM unbuilt WHERE v = ''a''',
	'REINDEX INDEX unbuilt_id; ALTER TABLE unbuilt REPLICA IDENTITY USING INDEX unbuilt_id');
-- one that is not valid has done so
CREATE TABLE invalid (id int, v text);
INSERT INTO invalid VALUES (1, 'a');
CREATE UNIQUE INDEX invalid_id ON invalid (id);
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'invalid_id'::regclass;
CALL test.altered('DELETE FROM invalid', 'DROP INDEX invalid_id');
-- changes that could not be captured
CREATE PROCEDURE test.opted_in(statement text) LANGUAGE plpgsql AS $$
DECLARE
	state text;
	message text;
BEGIN
	BEGIN
		EXECUTE statement;
		BEGIN
			RAISE NOTICE '%: %', statement, (SELECT array_agg(op::text || ' ' || relation) FROM mip.writeset_changes(mip.writeset()));
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
			RAISE NOTICE '%: % %', statement, state, message;
		END;
		RAISE EXCEPTION USING ERRCODE = 'ZZZZZ';
	EXCEPTION WHEN SQLSTATE 'ZZZZZ' THEN
	END;
	ASSERT (mip.writeset_info(mip.writeset())).changes = 0, 'rolled back';
	ROLLBACK;
END $$;
CALL test.opted_in('SELECT mip.disable(''n''); DELETE FROM n; SELECT mip.enable(''n''); INSERT INTO n VALUES (5, 5)');
CALL test.opted_in('SELECT mip.disable(''n''); DELETE FROM n; SELECT mip.enable(''n''); TRUNCATE n');
CALL test.opted_in('SELECT mip.disable(''n''); TRUNCATE n; SELECT mip.enable(''n'')');
CALL test.opted_in('SELECT mip.disable(''n''); DELETE FROM n');
CALL test.opted_in('TRUNCATE n; SELECT mip.disable(''n''); INSERT INTO n VALUES (5, 5)');
CALL test.opted_in('ALTER TABLE n SET ACCESS METHOD heap; DELETE FROM n; ALTER TABLE n SET ACCESS METHOD mip');
CALL test.opted_in('SELECT mip.disable(''n''); SELECT mip.enable(''n''); INSERT INTO n VALUES (5, 5)');
CALL test.opted_in('ALTER TABLE n ALTER id TYPE bigint; INSERT INTO n VALUES (5, 5)');
CALL test.opted_in('DELETE FROM n WHERE id = 1; SELECT mip.disable(''n''); DELETE FROM n; SELECT mip.enable(''n'')');
CALL test.opted_in('CREATE TABLE x (i int) USING heap; SELECT mip.enable(''x''); INSERT INTO x VALUES (1)');
CALL test.opted_in('CREATE TABLE x USING heap AS SELECT 1; SELECT mip.enable(''x'')');
CALL test.opted_in('SELECT mip.disable(''part''); DELETE FROM part; SELECT mip.enable(''part'')');
-- a key that was not there then might lead to another row
BEGIN;
ALTER TABLE n DROP CONSTRAINT n_u;
UPDATE n SET u = 1 WHERE u = 2;
UPDATE n SET u = 3 WHERE v = 'b';
DELETE FROM n WHERE id IS NULL;
ALTER TABLE n ADD PRIMARY KEY (u);
SAVEPOINT s;
SELECT mip.writeset();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- what has been rolled back does not count
BEGIN;
SAVEPOINT s;
ALTER TABLE n DROP CONSTRAINT n_u;
ALTER TABLE n ADD CONSTRAINT other UNIQUE (u);
UPDATE n SET v = 'x' WHERE id = 1;
ROLLBACK TO s;
UPDATE n SET v = 'y' WHERE id = 1;
SELECT op, relation, identity, "row" FROM mip.writeset_changes(mip.writeset());
TRUNCATE n;
ALTER TABLE n DROP CONSTRAINT n_u;
SELECT op, relation FROM mip.writeset_changes(mip.writeset());
ROLLBACK;

-- spilled: the limit is work_mem
BEGIN;
SET LOCAL work_mem = 64;
INSERT INTO k SELECT i, 'spilled' FROM generate_series(1, 10000) i;
SAVEPOINT s;
INSERT INTO k SELECT i, 'lost' FROM generate_series(1, 10000) i;
ROLLBACK TO s;
INSERT INTO k SELECT i, 'again' FROM generate_series(1, 10000) i;
DELETE FROM ONLY k WHERE x % 1000 = 0;
DELETE FROM test.seen s USING (SELECT ctid AS c FROM test.seen WHERE op = 'I' AND (row ->> 'x')::int > 10) o WHERE s.ctid = c;
SELECT op, "row" ->> 'y' AS y, identity ->> 'y' AS old_y, count(*), min(number), max(number), sum((coalesce("row", identity) ->> 'x')::int)
	FROM mip.writeset_changes(mip.writeset()) GROUP BY 1, 2, 3 ORDER BY 5;
SELECT count(*) FROM mip.writeset_changes(mip.writeset(25000));
COMMIT;

-- the setting
BEGIN;
UPDATE a SET n = 0 WHERE id = 1;
SET mip.capture_writeset = off;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
UPDATE a SET n = 0 WHERE id = 1000;
SET LOCAL mip.capture_writeset = off;
UPDATE a SET n = 0 WHERE id = 1;
SAVEPOINT s;
SET mip.capture_writeset = on;
ROLLBACK TO s;
SELECT mip.writeset();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- a transaction is captured as a whole or not at all
CREATE FUNCTION captured() RETURNS void LANGUAGE sql SET mip.capture_writeset = on AS 'UPDATE c.a SET n = 0 WHERE id = 1';
SET mip.capture_writeset = off;
BEGIN;
SELECT captured();
UPDATE a SET n = 0 WHERE id = 2;
SELECT changes FROM mip.writeset_info(mip.writeset());
ROLLBACK;
BEGIN;
SELECT mip.writeset();
ROLLBACK;
SELECT mip.writeset(NULL);
SET mip.capture_writeset = on;
SELECT mip.writeset(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT mip.writeset(0, 0);
\echo :LAST_ERROR_SQLSTATE

-- rights
CREATE ROLE mip_capture_user;
GRANT USAGE ON SCHEMA c TO mip_capture_user;
GRANT INSERT, UPDATE, DELETE ON f, a, p TO mip_capture_user;
GRANT SELECT ON p TO mip_capture_user;
GRANT ALL ON test.seen TO mip_capture_user;
GRANT USAGE ON SCHEMA test TO mip_capture_user;
SET ROLE mip_capture_user;
BEGIN;
INSERT INTO p VALUES (1, 1, 'x');
SELECT op, relation FROM mip.writeset_changes(mip.writeset());
INSERT INTO f VALUES (99);
SELECT mip.writeset();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT * FROM mip.relation_writeset('f');
SELECT mip.relation_checksum('f');
SELECT mip.relation_checksum('p');
RESET ROLE;
-- as by SQL the schema's, too, though by OID it need not be named
SELECT 'p'::regclass::oid AS p \gset
REVOKE USAGE ON SCHEMA c FROM mip_capture_user;
SET ROLE mip_capture_user;
SELECT mip.relation_checksum(:p);
\echo :LAST_ERROR_SQLSTATE
SELECT mip.relation_writeset(:p);
RESET ROLE;
GRANT USAGE ON SCHEMA c TO mip_capture_user;
GRANT SELECT ON f TO mip_capture_user;
ALTER TABLE f ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON f USING (id > 50);
SET ROLE mip_capture_user;
BEGIN;
INSERT INTO f VALUES (99);
SELECT mip.writeset();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT mip.relation_checksum('f');
RESET ROLE;

-- whole tables
INSERT INTO p VALUES (1, 1, 'one'), (2, 2, NULL), (3, 1, 'three');
SELECT op, relation, "row" FROM mip.relation_writeset('p') w, mip.writeset_changes(w);
SELECT count(*) > 3 AS parts, bool_and(octet_length(w) <= 1500 OR changes = 1) AS short,
	sum(changes) = (SELECT count(*) FROM a) AS complete, max(last) = (SELECT count(*) FROM a) AS numbered
	FROM mip.relation_writeset('a', 1500) w, mip.writeset_info(w);
SELECT count(*) FROM mip.relation_writeset('h');
CREATE VIEW v AS SELECT 1;
SELECT mip.relation_writeset('v');
\echo :LAST_ERROR_SQLSTATE
SELECT mip.relation_checksum('h');
CREATE TABLE other (gone int, v text, part int, id int) USING heap;
ALTER TABLE other DROP gone;
INSERT INTO other SELECT v, part, id FROM p ORDER BY id DESC;
SELECT mip.relation_checksum('p') = mip.relation_checksum('other') AS same, mip.relation_checksum('p') LIKE '3:%' AS counted;
SET DateStyle = 'German';
CREATE TABLE dates AS SELECT ARRAY[DATE '2020-01-02'] AS d;
SELECT mip.relation_checksum('dates') AS german \gset
RESET DateStyle;
SELECT mip.relation_checksum('dates') = :'german' AS same;
UPDATE other SET v = 'two' WHERE id = 2;
SELECT mip.relation_checksum('p') = mip.relation_checksum('other') AS same;
-- values that change places
UPDATE other SET v = CASE id WHEN 1 THEN 'three' WHEN 3 THEN 'one' END;
SELECT mip.relation_checksum('p') = mip.relation_checksum('other') AS same;

-- at SERIALIZABLE
SET mip.capture_writeset = on;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE a SET n = 0 WHERE id = 1;
SELECT changes FROM mip.writeset_info(mip.writeset());
COMMIT;

-- No room for the temporary file: what is left of it must not fail the commit, nor lose what is kept in memory.
CREATE TABLE room (id int) USING mip;
\set VERBOSITY sqlstate
SET work_mem = '64kB';
BEGIN;
INSERT INTO room VALUES (0);
SAVEPOINT s;
SET LOCAL temp_file_limit = '40kB';
INSERT INTO room SELECT generate_series(1, 5000);
ROLLBACK TO s;
SELECT changes FROM mip.writeset_info(mip.writeset());
COMMIT;
BEGIN;
INSERT INTO room SELECT generate_series(1, 2000);
SAVEPOINT s;
SET LOCAL temp_file_limit = '40kB';
INSERT INTO room SELECT generate_series(1, 5000);
ROLLBACK TO s;
INSERT INTO room SELECT generate_series(2001, 5000);
SELECT count(DISTINCT row), count(*) FROM mip.writeset_changes(mip.writeset());
COMMIT;
RESET work_mem;
\set VERBOSITY default

SET client_min_messages = warning;
DROP OWNED BY mip_capture_user;
DROP ROLE mip_capture_user;
DROP SCHEMA c, test CASCADE;
