-- Writesets that other majors have made of the same changes are applied, come to the same,
-- and have the same keys. With another major, or another format, save one more:
-- psql -XAtq -f test/sql/include/writeset_save.psql > test/sql/include/writeset_19.hex
\getenv srcdir PG_ABS_SRCDIR
SET client_min_messages = warning;
CREATE SCHEMA every;
\set every :srcdir '/sql/include/writeset_every.psql'
\set saved :srcdir '/sql/include/writeset_'
\set ECHO none
\i :every
\set ECHO all
CREATE FUNCTION keys(w bytea) RETURNS bytea LANGUAGE sql AS $$
	SELECT substr(w, 73, 9 * keys::int) FROM mip.writeset_info(w)
$$;
\set file :saved '15.hex'
\set hex `cat :'file'`
SELECT decode(:'hex', 'hex') AS made_by_15 \gset
\set file :saved '17.hex'
\set hex `cat :'file'`
SELECT decode(:'hex', 'hex') AS made_by_17 \gset
\set file :saved '18.hex'
\set hex `cat :'file'`
SELECT decode(:'hex', 'hex') AS made_by_18 \gset
SELECT * FROM mip.writeset_changes(:'made_by_15') EXCEPT SELECT * FROM mip.writeset_changes(:'made');
SELECT * FROM mip.writeset_changes(:'made_by_17') EXCEPT SELECT * FROM mip.writeset_changes(:'made');
SELECT * FROM mip.writeset_changes(:'made_by_18') EXCEPT SELECT * FROM mip.writeset_changes(:'made');
SELECT * FROM mip.writeset_changes(:'made') EXCEPT SELECT * FROM mip.writeset_changes(:'made_by_17');
SELECT * FROM mip.writeset_changes(:'made') EXCEPT SELECT * FROM mip.writeset_changes(:'made_by_18');
SELECT keys(:'made') = keys(:'made_by_15'), keys(:'made') = keys(:'made_by_17'), keys(:'made') = keys(:'made_by_18');
BEGIN;
SELECT mip.writeset_apply(:'made_by_15');
SELECT every::text FROM every ORDER BY id;
SELECT * FROM loose;
ROLLBACK;
BEGIN;
SELECT mip.writeset_apply(:'made_by_17');
SELECT every::text FROM every ORDER BY id;
SELECT * FROM loose;
ROLLBACK;
BEGIN;
SELECT mip.writeset_apply(:'made_by_18');
SELECT every::text FROM every ORDER BY id;
SELECT * FROM loose;
ROLLBACK;
DROP SCHEMA every CASCADE;

-- A type whose name, and schema, are keywords from 16 on: as 15 and 17 wrote it, whatever is quoted in this session.
CREATE SCHEMA "system_user";
CREATE DOMAIN "system_user"."json_scalar" AS text;
CREATE TABLE public.keywords (id int PRIMARY KEY, v "system_user"."json_scalar"[], u uuid, c "char") USING mip;
SET quote_all_identifiers = on;
BEGIN;
SELECT mip.writeset_apply('\x4d4950570100000659d313a5e3584c77ea00000000000000010000000000000001000000000000000100000000000000000000000000000002000000010000006f0000001d00000097929c62a060319b8f9a8ca27ef53af40103814000006b067075626c6963086b6579776f726473040502696407696e74656765720001761973797374656d5f757365722e6a736f6e5f7363616c61725b5d0001750f70675f636174616c6f672e757569640001631170675f636174616c6f672e226368617222dd4172d1197e22ec49001a0001000000037b787d00000000000000000000000000000001639389fdf5');
ROLLBACK;
SELECT mip.writeset_apply('\x4d49505701000006c60808697598c3b9ee0000000000000001000000000000000100000000000000010000000000000000000000000000000200000001000000730000001d00000097929c62a060319b8f9a8ca27ef53af40103ad4000006b067075626c6963086b6579776f726473040502696407696e74656765720001761d2273797374656d5f75736572222e226a736f6e5f7363616c6172225b5d0001750f70675f636174616c6f672e757569640001631170675f636174616c6f672e226368617222f9d544b6f22c5cec49001a0001000000037b787d0000000000000000000000000000000163d7564f96');
TABLE public.keywords;
-- Now all write it without.
SELECT position('system_user.json_scalar[]' IN encode(mip.relation_writeset('public.keywords'), 'escape')) > 0;
RESET quote_all_identifiers;
DROP TABLE public.keywords;
DROP SCHEMA "system_user" CASCADE;
