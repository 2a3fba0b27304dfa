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
