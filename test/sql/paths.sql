-- Whatever the plan, an instance sees its own work over rows that a sibling
-- uses, and nothing of the sibling's: along each access path it is compared to
-- what the same statements do to heap tables.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set paths :srcdir '/sql/include/paths.psql'
\set ECHO none
\i :sessions
\i :paths
\set ECHO all
\pset format unaligned
\pset tuples_only on
SET lock_timeout = '30s';
SELECT test.open('t1', 't2', 'ref', 'c');
SELECT path.start_again();
SELECT test.run(s, 'SET plan_cache_mode = force_generic_plan'),
	test.run(s, 'PREPARE kept(int) AS SELECT string_agg(id::text, '' '' ORDER BY id) FROM t WHERE id < $1')
FROM unnest('{t1,t2,ref,c}'::text[]) s;
SELECT path.scenario('paths-a', 'READ COMMITTED', 'active', 1);
SELECT path.start_again();
SELECT path.scenario('paths-b', 'REPEATABLE READ', 'active', 2);
SELECT path.start_again();
SELECT path.scenario('paths-c', 'REPEATABLE READ', 'prepared', 1);
SELECT path.start_again();
SELECT path.scenario('paths-d', 'READ COMMITTED', 'prepared', 2);
SELECT path.start_again();
SELECT path.scenario('paths-e', 'READ COMMITTED', 'rolled back', 2);
SELECT rel, test.corruption(rel) FROM unnest('{sib.t,sib.q1,sib.q2,sib.i,sib.i1}'::regclass[]) rel;
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.close('t1', 't2', 'ref', 'c');
\set VERBOSITY terse
SET client_min_messages = warning;
DROP SCHEMA ref, sib, path CASCADE;
