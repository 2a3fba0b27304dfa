-- Statistics counters: those of a mip table are what heap's would be, whether
-- a change goes into an overlay or not, wins or loses. So autovacuum and
-- autoanalyze come when they would.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\set ECHO all
\pset format unaligned
\pset tuples_only on
SELECT test.open('t1', 't2', 't3', 'u');

-- The same work on a heap table by transactions of their own, one after the other
CREATE TABLE h (id int PRIMARY KEY, v int, k int) USING heap WITH (autovacuum_enabled = off);
CREATE TABLE m (id int PRIMARY KEY, v int, k int) USING mip WITH (autovacuum_enabled = off);
CREATE FUNCTION fill(rel text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.run('u', format('TRUNCATE %s', rel)),
		test.run('u', format('INSERT INTO %s SELECT i, 0, i FROM generate_series(1, 100) i', rel)),
		test.run('u', format('VACUUM ANALYZE %s', rel)),
		test.run('u', 'SELECT pg_stat_force_next_flush()'),
		test.run('u', format('SELECT pg_stat_reset_single_table_counters(%L::regclass)', rel)),
		test.run('u', format('ANALYZE %s', rel)),
		test.run('u', 'SELECT pg_stat_force_next_flush()');
	RETURN rel;
END $$;
CREATE FUNCTION counters(rel text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	who text;
	result text;
BEGIN
	FOREACH who IN ARRAY '{t1,t2,t3,u}'::text[] LOOP
		PERFORM test.run(who, 'SELECT pg_stat_force_next_flush()');
		PERFORM test.run(who, 'SELECT 1');
	END LOOP;
	PERFORM pg_stat_clear_snapshot();
	SELECT format('ins %s upd %s del %s hot %s live %s dead %s mod %s', n_tup_ins, n_tup_upd, n_tup_del,
		n_tup_hot_upd, n_live_tup, n_dead_tup, n_mod_since_analyze)
		INTO result FROM pg_stat_user_tables WHERE relid = rel::regclass;
	RETURN result;
END $$;
CREATE FUNCTION work(who text, rel text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(', ',
		test.run(who, format('UPDATE %s SET v = v + 1 WHERE id <= 10', rel)),
		test.run(who, format('UPDATE %s SET id = id + 1000 WHERE id BETWEEN 11 AND 20', rel)),
		test.run(who, format('DELETE FROM %s WHERE id BETWEEN 21 AND 25', rel)),
		test.run(who, format('INSERT INTO %s SELECT i, 0, i FROM generate_series(501, 503) i', rel)))
$$;

-- alone
SELECT fill('h'), fill('m'), counters('h'), counters('m');
SELECT test.run('t1', 'BEGIN'), work('t1', 'h'), test.run('t1', 'COMMIT'), counters('h');
SELECT test.begin('t1', 'c1', 1), work('t1', 'm'), counters('m');
SELECT test.prepare('t1'), counters('m');
SELECT test.commit('u', 'c1', 1), counters('m');

-- the winner's changes are all in its overlay: none of them is HOT, the rest is the same
SELECT fill('m'), test.begin('t1', 'c2', 1), work('t1', 'm');
SELECT test.begin('t2', 'c2', 2), work('t2', 'm'), test.prepare('t1'), test.prepare('t2'), counters('m');
SELECT test.commit('u', 'c2', 2), counters('m');
-- as if one transaction had been rolled back and one had committed
SELECT fill('h'), test.run('t1', 'BEGIN'), work('t1', 'h'), test.run('t1', 'ROLLBACK');
SELECT test.run('t2', 'BEGIN'), work('t2', 'h'), test.run('t2', 'COMMIT'), counters('h');

-- ... and are all the loser's
SELECT fill('m'), test.begin('t1', 'c3', 1), work('t1', 'm');
SELECT test.begin('t2', 'c3', 2), work('t2', 'm'), test.prepare('t1'), test.prepare('t2');
SELECT test.commit('u', 'c3', 1), counters('m');

-- an overlay change undone by a savepoint
SELECT fill('m'), test.begin('t1', 'c4', 1), test.run('t1', 'UPDATE m SET v = 1 WHERE id <= 50');
SELECT test.begin('t2', 'c4', 2), test.run('t2', 'SAVEPOINT s'), test.run('t2', 'UPDATE m SET v = 2 WHERE id <= 20'),
	test.run('t2', 'DELETE FROM m WHERE id BETWEEN 21 AND 30'), test.run('t2', 'ROLLBACK TO s'),
	test.run('t2', 'RELEASE s'), test.run('t2', 'UPDATE m SET v = 2 WHERE id = 1');
SELECT test.run('t1', 'ROLLBACK'), test.prepare('t2'), test.commit('u', 'c4', 2), counters('m');
SELECT fill('h'), test.run('t1', 'BEGIN'), test.run('t1', 'UPDATE h SET v = 1 WHERE id <= 50'), test.run('t1', 'ROLLBACK');
SELECT test.run('t2', 'BEGIN'), test.run('t2', 'SAVEPOINT s'), test.run('t2', 'UPDATE h SET v = 2 WHERE id <= 20'),
	test.run('t2', 'DELETE FROM h WHERE id BETWEEN 21 AND 30'), test.run('t2', 'ROLLBACK TO s'),
	test.run('t2', 'UPDATE h SET v = 2 WHERE id = 1'), test.run('t2', 'COMMIT'), counters('h');

-- ANALYZE counts rows of both as heap's, beside an overlay in doubt and after
SELECT fill('m'), test.begin('t1', 'c5', 1), work('t1', 'm');
SELECT test.begin('t2', 'c5', 2), test.run('t2', 'UPDATE m SET v = 5 WHERE id <= 40'), test.prepare('t1'), test.prepare('t2');
ANALYZE m;
SELECT reltuples, counters('m') FROM pg_class WHERE relname = 'm';
SELECT null_frac, n_distinct FROM pg_stats WHERE tablename = 'm' AND attname = 'id';
SELECT test.commit('u', 'c5', 2), counters('m');
ANALYZE m;
SELECT reltuples, counters('m') FROM pg_class WHERE relname = 'm';

-- Scans
CREATE FUNCTION scans(rel text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE result text;
BEGIN
	PERFORM counters(rel);
	SELECT format('seq %s/%s idx %s/%s', seq_scan, seq_tup_read, idx_scan, idx_tup_fetch)
		INTO result FROM pg_stat_user_tables WHERE relid = rel::regclass;
	RETURN result;
END $$;
CREATE FUNCTION reads(rel text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.run('u', 'SET enable_bitmapscan = off; SET enable_seqscan = on; SET max_parallel_maintenance_workers = 0'),
		test.run('u', format('SELECT count(v)::text FROM %s', rel)),
		test.run('u', 'SET enable_seqscan = off'),
		test.run('u', format('SELECT count(v)::text FROM %s WHERE id < 8', rel)),
		test.run('u', 'SET enable_seqscan = on'),
		test.run('u', format('CREATE INDEX ON %s (v)', rel)),
		test.run('u', format('CREATE INDEX CONCURRENTLY ON %s (k)', rel)),
		test.run('u', format('REINDEX TABLE %s', rel)),
		test.run('u', format('VACUUM FULL %s', rel));
	RETURN scans(rel);
END $$;
SELECT fill('h'), reads('h');
SELECT fill('m'), reads('m');
SELECT test.close('t1', 't2', 't3', 'u');
DROP TABLE h, m;
DROP FUNCTION fill, counters, work, scans, reads;
