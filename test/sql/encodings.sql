-- Clients and databases of other encodings. What is shown here is ASCII.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set code '\\echo SQLSTATE :SQLSTATE'
\set ECHO none
\i :sessions
\set ECHO all
SELECT current_database() AS here \gset

-- A client that lacks a character of the result learns of the commit anyway
BEGIN;
SELECT mip.begin('encodings 1', 1);
SELECT xinst, state FROM mip.commit_one_phase(U&'\65e5', U&'\65e5 \00e9 \+01f600');
SET client_encoding = LATIN1;
BEGIN;
SELECT mip.begin('encodings 1', 2);
:code
ROLLBACK;
SELECT xinst, state FROM mip.commit('encodings 1', 1);
SELECT result FROM mip.instances('encodings 1');
:code
-- one that could not be told of its own result is not prepared
BEGIN;
SELECT mip.begin('encodings 2', 1);
SELECT result FROM mip.prepare(NULL, U&'\65e5');
:code
SELECT count(*) FROM mip.instances('encodings 2');
-- bytes count as they are in the database: here two each
BEGIN;
SELECT mip.begin(repeat(U&'\00e9', 65), 1);
:code
ROLLBACK;
SET client_encoding = SJIS;
BEGIN;
SELECT mip.begin('encodings 3' || U&'\65e5', 1);
SELECT xinst, state FROM mip.prepare(U&'\65e5', U&'\65e5');
SELECT xinst, length(xid), request = U&'\65e5' FROM mip.in_doubt;
SELECT xinst, state FROM mip.commit('encodings 3' || U&'\65e5', 1);
RESET client_encoding;

-- The detail of MP001 is JSON of the very result
SELECT test.open('a'), test.begin('a', 'encodings 4', 1);
SELECT test.run('a', 'SELECT state FROM mip.commit_one_phase(NULL,'
	' (SELECT string_agg(chr(i), '''') FROM generate_series(1, 70000) i WHERE i NOT BETWEEN 55296 AND 57343))');
SELECT test.run('a', 'BEGIN');
DO $$
DECLARE detail text;
BEGIN
	PERFORM * FROM dblink('a', 'SELECT mip.begin(''encodings 4'', 2)') AS t(r text);
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RAISE NOTICE 'SQLSTATE %, xinst %, same %, ASCII %', SQLSTATE, detail::json ->> 'xinst',
		detail::json ->> 'result' = (SELECT result FROM mip.instances('encodings 4')), octet_length(detail) = length(detail);
END $$;
SELECT test.close('a');

-- A database without an encoding takes any bytes but zero
CREATE DATABASE mip_bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C';
\c mip_bytes
SET client_min_messages = warning;
CREATE EXTENSION pg_mip;
RESET client_min_messages;
SET bytea_output = hex;
BEGIN;
SELECT mip.begin(E'\xff\xfe', 1, ARRAY[E'\xfd', E'\x81']);
SELECT xinst, state, result::bytea FROM mip.prepare(E'\xc3', E'\xc3\x28"');
SELECT xid::bytea, request::bytea, array_to_string(sites, ',')::bytea FROM mip.in_doubt;
SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE E'mip:%:\xff\xfe';
SELECT xinst, state FROM mip.commit(E'\xff\xfe', 1);
BEGIN;
SELECT mip.begin(E'\xff\xfe', 2);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('utf8', 1);
SELECT state FROM mip.commit_one_phase(NULL, E'\xe6\x97\xa5');
BEGIN;
SELECT mip.begin('utf8', 2);
:code
ROLLBACK;

-- Its writesets are for who takes their bytes
CREATE TABLE bytes (k int PRIMARY KEY, v text) USING mip;
BEGIN;
SET LOCAL mip.capture_writeset = on;
INSERT INTO bytes VALUES (1, E'\xff');
SELECT mip.writeset() AS w \gset
ROLLBACK;
SELECT mip.writeset_apply(:'w');
\c :here
CREATE TABLE bytes (k int PRIMARY KEY, v text) USING mip;
SELECT mip.writeset_apply(:'w');
:code
DROP TABLE bytes;

-- A database of another encoding
\c :here
CREATE DATABASE mip_latin1 ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C';
\c mip_latin1
CREATE EXTENSION pg_mip;
SET client_encoding = UTF8;
BEGIN;
SELECT mip.begin(repeat(chr(233), 128), 1);
SELECT xinst, state FROM mip.prepare(NULL, chr(233));
SELECT octet_length(xid) FROM mip.in_doubt;
SELECT xinst, state FROM mip.commit(repeat(chr(233), 128), 1);
BEGIN;
SELECT mip.begin(repeat(chr(233), 128), 2);
:code
ROLLBACK;
\c :here
DROP DATABASE mip_bytes;
DROP DATABASE mip_latin1;
