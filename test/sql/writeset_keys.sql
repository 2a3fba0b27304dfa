-- Which changes are in conflict: by all unique keys, old and new, and by foreign keys,
-- with the equality of their types.
SET client_min_messages = warning;
CREATE SCHEMA wk;
SET search_path = wk;
SET mip.capture_writeset = on;

-- The writeset of statements that are undone.
CREATE FUNCTION ws(statements text) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
	w bytea;
BEGIN
	BEGIN
		EXECUTE statements;
		w := mip.writeset();
		RAISE EXCEPTION USING ERRCODE = 'ZZ000';
	EXCEPTION
		WHEN SQLSTATE 'ZZ000' THEN
			RETURN w;
	END;
END $$;

-- Told where it is not as expected, in either direction.
CREATE FUNCTION check_conflict(what text, expected boolean, a text, b text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	x bytea := ws(a);
	y bytea := ws(b);
BEGIN
	IF mip.writeset_conflicts(x, y) IS DISTINCT FROM expected THEN
		RETURN NEXT format('%s: %s', what, NOT expected);
	END IF;
	IF mip.writeset_conflicts(x, y) IS DISTINCT FROM mip.writeset_conflicts(y, x) THEN
		RETURN NEXT format('%s: not the same the other way round', what);
	END IF;
END $$;

CREATE TABLE p (id bigint PRIMARY KEY, u int UNIQUE, v int) USING mip;
CREATE TABLE c (id int PRIMARY KEY, p smallint REFERENCES p ON DELETE CASCADE, v int) USING mip;
CREATE TABLE d (id int PRIMARY KEY, p int REFERENCES p (u)) USING mip;
INSERT INTO p VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO c VALUES (1, 1), (2, 2);

SELECT check_conflict(what, expected, a, b) FROM (VALUES
	('the same row', true, 'UPDATE p SET v = 1 WHERE id = 1', 'UPDATE p SET v = 2 WHERE id = 1'),
	('other rows', false, 'UPDATE p SET v = 1 WHERE id = 1', 'UPDATE p SET v = 1 WHERE id = 2'),
	('update and delete', true, 'UPDATE p SET v = 1 WHERE id = 3', 'DELETE FROM p WHERE id = 3'),
	('insertions of a key', true, 'INSERT INTO p VALUES (9)', 'INSERT INTO p VALUES (9)'),
	('insertions', false, 'INSERT INTO p VALUES (8)', 'INSERT INTO p VALUES (9)'),
	('a second unique key', true, 'INSERT INTO p VALUES (8, 8)', 'UPDATE p SET u = 8 WHERE id = 3'),
	('a second unique key that is given up', true, 'INSERT INTO p VALUES (8, 8)', 'UPDATE p SET u = 8 WHERE id = 3; UPDATE p SET u = 7 WHERE id = 3'),
	('a key that is taken over', true, 'DELETE FROM p WHERE id = 3', 'UPDATE p SET id = 4 WHERE id = 3'),
	('the key left by an update', true, 'UPDATE p SET id = 4 WHERE id = 3', 'UPDATE p SET v = 1 WHERE id = 3'),
	('a reference and an update that leaves the key alone', false, 'INSERT INTO c VALUES (9, 3)', 'UPDATE p SET v = 1 WHERE id = 3'),
	('a reference and an update of another key', false, 'INSERT INTO c VALUES (9, 3)', 'UPDATE p SET u = 9 WHERE id = 3'),
	('a reference to that other key', true, 'INSERT INTO d VALUES (9, 3)', 'UPDATE p SET u = 9 WHERE id = 3'),
	('a reference and a deletion', true, 'INSERT INTO c VALUES (9, 3)', 'DELETE FROM p WHERE id = 3'),
	('a reference set later', true, 'UPDATE c SET p = 3 WHERE id = 1', 'DELETE FROM p WHERE id = 3'),
	('a reference that was there', false, 'UPDATE c SET v = 3 WHERE id = 1', 'UPDATE p SET v = 3 WHERE id = 1'),
	('references', false, 'INSERT INTO c VALUES (9, 3)', 'INSERT INTO c VALUES (10, 3)'),
	('a cascade', true, 'DELETE FROM p WHERE id = 2', 'UPDATE c SET v = 3 WHERE id = 2'),
	('no reference', false, 'INSERT INTO c VALUES (9, NULL)', 'DELETE FROM p WHERE id = 3'),
	('nothing', false, 'SELECT', 'DELETE FROM p'),
	('TRUNCATE', true, 'TRUNCATE c', 'INSERT INTO c VALUES (9)'),
	('TRUNCATE of another table', false, 'TRUNCATE c', 'UPDATE p SET v = 1 WHERE id = 3')
) AS t (what, expected, a, b);

-- Equality, not image.
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE DOMAIN amount AS numeric;
CREATE TYPE known AS (a int, b numeric);
CREATE TYPE tagged AS (a int, m mood);
CREATE FUNCTION check_type(type text, expected boolean, a text, b text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TABLE k (k %s PRIMARY KEY, v int) USING mip', type);
	RETURN QUERY SELECT check_conflict(type, expected, format('INSERT INTO k VALUES (%L)', a), format('INSERT INTO k VALUES (%L)', b));
	DROP TABLE k;
END $$;
SELECT check_type(type, expected, a, b) FROM (VALUES
	('numeric', true, '1.0', '1.00'), ('numeric', false, '1.0', '1.01'), ('numeric', true, 'NaN', 'nan'),
	('amount', true, '1.0', '1.00'), ('amount', false, '1', '2'),
	('float8', true, '0', '-0'), ('float4', true, '0', '-0'), ('float8', true, 'NaN', 'NaN'),
	('char(3)', true, 'a', 'a  '), ('varchar', false, 'a', 'a '), ('name', true, 'a', 'a'),
	('jsonb', true, '{"a": 1.0}', '{"a": 1.00}'), ('jsonb', false, '{"a": 1.0}', '{"a": "1.0"}'),
	('interval', true, '1 mon', '30 days'), ('timetz', false, '10:00+0', '11:00+1'),
	('timestamptz', true, '2000-01-01 10:00+0', '2000-01-01 11:00+1'),
	('inet', false, '10.0.0.1', '10.0.0.1/8'), ('macaddr', true, '08:00:2b:01:02:03', '08002b010203'),
	('uuid', true, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'),
	('numeric[]', true, '{1.0,NULL}', '{1.00,NULL}'), ('numeric[]', false, '{1.0}', '{1,1}'),
	('numrange', true, '[1.0,2)', '[1.00,2.0)'), ('int4range', true, '[1,2]', '[1,3)'),
	('nummultirange', true, '{[1.0,2)}', '{[1.00,2.0)}'),
	('known', true, '(1,1.0)', '(1,1.00)'), ('known', false, '(1,1.0)', '(2,1.00)'),
	('mood', true, 'low', 'low'), ('mood', false, 'low', 'high'),
	('mood[]', true, '{low,high}', '{"low","high"}'), ('mood[]', false, '{low}', '{high}'),
	('regtype', true, 'int', 'integer'), ('regtype', false, 'int', 'text'),
	('bytea', false, '\x00', '\x0000'), ('bool', false, 'true', 'false'), ('"char"', false, 'a', 'b'),
	-- nothing is known of these: any two are
	('tagged', true, '(1,low)', '(2,low)'), ('bit(2)', true, '01', '10'), ('tsvector', true, 'a', 'b')
) AS t (type, expected, a, b);

-- A hash of an enum's OID would be another one in a copy of the database.
CREATE TABLE enums (m mood PRIMARY KEY) USING mip;
SELECT ws($$INSERT INTO enums VALUES ('low')$$) AS before \gset
DROP TYPE mood CASCADE;
CREATE TYPE mood AS ENUM ('another', 'low');
DROP TABLE enums;
CREATE TABLE enums (m mood PRIMARY KEY) USING mip;
SELECT mip.writeset_conflicts(:'before', ws($$INSERT INTO enums VALUES ('low')$$)),
	mip.writeset_conflicts(:'before', ws($$INSERT INTO enums VALUES ('another')$$));

-- Foreign keys whose type is another one than the key's
DO $do$
DECLARE
	t record;
	wrong text;
BEGIN
	FOR t IN VALUES
		('bigint', 'smallint', '1', '2', false), ('smallint', 'bigint', '1', '2', false), ('int', 'int', '-1', '-2', false),
		('numeric', 'int', '1', '2', false), ('numeric', 'numeric(4,2)', '1', '2', false), ('float8', 'float4', '1.5', '2', false),
		('text', 'varchar', 'a', 'b', false), ('text', 'name', 'a', 'b', false), ('varchar(9)', 'text', 'a', 'b', false),
		('text', 'char(3)', 'a', 'b', false), ('char(3)', 'char(9)', 'a', 'b', false), ('amount', 'int', '1', '2', false),
		('timestamp', 'date', '2000-01-01', '2000-01-02', false), ('date', 'timestamp', '2000-01-01', '2000-01-02', false),
		('mood', 'mood', 'low', 'another', false),
		-- which of them are equal depends on the time zone, or is not known: any two are in conflict
		('timestamptz', 'date', '2000-01-01', '2000-01-02', true), ('bit(2)', 'bit(2)', '01', '10', true)
	LOOP
		EXECUTE format('CREATE TABLE k (k %s PRIMARY KEY, v int) USING mip', t.column1);
		EXECUTE format('CREATE TABLE r (k %s REFERENCES k) USING mip', t.column2);
		EXECUTE format('INSERT INTO k VALUES (%L), (%L)', t.column3, t.column4);
		COMMIT;
		FOR wrong IN
			SELECT check_conflict(t.column1 || ' ' || t.column2, expected, format('INSERT INTO r VALUES (%L)', t.column3),
				format('DELETE FROM k WHERE k = %L', value))
			FROM (VALUES (t.column3, true), (t.column4, t.column5)) AS v (value, expected)
		LOOP
			RAISE WARNING '%', wrong;
		END LOOP;
		DROP TABLE k, r;
		COMMIT;
	END LOOP;
END $do$;

-- Partitions: what refers to the whole, or to one of them, meets the row wherever it is.
CREATE TABLE q (id int, k int, v int, PRIMARY KEY (id), UNIQUE (k, id)) PARTITION BY RANGE (id);
CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (10) USING mip;
CREATE TABLE q2 PARTITION OF q FOR VALUES FROM (10) TO (100) PARTITION BY RANGE (id);
CREATE TABLE q21 (v int, gone int, k int, id int NOT NULL) USING mip;
ALTER TABLE q21 DROP COLUMN gone;
ALTER TABLE q2 ATTACH PARTITION q21 FOR VALUES FROM (10) TO (20);
CREATE UNIQUE INDEX ON q21 (v);
CREATE TABLE r (q int REFERENCES q) USING mip;
CREATE TABLE r1 (id int, k int, FOREIGN KEY (id, k) REFERENCES q1 (id, k)) USING mip;
INSERT INTO q VALUES (1, 1), (2, 2), (11, 11), (12, 12);
SELECT check_conflict(what, expected, a, b) FROM (VALUES
	('a partition', true, 'INSERT INTO r VALUES (1)', 'DELETE FROM q WHERE id = 1'),
	('another row', false, 'INSERT INTO r VALUES (1)', 'DELETE FROM q WHERE id = 2'),
	('a partition further down', true, 'INSERT INTO r VALUES (11)', 'DELETE FROM q21 WHERE id = 11'),
	('to a partition, in another order', true, 'INSERT INTO r1 VALUES (1, 1)', 'UPDATE q SET k = 4 WHERE id = 1'),
	('a row that moves', true, 'INSERT INTO r VALUES (2)', 'UPDATE q SET id = 13 WHERE id = 2'),
	('where it moves to', true, 'INSERT INTO q VALUES (13)', 'UPDATE q SET id = 13 WHERE id = 2'),
	('TRUNCATE of all', true, 'TRUNCATE q CASCADE', 'INSERT INTO q21 VALUES (1, 1, 13)'),
	('TRUNCATE of another one', false, 'TRUNCATE q1 CASCADE', 'INSERT INTO q21 VALUES (1, 1, 13)'),
	('a key of one partition', true, 'INSERT INTO q21 VALUES (1, 1, 13)', 'INSERT INTO q21 VALUES (1, 1, 14)')
) AS t (what, expected, a, b);

-- Where copies have other partitions, too
SELECT ws('INSERT INTO q VALUES (5, 5)') AS row, ws('INSERT INTO r VALUES (1)') AS reference \gset
DROP TABLE r1;
DELETE FROM r;
ALTER TABLE q DETACH PARTITION q1;
CREATE TABLE q3 PARTITION OF q FOR VALUES FROM (0) TO (10) USING mip;
INSERT INTO q VALUES (1, 1), (2, 2);
SELECT mip.writeset_conflicts(:'row', ws('INSERT INTO q VALUES (5, 6)')),
	mip.writeset_conflicts(:'row', ws('INSERT INTO q VALUES (6, 6)')),
	mip.writeset_conflicts(:'reference', ws('DELETE FROM q WHERE id = 1')),
	mip.writeset_conflicts(:'reference', ws('DELETE FROM q WHERE id = 2'));

-- A reference that nothing has checked, and which no key can be
CREATE TABLE s (id smallint PRIMARY KEY) USING mip;
CREATE TABLE s_ref (s bigint REFERENCES s) USING mip;
SET session_replication_role = replica;
SELECT mip.writeset_conflicts(ws('INSERT INTO s_ref VALUES (70000)'), ws('INSERT INTO s VALUES (4464)'));
RESET session_replication_role;

-- Nulls, predicates, expressions, exclusion constraints
CREATE TABLE n (id int PRIMARY KEY, a int, b int, UNIQUE NULLS NOT DISTINCT (a, b)) USING mip;
CREATE TABLE m (id int PRIMARY KEY, a int, b int, UNIQUE (a, b)) USING mip;
CREATE TABLE o (id int PRIMARY KEY, a int, live boolean, name text) USING mip;
CREATE UNIQUE INDEX ON o (a) WHERE live;
CREATE UNIQUE INDEX ON o (lower(name));
CREATE TABLE e (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&)) USING mip;
CREATE TABLE o2 (a int NOT NULL, b int) USING mip;
CREATE UNIQUE INDEX o2_aa ON o2 (a, a);
ALTER TABLE o2 REPLICA IDENTITY USING INDEX o2_aa;
CREATE TABLE o3 (a int PRIMARY KEY, b int, c int) USING mip;
CREATE UNIQUE INDEX ON o3 (b) NULLS NOT DISTINCT WHERE c IS NULL AND b IS NULL;
CREATE UNIQUE INDEX ON o3 (abs(a)) INCLUDE (b);
INSERT INTO o2 VALUES (5, 5);
INSERT INTO o3 VALUES (5, 5, 5);
INSERT INTO o VALUES (1, 1, false, 'A'), (2, 2, true, 'B'), (3, 3, false, NULL);
INSERT INTO e VALUES (1, '[1,2)'), (2, '[5,6)');
SELECT check_conflict(what, expected, a, b) FROM (VALUES
	('nulls that are equal', true, 'INSERT INTO n VALUES (1, 1, NULL)', 'INSERT INTO n VALUES (2, 1, NULL)'),
	('nulls in another place', false, 'INSERT INTO n VALUES (1, 1, NULL)', 'INSERT INTO n VALUES (2, NULL, 1)'),
	('nulls that are not', false, 'INSERT INTO m VALUES (1, 1, NULL)', 'INSERT INTO m VALUES (2, 1, NULL)'),
	('outside of the predicate', false, 'INSERT INTO o VALUES (8, 9, false)', 'INSERT INTO o VALUES (9, 9, true)'),
	('within it', true, 'INSERT INTO o VALUES (8, 9, true)', 'INSERT INTO o VALUES (9, 9, true)'),
	('coming into it', true, 'UPDATE o SET live = true WHERE id = 1', 'INSERT INTO o VALUES (9, 1, true)'),
	('leaving it', true, 'UPDATE o SET live = false WHERE id = 2', 'INSERT INTO o VALUES (9, 2, false); UPDATE o SET live = false WHERE id = 2; UPDATE o SET live = true WHERE id = 9'),
	('a column twice', true, 'INSERT INTO o2 VALUES (1, 1)', 'INSERT INTO o2 VALUES (1, 2)'),
	('a column twice, other values', false, 'INSERT INTO o2 VALUES (1, 1)', 'INSERT INTO o2 VALUES (2, 1)'),
	('a column twice, of which nothing changes', true, 'UPDATE o2 SET b = 3 WHERE a = 5', 'UPDATE o2 SET b = 4 WHERE a = 5'),
	('its value', true, 'UPDATE o2 SET a = 6 WHERE a = 5', 'INSERT INTO o2 VALUES (6, 1)'),
	('columns that are only included', false, 'INSERT INTO o3 VALUES (1, 1)', 'INSERT INTO o3 VALUES (2, 1)'),
	('beside included columns', true, 'INSERT INTO o3 VALUES (1, 1)', 'INSERT INTO o3 VALUES (1, 2)'),
	('included columns change', false, 'UPDATE o3 SET b = 1 WHERE a = 5', 'INSERT INTO o3 VALUES (4, 2)'),
	('partial, nulls are equal', true, 'INSERT INTO o3 VALUES (1, NULL, NULL)', 'INSERT INTO o3 VALUES (2, NULL, NULL)'),
	('outside of the predicate, nulls', false, 'INSERT INTO o3 VALUES (1, NULL, 1)', 'INSERT INTO o3 VALUES (2, NULL, NULL)'),
	('equal expressions', true, $$UPDATE o SET name = 'x' WHERE id = 1$$, $$INSERT INTO o VALUES (9, 9, false, 'X')$$),
	('an expression that stays', false, $$UPDATE o SET name = 'a' WHERE id = 1$$, $$INSERT INTO o VALUES (9, 9, false, 'c')$$),
	('exclusion', true, $$INSERT INTO e VALUES (8, '[10,20)')$$, $$INSERT INTO e VALUES (9, '[15,25)')$$),
	('exclusion, and any other change', true, $$INSERT INTO e VALUES (9, '[15,25)')$$, 'DELETE FROM e WHERE id = 1'),
	('exclusion that is not concerned', false, 'UPDATE e SET r = r WHERE id = 1', 'UPDATE e SET r = r WHERE id = 2'),
	('exclusion, no value', false, 'INSERT INTO e VALUES (8)', 'INSERT INTO e VALUES (9)')
) AS t (what, expected, a, b);

-- The owner's code runs with his rights, whoever extracts.
CREATE ROLE mip_owner;
GRANT USAGE, CREATE ON SCHEMA wk TO mip_owner;
SET ROLE mip_owner;
CREATE FUNCTION who(int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN current_user || $1; END $$;
CREATE TABLE w (id int, s text) USING mip;
CREATE UNIQUE INDEX ON w (who(id));
RESET ROLE;
SELECT ws('INSERT INTO w VALUES (1)') AS x \gset
SET ROLE mip_owner;
SELECT mip.writeset_conflicts(:'x', ws('INSERT INTO w VALUES (1)'));
RESET ROLE;

-- It finds nothing of the caller's there: not his temporary tables, either. So who has any does not have it run.
SET ROLE mip_owner;
CREATE FUNCTION lowered(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM FROM pg_class WHERE relname = ''; RETURN lower($1); END $$;
CREATE TABLE own (id int PRIMARY KEY, s text) USING mip;
CREATE UNIQUE INDEX ON own (lowered(s));
RESET ROLE;
CREATE FUNCTION finds() RETURNS name LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'executed by %', current_user; RETURN 'x'; END $$;
GRANT USAGE ON SCHEMA wk TO PUBLIC;
CREATE ROLE mip_caller;
GRANT SELECT, INSERT, UPDATE ON own TO mip_caller;
\c
SET client_min_messages = warning;
SET search_path = wk;
SET mip.capture_writeset = on;
SET ROLE mip_caller;
BEGIN;
INSERT INTO own VALUES (1, 'x');
SELECT changes, keys FROM mip.writeset_info(mip.writeset());
SELECT mip.writeset() AS computed \gset
ROLLBACK;
CREATE TEMP VIEW pg_class AS SELECT wk.finds() AS relname;
GRANT ALL ON pg_temp.pg_class TO PUBLIC;
BEGIN;
INSERT INTO own VALUES (2, 'x');
SELECT changes, keys FROM mip.writeset_info(mip.writeset());
SELECT mip.writeset_conflicts(mip.writeset(), :'computed');
ROLLBACK;
RESET ROLE;
SET ROLE mip_owner;
INSERT INTO own VALUES (2, 'y');
SET ROLE mip_caller;
BEGIN;
UPDATE own SET s = s WHERE id = 2;
SELECT mip.writeset_conflicts(mip.writeset(), :'computed');
ROLLBACK;
RESET ROLE;
SET ROLE mip_owner;
CREATE OR REPLACE FUNCTION lowered(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM FROM looked_up; RETURN lower($1); END $$;
RESET ROLE;
SET ROLE mip_caller;
CREATE TEMP VIEW looked_up AS SELECT wk.finds() AS relname;
GRANT ALL ON pg_temp.looked_up TO PUBLIC;
INSERT INTO own VALUES (3, 'x');
SELECT keys FROM mip.relation_writeset('own') w, mip.writeset_info(w);
RESET ROLE;
DROP VIEW pg_temp.pg_class, pg_temp.looked_up;
DROP OWNED BY mip_caller;
DROP ROLE mip_caller;

-- Tables without a key, and with one that is deferrable: the old row, by its image
CREATE TABLE l (a int, b json, c float8) USING mip;
CREATE TABLE f (id int PRIMARY KEY DEFERRABLE, v int) USING mip;
INSERT INTO l VALUES (1, '{"a": 1}', 0), (1, '{"a": 1}', 0), (2, NULL, 'NaN');
INSERT INTO f VALUES (1), (2);
SELECT check_conflict(what, expected, a, b) FROM (VALUES
	('the same row', true, 'UPDATE l SET a = 3 WHERE a = 2', 'DELETE FROM l WHERE a = 2'),
	('equal rows', true, 'DELETE FROM l WHERE ctid = (SELECT min(ctid) FROM l)', 'DELETE FROM l WHERE ctid = (SELECT max(ctid) FROM l WHERE a = 1)'),
	('other rows', false, 'DELETE FROM l WHERE a = 1', 'DELETE FROM l WHERE a = 2'),
	('insertions', false, 'INSERT INTO l VALUES (1)', 'INSERT INTO l VALUES (1)'),
	('a deferrable key', true, 'INSERT INTO f VALUES (3)', 'UPDATE f SET id = 3 WHERE id = 1'),
	('a row with a deferrable key', true, 'UPDATE f SET v = 3 WHERE id = 1', 'UPDATE f SET v = 3 WHERE id = 1')
) AS t (what, expected, a, b);

-- Code of an index that changes rows while they are extracted does not make it endless.
CREATE TABLE growing (id int, x int) USING mip;
CREATE FUNCTION grow() RETURNS void LANGUAGE sql AS 'INSERT INTO wk.growing SELECT max(id) + 1, 0 FROM wk.growing';
CREATE FUNCTION grows(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF current_setting('wk.extracts', true) = 'yes' THEN
		PERFORM set_config('wk.extracts', 'grows', true);
		PERFORM wk.grow();
		PERFORM set_config('wk.extracts', 'yes', true);
	END IF;
	RETURN $1;
END $$;
CREATE UNIQUE INDEX ON growing (grows(id));
BEGIN;
INSERT INTO growing VALUES (1, NULL), (2, NULL);
SET LOCAL wk.extracts = 'yes';
SET LOCAL statement_timeout = '10s';
SELECT changes, last FROM mip.writeset_info(mip.writeset());
ROLLBACK;

-- The code of a table's owner is not executed as whoever extracts (a cast), and leaves no settings behind (an index).
CREATE TYPE letter AS ENUM ('a', 'b');
CREATE FUNCTION letter_int(letter) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF current_setting('wk.extracts', true) = 'yes' THEN RAISE EXCEPTION 'executed by %', current_user; END IF;
	RETURN 1;
END $$;
CREATE CAST (letter AS int) WITH FUNCTION letter_int(letter) AS IMPLICIT;
CREATE TABLE one (id int PRIMARY KEY) USING mip;
CREATE TABLE cast_ref (r letter REFERENCES one) USING mip;
CREATE FUNCTION sets(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	PERFORM set_config('wk.set', 'by an index', false), set_config('DateStyle', 'German', false);
	RETURN $1;
END $$;
CREATE TABLE indexed (id int PRIMARY KEY, d date) USING mip;
INSERT INTO one VALUES (1);
INSERT INTO cast_ref VALUES ('a');
INSERT INTO indexed VALUES (1, '2020-01-02'), (2, '2020-01-02');
CREATE UNIQUE INDEX ON indexed (sets(id));
SET wk.set = ''; SET DateStyle = 'ISO, YMD';
BEGIN;
SET LOCAL wk.extracts = 'yes';
SELECT keys FROM mip.relation_writeset('cast_ref') w, mip.writeset_info(w);
SELECT row FROM mip.relation_writeset('indexed') w, mip.writeset_changes(w);
COMMIT;
SELECT current_setting('wk.set'), current_setting('DateStyle');

-- A copy may tell rows by another index.
CREATE TABLE told (id int PRIMARY KEY, u int NOT NULL UNIQUE, v text) USING mip;
INSERT INTO told VALUES (1, 1, ''), (2, 2, '');
SELECT ws($$UPDATE told SET v = 'one' WHERE id = 1$$) AS by_id \gset
ALTER TABLE told REPLICA IDENTITY USING INDEX told_u_key;
SELECT mip.writeset_conflicts(:'by_id', ws($$UPDATE told SET v = 'two' WHERE id = 1$$)),
	mip.writeset_conflicts(:'by_id', ws($$UPDATE told SET v = 'two' WHERE id = 2$$));

-- A type of an extension, which one version of it cannot hash, and the next one can: as in two copies of a database.
CREATE TYPE word;
CREATE FUNCTION word_in(cstring) RETURNS word LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION word_out(word) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE word (INPUT = word_in, OUTPUT = word_out, LIKE = text, COLLATABLE = true);
CREATE FUNCTION word_lt(word, word) RETURNS bool LANGUAGE internal IMMUTABLE STRICT AS 'text_lt';
CREATE FUNCTION word_le(word, word) RETURNS bool LANGUAGE internal IMMUTABLE STRICT AS 'text_le';
CREATE FUNCTION word_eq(word, word) RETURNS bool LANGUAGE internal IMMUTABLE STRICT AS 'texteq';
CREATE FUNCTION word_ge(word, word) RETURNS bool LANGUAGE internal IMMUTABLE STRICT AS 'text_ge';
CREATE FUNCTION word_gt(word, word) RETURNS bool LANGUAGE internal IMMUTABLE STRICT AS 'text_gt';
CREATE FUNCTION word_cmp(word, word) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'bttextcmp';
CREATE FUNCTION word_hash(word) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'hashtext';
CREATE FUNCTION word_hash(word, bigint) RETURNS bigint LANGUAGE internal IMMUTABLE STRICT AS 'hashtextextended';
CREATE OPERATOR < (LEFTARG = word, RIGHTARG = word, FUNCTION = word_lt);
CREATE OPERATOR <= (LEFTARG = word, RIGHTARG = word, FUNCTION = word_le);
CREATE OPERATOR = (LEFTARG = word, RIGHTARG = word, FUNCTION = word_eq, HASHES, MERGES);
CREATE OPERATOR >= (LEFTARG = word, RIGHTARG = word, FUNCTION = word_ge);
CREATE OPERATOR > (LEFTARG = word, RIGHTARG = word, FUNCTION = word_gt);
CREATE OPERATOR CLASS word_ops DEFAULT FOR TYPE word USING btree AS
	OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 word_cmp(word, word);
CREATE TABLE words (w word PRIMARY KEY, v int) USING mip;
CREATE TABLE uses (id int PRIMARY KEY, w word REFERENCES words) USING mip;
CREATE TABLE phrases (w word[] PRIMARY KEY, v int) USING mip;
INSERT INTO words VALUES ('a', 1), ('b', 1);
INSERT INTO phrases VALUES ('{a,b}', 1);
CREATE TABLE said (version int, what text, w bytea);
CREATE FUNCTION say(version int) RETURNS void LANGUAGE sql AS $$
	INSERT INTO wk.said SELECT version, what, wk.ws(statement) FROM (VALUES
		('insert', $s$INSERT INTO wk.words VALUES ('c', 1)$s$), ('update', $s$UPDATE wk.words SET v = 2 WHERE w = 'a'$s$),
		('delete', $s$DELETE FROM wk.words WHERE w = 'a'$s$), ('refer', $s$INSERT INTO wk.uses VALUES (1, 'a')$s$),
		('refer to another', $s$INSERT INTO wk.uses VALUES (2, 'b')$s$),
		('update phrase', 'UPDATE wk.phrases SET v = 2'), ('delete phrase', 'DELETE FROM wk.phrases')) AS s (what, statement) $$;
SELECT say(1);
CREATE OPERATOR CLASS word_hash_ops DEFAULT FOR TYPE word USING hash AS
	OPERATOR 1 =, FUNCTION 1 word_hash(word), FUNCTION 2 word_hash(word, bigint);
SELECT say(2);
-- the same row: always; others, where they are told apart: only if both are hashed
SELECT a.what, b.what, string_agg(DISTINCT mip.writeset_conflicts(a.w, b.w)::text, ' ') AS conflict
	FROM said a JOIN said b ON (a.what, b.what) IN (('insert', 'insert'), ('update', 'update'), ('update', 'delete'),
		('delete', 'delete'), ('delete', 'refer'), ('update phrase', 'delete phrase')) GROUP BY 1, 2 ORDER BY 1, 2;
SELECT a.what, b.what, mip.writeset_conflicts(a.w, b.w) AS conflict
	FROM said a JOIN said b USING (version)
	WHERE version = 2 AND (a.what, b.what) IN (('update', 'refer'), ('insert', 'delete'), ('delete', 'refer to another')) ORDER BY 1, 2;

-- A reference that is corrected before it is checked, and would be out of range as what it refers to
CREATE TABLE moments (t timestamp PRIMARY KEY) USING mip;
CREATE TABLE dates (id int PRIMARY KEY, d date REFERENCES moments DEFERRABLE INITIALLY DEFERRED) USING mip;
INSERT INTO moments VALUES ('2026-01-01');
BEGIN;
INSERT INTO dates VALUES (1, '5000000-01-01');
UPDATE dates SET d = '2026-01-01';
SELECT changes FROM mip.writeset_info(mip.writeset());
COMMIT;

-- Copies with other partitions, without a key
CREATE TABLE parted (a int, v text) PARTITION BY RANGE (a);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100) USING mip;
INSERT INTO parted VALUES (1, 'x');
SELECT ws($$UPDATE parted SET v = 'A'$$) AS here \gset
DROP TABLE parted_1;
CREATE TABLE parted_x PARTITION OF parted FOR VALUES FROM (0) TO (200) USING mip;
INSERT INTO parted VALUES (1, 'x'), (2, 'x');
SELECT mip.writeset_conflicts(:'here', ws('DELETE FROM parted WHERE a = 1')), mip.writeset_conflicts(:'here', ws('DELETE FROM parted WHERE a = 2'));

-- Texts that are equal but for their end
CREATE TABLE padded (k bpchar PRIMARY KEY, v int) USING mip;
INSERT INTO padded VALUES ('a', 1);
BEGIN;
UPDATE padded SET k = 'b';
INSERT INTO padded VALUES ('a ', 2);
UPDATE padded SET k = 'c' WHERE k = 'b';
SELECT mip.writeset() AS w \gset
ROLLBACK;
SELECT mip.writeset_apply(mip.writeset_compact(:'w'));
SELECT v, k || '|' AS k FROM padded ORDER BY v;

-- To opt in decides nothing for a table that has not been changed.
CREATE TABLE opted (id int);
SET mip.capture_writeset = off;
BEGIN;
SELECT mip.enable('opted');
SET LOCAL mip.capture_writeset = on;
INSERT INTO opted VALUES (1);
SELECT changes FROM mip.writeset_info(mip.writeset());
ROLLBACK;

DROP OWNED BY mip_owner;
DROP ROLE mip_owner;
DROP SCHEMA wk CASCADE;
