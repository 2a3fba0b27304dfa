-- Every pair of statements by two siblings, each of them winning once. What
-- each sibling sees, and what is left in the end, must be what the same
-- statement alone does to heap tables.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set pairs :srcdir '/sql/include/pairs.psql'
\set ECHO none
\i :sessions
\i :pairs
\set ECHO all
SELECT test.open('t1', 't2', 'ref', 'c');
CALL test.all_pairs(2);
SELECT test.check('sib.p'), test.check('sib.c'), test.difference();
VACUUM (FREEZE, ANALYZE) sib.p, sib.c;
SELECT test.check('sib.p'), test.check('sib.c'), test.difference();
SELECT test.corruption('sib.p');
SELECT test.corruption('sib.c');
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.close('t1', 't2', 'ref', 'c');
