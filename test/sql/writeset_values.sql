-- Values that a table takes, refuses, or changes: as an INSERT or UPDATE with them would.
\pset format unaligned
\pset tuples_only on
CREATE SCHEMA wv;
SET search_path = wv, public;

/*
 * What do INSERT, UPDATE and mip.writeset_apply make of a value, in a table with a column
 * of `type`? The writeset is of the same table while the column was of type `wide`.
 */
CREATE FUNCTION outcome(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE result text;
BEGIN
	EXECUTE sql;
	SELECT string_agg(coalesce(quote_literal(v), 'NULL'), ', ') INTO result FROM (SELECT v::text FROM wv.t) x;
	RAISE SQLSTATE 'UNDO0' USING MESSAGE = result;
EXCEPTION
	WHEN SQLSTATE 'UNDO0' THEN RETURN SQLERRM;
	WHEN OTHERS THEN RETURN SQLSTATE || ' ' || SQLERRM;
END $$;

CREATE PROCEDURE compare(wide text, narrow text, value text) LANGUAGE plpgsql AS $$
DECLARE
	inserted bytea;
	updated bytea;
	results text[];
	literal text := coalesce(quote_literal(value) || '::' || wide, 'NULL');
BEGIN
	SET LOCAL client_min_messages = warning;
	DROP TABLE IF EXISTS wv.t;
	EXECUTE format('CREATE TABLE wv.t (id int PRIMARY KEY, v %s) USING mip', wide);
	INSERT INTO wv.t VALUES (2, NULL);
	COMMIT;
	SET LOCAL mip.capture_writeset = on;
	EXECUTE format('INSERT INTO wv.t VALUES (1, %s)', literal);
	inserted := mip.writeset();
	ROLLBACK;
	SET LOCAL mip.capture_writeset = on;
	EXECUTE format('UPDATE wv.t SET v = %s WHERE id = 2', CASE WHEN value IS NULL THEN 'NULL' ELSE literal END);
	updated := mip.writeset();
	ROLLBACK;
	DROP TABLE wv.t;
	EXECUTE format('CREATE TABLE wv.t (id int PRIMARY KEY, v %s) USING mip', narrow);
	results := ARRAY[outcome(format('INSERT INTO wv.t VALUES (1, %s)', literal)),
		outcome(format('SELECT mip.writeset_apply(%L)', inserted))];
	IF results[1] = results[2] THEN
		RAISE INFO '% in %: %', value, narrow, results[1];
	ELSE
		RAISE INFO '% in %: DIFFERENT %', value, narrow, results;
	END IF;
	DROP TABLE wv.t;
	EXECUTE format('CREATE TABLE wv.t (id int PRIMARY KEY, v %s) USING mip', wide);
	INSERT INTO wv.t VALUES (2, NULL);
	EXECUTE format('ALTER TABLE wv.t ALTER v TYPE %s', replace(narrow, ' NOT NULL', ''));
	results := ARRAY[outcome(format('UPDATE wv.t SET v = %s', literal)),
		outcome(format('SELECT mip.writeset_apply(%L)', updated))];
	IF results[1] <> results[2] THEN
		RAISE INFO '% in %, updated: DIFFERENT %', value, narrow, results;
	END IF;
	COMMIT;
END $$;

-- Lengths and precision
CALL compare('varchar', 'varchar(3)', 'abc');
CALL compare('varchar', 'varchar(3)', 'abc   ');
CALL compare('varchar', 'varchar(3)', 'abcd');
CALL compare('char(9)', 'char(3)', 'ab');
CALL compare('char(9)', 'char(3)', 'abcd');
CALL compare('bit(5)', 'bit(3)', '10101');
CALL compare('bit(2)', 'bit(3)', '10');
CALL compare('varbit', 'varbit(3)', '1010');
CALL compare('numeric', 'numeric(5,2)', '123.456');
CALL compare('numeric', 'numeric(5,2)', '1234.5');
CALL compare('numeric', 'numeric(5,2)', 'NaN');
CALL compare('timestamp', 'timestamp(0)', '2026-01-01 12:00:00.6');
CALL compare('timestamptz', 'timestamptz(1)', '2026-01-01 12:00:00.666+1');
CALL compare('time', 'time(0)', '12:00:00.5');
CALL compare('timetz', 'timetz(2)', '12:00:00.555+2');
CALL compare('interval', 'interval(0)', '1 day 0.7 s');
CALL compare('interval', 'interval day', '1 day 5 h');
CALL compare('varchar[]', 'varchar(3)[]', '{abc,"abc  ",NULL}');
CALL compare('varchar[]', 'varchar(3)[]', '{abc,abcd}');
CALL compare('numeric[]', 'numeric(3,1)[]', '{1.26,NULL}');
CALL compare('numeric[]', 'numeric(3,1)[]', '{126}');
CALL compare('timestamp[]', 'timestamp(0)[]', '{2026-01-01 12:00:00.6}');

-- Domains: what has been added to one since the writeset was taken, or else where.
CREATE PROCEDURE compare_domain(base text, added text, value text) LANGUAGE plpgsql AS $$
DECLARE
	w bytea[];
	literal text := coalesce(quote_literal(value), 'NULL');
	results text[];
BEGIN
	SET LOCAL client_min_messages = warning;
	DROP TABLE IF EXISTS wv.t;
	DROP DOMAIN IF EXISTS wv.d;
	EXECUTE format('CREATE DOMAIN wv.d AS %s', base);
	CREATE TABLE wv.t (id int PRIMARY KEY, v wv.d, other int) USING mip;
	INSERT INTO wv.t VALUES (2);
	COMMIT;
	SET LOCAL mip.capture_writeset = on;
	EXECUTE format('INSERT INTO wv.t VALUES (1, %s)', literal);
	w[1] := mip.writeset();
	ROLLBACK;
	IF value IS NULL THEN
		UPDATE wv.t SET v = '7';
	END IF;
	COMMIT;
	SET LOCAL mip.capture_writeset = on;
	EXECUTE format('UPDATE wv.t SET v = %s', literal);
	w[2] := mip.writeset();
	ROLLBACK;
	TRUNCATE wv.t;
	INSERT INTO wv.t VALUES (2, CASE WHEN value IS NULL OR added LIKE '%NULL' THEN '7'::text END::wv.d);
	EXECUTE format('ALTER DOMAIN wv.d %s', added);
	results := ARRAY[outcome(format('INSERT INTO wv.t VALUES (1, %s)', literal)),
		outcome(format('SELECT mip.writeset_apply(%L)', w[1]))];
	RAISE INFO '% in % %: %', value, base, added,
		CASE WHEN results[1] = results[2] THEN results[1] ELSE 'DIFFERENT ' || results::text END;
	results := ARRAY[outcome(format('UPDATE wv.t SET v = %s', literal)),
		outcome(format('SELECT mip.writeset_apply(%L)', w[2]))];
	IF results[1] <> results[2] THEN
		RAISE INFO '% in % %, updated: DIFFERENT %', value, base, added, results;
	END IF;
	COMMIT;
END $$;
CALL compare_domain('int', 'SET NOT NULL', NULL);
CALL compare_domain('int', 'SET NOT NULL', '5');
CALL compare_domain('int', 'ADD CHECK (VALUE IS NOT NULL)', NULL);
CALL compare_domain('int', 'ADD CHECK (VALUE < 9)', '9');
CALL compare_domain('int', 'ADD CHECK (VALUE < 9)', NULL);
CALL compare_domain('varchar(3)', 'ADD CHECK (VALUE < ''x'')', 'abc');
CALL compare_domain('text[]', 'ADD CHECK (VALUE[1] > ''x'')', '{a}');
-- functions of its checks find the session's settings
CREATE FUNCTION helper() RETURNS text LANGUAGE sql AS $$ SELECT current_setting('DateStyle') $$;
CREATE FUNCTION checks(v text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN helper() = 'German, DMY'; END $$;
SET DateStyle = German;
CALL compare_domain('text', 'ADD CHECK (wv.checks(VALUE))', 'a');
RESET DateStyle;

-- A row that its domain would not take any more is found, and what is not changed of it is not looked at.
DROP TABLE t;
DROP DOMAIN d;
CREATE DOMAIN d AS varchar(5);
CREATE TABLE t (v d, n int) USING mip;
CREATE TABLE k (v d PRIMARY KEY, n int) USING mip;
INSERT INTO t VALUES ('abcde', 1), ('b', 2);
INSERT INTO k VALUES ('abcde', 1), ('b', 2);
BEGIN;
SET LOCAL mip.capture_writeset = on;
DELETE FROM t WHERE n = 1;
UPDATE k SET n = 3 WHERE n = 1;
UPDATE k SET v = 'c' WHERE n = 3;
SELECT mip.writeset() AS w \gset
ROLLBACK;
ALTER DOMAIN d ADD CHECK (VALUE NOT LIKE 'abc%') NOT VALID;
SELECT mip.writeset_apply(:'w');
TABLE t;
TABLE k ORDER BY v;

-- Not so by a domain within its type, which is asked for every value.
CREATE TABLE within (v d[]) USING mip;
INSERT INTO within VALUES ('{b}');
BEGIN;
SET LOCAL mip.capture_writeset = on;
DELETE FROM within;
SELECT mip.writeset() AS w \gset
ROLLBACK;
ALTER DOMAIN d ADD CONSTRAINT later CHECK (VALUE <> 'b') NOT VALID;
SELECT mip.writeset_apply(:'w');

-- Labels of an enum, columns of a composite type, that are not there
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE pair AS (a int, b int);
CREATE TABLE moods (id int PRIMARY KEY, m mood, p pair) USING mip;
BEGIN;
SET LOCAL mip.capture_writeset = on;
INSERT INTO moods VALUES (1, 'happy');
SELECT mip.writeset() AS w \gset
ROLLBACK;
BEGIN;
SET LOCAL mip.capture_writeset = on;
INSERT INTO moods VALUES (1, NULL, (1, 2));
SELECT mip.writeset() AS w2 \gset
ROLLBACK;
ALTER TYPE mood RENAME VALUE 'happy' TO 'glad';
ALTER TYPE pair DROP ATTRIBUTE b;
SELECT mip.writeset_apply(:'w');
\echo SQLSTATE :SQLSTATE
SELECT mip.writeset_apply(:'w2');
\echo SQLSTATE :SQLSTATE

-- What its name says is not here.
CREATE TABLE gone ();
CREATE TABLE names (t regclass) USING mip;
BEGIN;
SET LOCAL mip.capture_writeset = on;
INSERT INTO names VALUES ('gone');
SELECT mip.writeset() AS w \gset
ROLLBACK;
DROP TABLE gone;
SELECT mip.writeset_apply(:'w');
\echo SQLSTATE :SQLSTATE
SELECT mip.relation_checksum(999999::oid::regclass);
\echo SQLSTATE :SQLSTATE

-- The session's temporary objects are nothing to values, neither to names in them nor to the code of domains within arrays,
-- which may be executed as somebody else.
CREATE TABLE named (t regtype UNIQUE, r regclass) USING mip;
INSERT INTO named VALUES ('date', 'pg_class');
CREATE FUNCTION is_day(t text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM t::date; RETURN true; END $$;
CREATE DOMAIN day AS text CHECK (wv.is_day(VALUE));
CREATE TABLE days (id int PRIMARY KEY, d day[]) USING mip;
BEGIN;
SET LOCAL mip.capture_writeset = on;
INSERT INTO days VALUES (1, '{2026-01-01}');
UPDATE named SET t = 'int4';
SELECT mip.writeset() AS w, mip.relation_checksum('named') AS sum \gset
ROLLBACK;
CREATE FUNCTION pg_temp.told(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'executed by %', current_user; END $$;
CREATE DOMAIN pg_temp.date AS text CHECK (pg_temp.told(VALUE));
CREATE TEMP TABLE pg_class (x int);
BEGIN;
SET LOCAL mip.capture_writeset = on;
UPDATE named SET t = 'bigint';
SELECT identity, "row" FROM mip.writeset_changes(mip.writeset());
SELECT mip.writeset_conflicts(mip.writeset(), :'w');
UPDATE named SET t = 'integer';
SELECT mip.relation_checksum('named') = :'sum' AS same;
ROLLBACK;
SELECT mip.writeset_apply(:'w');
SELECT d FROM days;
DROP DOMAIN pg_temp.date;
DROP TABLE pg_temp.pg_class;
-- A made one, in EUC_JP: two names of columns that are one in UTF-8.
CREATE TABLE public.t27 ("№" int, b int);
INSERT INTO public.t27 VALUES (5, 6);
\set made '\\x4d4950570100000101000000000000008a0000000000000001000000000000000100000000000000000000000000000001000000000000000000000001000000320000000c0000000100000077067075626c696303743237020102ade207696e746567657201038fa2f107696e746567657235efaddeb644cd8c4400090005000000050000009861dfc4'
SELECT mip.writeset_apply(:'made');
\echo SQLSTATE :SQLSTATE
SELECT op, relation FROM mip.writeset_changes(:'made');
\echo SQLSTATE :SQLSTATE
SELECT deleted, relations FROM mip.writeset_info(:'made');
TABLE public.t27;
DROP TABLE public.t27;

SET client_min_messages = warning;
DROP SCHEMA wv CASCADE;
