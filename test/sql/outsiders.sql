-- An outsider's statement against two siblings. It must wait exactly if it
-- would wait, on heap tables, for one of the two; siblings must not wait,
-- neither for each other nor for an outsider that waits for one of them; in
-- the end the outsider must get what it would get beside the winner alone.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set pairs :srcdir '/sql/include/pairs.psql'
\set outsiders :srcdir '/sql/include/outsiders.psql'
\set ECHO none
\i :sessions
\i :pairs
\i :outsiders
\set ECHO all
SELECT test.open('t1', 't2', 'u', 'c', 'ref', 'refu');
CALL test.all_trios(2);
SELECT test.check('sib.p'), test.check('sib.c'), test.difference();
VACUUM (FREEZE, ANALYZE) sib.p, sib.c;
SELECT test.check('sib.p'), test.check('sib.c'), test.difference();
SELECT test.corruption('sib.p');
SELECT test.corruption('sib.c');
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.close('t1', 't2', 'u', 'c', 'ref', 'refu');
