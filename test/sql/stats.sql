-- What is counted in mip.stats.
CREATE DATABASE mip_stats;
\c mip_stats
CREATE EXTENSION pg_mip;
\getenv srcdir PG_ABS_SRCDIR
\set steps :srcdir '/sql/include/steps.psql'
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\i :steps
\set ECHO all
\set VERBOSITY terse
CREATE TABLE s (id int PRIMARY KEY, v int) USING mip;
INSERT INTO s SELECT n, 0 FROM generate_series(1, 9) n;
SELECT test.open('a', 'b', 'u');

-- Other databases do not count.
SELECT begun, committed_in_one_phase, since <= clock_timestamp() AS started FROM mip.stats;
-- What has changed since it was called last.
CREATE TABLE before AS SELECT to_jsonb(s) AS counters FROM mip.stats s;
CREATE FUNCTION changes() RETURNS text LANGUAGE sql AS $$
	WITH now AS (SELECT to_jsonb(s) AS counters FROM mip.stats s),
		new AS (UPDATE before SET counters = now.counters FROM now RETURNING before.counters),
		old AS (SELECT * FROM before)
	SELECT string_agg(key || ' +' || value::bigint - (old.counters ->> key)::bigint, ', ' ORDER BY n)
	FROM old, new, jsonb_object_keys(new.counters) WITH ORDINALITY AS k (key, n), jsonb_extract_path_text(new.counters, key) AS value
	WHERE key <> 'since' AND value::bigint <> (old.counters ->> key)::bigint
$$;
SELECT changes();

-- One instance: a commit in one phase, one in two, a failure, a rollback
SELECT test.steps($$
	a: MIP s1 1
	a: UPDATE s SET v = 1 WHERE id = 1
	a: SELECT count(*)::text FROM mip.commit_one_phase(NULL, NULL)
$$);
SELECT changes();
SELECT test.steps($$
	a: MIP s2 1
	a: UPDATE s SET v = 2 WHERE id = 1
	a: SELECT count(*)::text FROM mip.prepare(NULL, NULL)
$$);
SELECT changes();
SELECT FROM mip.commit('s2', 1);
SELECT changes();
-- (again: nothing happens)
SELECT FROM mip.commit('s2', 1);
SELECT changes();
SELECT test.steps($$
	a: MIP s3 1
	a: ROLLBACK
	a: MIP s3 2
	a: SELECT count(*)::text FROM mip.prepare(NULL, NULL)
	b: SELECT count(*)::text FROM mip.rollback('s3', 2)
$$);
SELECT changes();

-- Siblings: two prepared, one of which wins by its overlay; one is refused;
-- one is active and loses
SELECT test.steps($$
	a: MIP s4 1
	a: UPDATE s SET v = 3 WHERE id < 4
	a: SELECT count(*)::text FROM mip.prepare(NULL, NULL)
	a: MIP s4 3
	a: UPDATE s SET v = 4 WHERE id < 4
	b: MIP s4 2
	a: SELECT count(*)::text FROM mip.prepare(NULL, NULL)
$$);
SELECT changes();
SELECT test.steps($$
	b: SELECT count(*)::text FROM mip.prepare(NULL, NULL)
$$);
SELECT changes();
SELECT test.steps($$
	b: ROLLBACK
	b: MIP s4 4
	u: SELECT count(*)::text FROM mip.commit('s4', 3)
	u: MIP s4 5
$$);
SELECT changes();
-- (the loser's session has been ended)
SELECT test.close('b'), test.open('b');

-- Waits for outsiders, and the end of one that waits for an instance
SELECT test.steps($$
	u: BEGIN
	u: UPDATE s SET v = 5 WHERE id = 8
	a: MIP s5 1
	a: UPDATE s SET v = 6 WHERE id = 7
	a: SELECT count(*)::text FROM mip.prepare(NULL, NULL)
	u& UPDATE s SET v = 7 WHERE id = 7
	u? waits
	a: MIP s5 2
	a& UPDATE s SET v = 8 WHERE id = 8
	u? result
	u: ROLLBACK
	a? result
	a: SELECT count(*)::text FROM mip.prepare(NULL, NULL)
	b: SELECT count(*)::text FROM mip.commit('s5', 2)
$$);
SELECT changes();

-- Removing
SELECT mip.acknowledge('s5');
SELECT mip.acknowledge('s5');
BEGIN; SELECT mip.begin('s5', 4);
ROLLBACK;
SELECT changes();
INSERT INTO mip.mipt (xid, xinst, owner, since, aborted) SELECT
	'016f5e66-e800-7000-8000-00000000000' || n, 1, current_user::regrole, '2020-01-01', false FROM generate_series(1, 2) n;
SELECT mip.expire();
BEGIN; SELECT mip.begin('016f5e66-e800-7000-8000-000000000001', 2);
ROLLBACK;
SELECT changes();

-- Anybody may look.
CREATE ROLE mip_looking;
SET ROLE mip_looking;
SELECT begun FROM mip.stats;
SELECT mip.stats_reset();
RESET ROLE;
SELECT since AS before FROM mip.stats \gset
SELECT mip.stats_reset();
SELECT begun, expired, since > :'before' AS later FROM mip.stats;

SELECT test.close('a', 'b', 'u');
\c contrib_regression
DROP DATABASE mip_stats;
DROP ROLE mip_looking;
