-- Pairs of siblings as in pairs.sql, over everything else that a table can
-- have: index access methods, exclusion and deferrable constraints, triggers,
-- partitions, foreign keys that restrict or set null, cached plans.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set pairs :srcdir '/sql/include/pairs.psql'
\set features :srcdir '/sql/include/features.psql'
\set ECHO none
\i :sessions
\i :pairs
\i :features
\set ECHO all
SELECT test.open('t1', 't2', 'ref', 'c');
CALL test.all_pairs(5);
SELECT test.check(rel), rel FROM unnest('{sib.x,sib.y,sib.q1,sib.q2,sib.l}'::regclass[]) rel;
SELECT test.difference();
VACUUM (FREEZE, ANALYZE) sib.x, sib.y, sib.q, sib.l;
SELECT test.check(rel), rel FROM unnest('{sib.x,sib.y,sib.q1,sib.q2,sib.l}'::regclass[]) rel;
SELECT test.difference();
SELECT rel, test.corruption(rel) FROM unnest('{sib.x,sib.y,sib.q1,sib.q2,sib.l}'::regclass[]) rel;
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.close('t1', 't2', 'ref', 'c');
