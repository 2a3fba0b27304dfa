-- VACUUM and its like beside siblings, and what rebuilds or rewrites a table.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\set ECHO all
\pset format unaligned
\pset tuples_only on
CREATE TABLE t (id int PRIMARY KEY, v int, big text) USING mip;
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, 0, repeat('a', 3000) FROM generate_series(1, 1000) i;
VACUUM (FREEZE, ANALYZE) t;
CREATE FUNCTION counts() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	path text;
	n text;
	result text;
BEGIN
	FOREACH path IN ARRAY '{seqscan,indexscan,indexonlyscan,bitmapscan,parallel}'::text[] LOOP
		PERFORM set_config('enable_' || o, CASE WHEN o = path OR path = 'indexonlyscan' AND o = 'indexscan' THEN 'on' ELSE 'off' END, true)
		FROM unnest('{seqscan,indexscan,indexonlyscan,bitmapscan}'::text[]) o;
		IF path = 'parallel' THEN
			PERFORM set_config('enable_seqscan', 'on', true), set_config('parallel_setup_cost', '0', true),
				set_config('parallel_tuple_cost', '0', true), set_config('min_parallel_table_scan_size', '0', true);
		END IF;
		EXECUTE 'SELECT count(*) || '':'' || sum(id) FROM t WHERE id BETWEEN 1 AND 2000' INTO n;
		result := concat_ws(' ', result, n);
		EXECUTE 'SELECT count(*) FROM t WHERE id BETWEEN 1 AND 2000' INTO n;
		result := result || '=' || n;
	END LOOP;
	RETURN result;
END $$;
SELECT counts();
SELECT test.open('t1', 't2', 't3', 'u', 'c');

-- A base version that the overlay has replaced becomes all-visible when the
-- sibling that had updated it goes and VACUUM comes.
SELECT test.begin('t1', 'm1', 1), test.run('t1', 'UPDATE t SET id = id + 1000');
SELECT test.begin('t2', 'm1', 2), test.run('t2', 'SELECT counts()');
SELECT test.run('t2', 'DELETE FROM t WHERE id <= 500'), test.run('t2', 'UPDATE t SET id = id + 500 WHERE id <= 600');
SELECT test.run('t2', 'SELECT counts()'), test.run('t1', 'SELECT counts()');
SELECT test.run('t1', 'ROLLBACK');
VACUUM t;
SELECT test.run('t2', 'SELECT counts()'), counts();
SELECT test.begin('t3', 'm1', 3), test.run('t3', 'UPDATE t SET v = v + 1 WHERE id <= 500'), test.run('t3', 'DELETE FROM t WHERE id > 500');
SELECT test.prepare('t2'), test.prepare('t3');
VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t;
SELECT counts();
SELECT test.commit('c', 'm1', 2);
SELECT counts(), test.check('t');
VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t;
SELECT counts(), test.check('t');

-- A table without a visibility map needs none for an overlay and its hand-over:
-- so a commit asks for no room on a full disk.
CREATE TABLE mapless (id int PRIMARY KEY, v int) USING mip;
INSERT INTO mapless VALUES (1, 0), (2, 0);
SELECT test.begin('t1', 'mapless', 1), test.run('t1', 'UPDATE mapless SET v = 1'), test.prepare('t1');
SELECT test.begin('t3', 'mapless', 2), test.run('t3', 'UPDATE mapless SET v = 2 WHERE id = 1'), test.run('t3', 'DELETE FROM mapless WHERE id = 2'), test.prepare('t3');
SELECT test.commit('c', 'mapless', 2);
SELECT pg_relation_size('mapless', 'vm'), * FROM mapless;
DROP TABLE mapless;

-- The index-only plan of a cached statement must go when the overlay comes.
SELECT test.begin('t1', 'm2', 1), test.run('t1', 'UPDATE t SET v = v + 1 WHERE id BETWEEN 700 AND 800'), test.prepare('t1');
SELECT test.begin('t2', 'm2', 2), test.run('t2', 'SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off');
SELECT test.run('t2', 'PREPARE c AS SELECT count(id)::text FROM t WHERE id BETWEEN 700 AND 800');
SELECT test.run('t2', 'WITH e AS (SELECT 1) SELECT count(id)::text FROM t WHERE id BETWEEN 700 AND 800');
SELECT * FROM dblink('t2', 'EXECUTE c') AS r(n text);
SELECT test.run('t2', 'DELETE FROM t WHERE id BETWEEN 701 AND 800');
SELECT * FROM dblink('t2', 'EXECUTE c') AS r(n text);
SELECT test.run('t2', 'SELECT counts()');
SELECT test.run('t2', 'DEALLOCATE c'), test.prepare('t2'), test.commit('c', 'm2', 2);
SELECT counts(), test.check('t');

-- So must one that the session has kept from before the transaction. But nothing
-- else is planned anew for it: the function runs when it is planned.
CREATE SEQUENCE plans;
CREATE FUNCTION plan() RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN nextval(''plans''); END';
SELECT test.run('t2', 'SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off');
SELECT test.run('t2', 'PREPARE c AS SELECT count(id)::text FROM t WHERE id BETWEEN 601 AND 605');
SELECT test.run('t2', 'PREPARE w (int) AS UPDATE t SET v = v + 0 * plan() WHERE id = $1');
SELECT * FROM dblink('t2', 'EXECUTE c') AS r(n text);
SELECT test.begin('t1', 'm2a', 1), test.run('t1', 'UPDATE t SET v = v + 1 WHERE id BETWEEN 601 AND 605'), test.prepare('t1');
SELECT test.begin('t2', 'm2a', 2), test.run('t2', 'DELETE FROM t WHERE id BETWEEN 602 AND 605');
SELECT * FROM dblink('t2', 'EXECUTE c') AS r(n text);
SELECT test.run('t2', 'EXECUTE w (601)'), test.prepare('t2'), test.commit('c', 'm2a', 2);
SELECT last_value AS planned FROM plans \gset
SELECT test.begin('t1', 'm2b', 1), test.run('t1', 'UPDATE t SET v = -1 WHERE id IN (606, 607)'), test.prepare('t1');
SELECT test.begin('t2', 'm2b', 2), test.run('t2', 'EXECUTE w (606)'), test.run('t2', 'EXECUTE w (607)'), test.prepare('t2'), test.commit('c', 'm2b', 2);
SELECT last_value = :planned FROM plans;
SELECT test.run('t2', 'DEALLOCATE ALL; RESET plan_cache_mode; RESET enable_seqscan; RESET enable_bitmapscan');
SELECT counts(), test.check('t');
DROP FUNCTION plan();
DROP SEQUENCE plans;

-- Out-of-line values: the winner's remain, the loser's and the replaced go.
SELECT test.begin('t1', 'm3', 1), test.run('t1', 'UPDATE t SET big = repeat(''b'', 4000) WHERE id BETWEEN 900 AND 910'), test.prepare('t1');
SELECT test.begin('t2', 'm3', 2), test.run('t2', 'UPDATE t SET big = repeat(''c'', 5000) WHERE id BETWEEN 900 AND 910'),
	test.run('t2', 'UPDATE t SET v = -1 WHERE id BETWEEN 911 AND 920'), test.prepare('t2');
SELECT test.commit('c', 'm3', 2);
SELECT left(big, 1), length(big), count(*) FROM t WHERE id BETWEEN 900 AND 920 GROUP BY 1, 2 ORDER BY 1;
VACUUM (FREEZE) t;
SELECT reltoastrelid::regclass AS toast FROM pg_class WHERE oid = 't'::regclass \gset
SELECT count(DISTINCT chunk_id) = (SELECT count(*) FROM t) FROM :toast;
SELECT test.corruption('t');

-- Rewriting waits for prepared instances, and keeps everything.
SELECT test.begin('t1', 'm4', 1), test.run('t1', 'UPDATE t SET v = 41 WHERE id = 999'), test.prepare('t1');
SELECT test.begin('t2', 'm4', 2), test.run('t2', 'UPDATE t SET v = 42 WHERE id = 999'), test.prepare('t2');
SELECT test.run('u', 'SET lock_timeout = 50');
SELECT test.run('u', 'VACUUM FULL t'), test.run('u', 'CLUSTER t USING t_pkey'), test.run('u', 'ALTER TABLE t ALTER v TYPE bigint');
SELECT test.run('u', 'TRUNCATE t'), test.run('u', 'DROP TABLE t'), test.run('u', 'CREATE INDEX ON t (v)');
ANALYZE t;
SELECT test.commit('c', 'm4', 2);
CREATE INDEX t_v ON t (v);
CREATE INDEX t_hash ON t USING hash (v);
CREATE INDEX CONCURRENTLY t_v2 ON t (v, id);
SELECT test.check('t');
SET min_parallel_table_scan_size = 0;
SET parallel_setup_cost = 0;
REINDEX TABLE t;
REINDEX TABLE CONCURRENTLY t;
RESET min_parallel_table_scan_size;
RESET parallel_setup_cost;
SELECT test.check('t');
VACUUM FULL t;
CLUSTER t USING t_pkey;
ALTER TABLE t ALTER v TYPE bigint;
ALTER TABLE t ADD w int DEFAULT 7, ADD CHECK (w > 0);
SELECT test.check('t'), counts(), sum(v), sum(w) FROM t;
SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 't';
SELECT test.begin('t1', 'm5', 1), test.run('t1', 'UPDATE t SET v = 51 WHERE id = 999'), test.prepare('t1');
SELECT test.begin('t2', 'm5', 2), test.run('t2', 'UPDATE t SET v = 52, w = 8 WHERE id = 999'), test.prepare('t2');
SELECT test.commit('c', 'm5', 1);
SELECT id, v, w FROM t WHERE id = 999;

-- An index that is built concurrently waits for instances that began before it,
-- and has the winners' versions of those that came meanwhile.
SELECT test.run('u', 'SET lock_timeout = 0');
SELECT test.begin('t1', 'm6', 1), test.run('t1', 'UPDATE t SET v = 61 WHERE id BETWEEN 900 AND 910');
SELECT test.send('u', 'CREATE INDEX CONCURRENTLY t_c1 ON t (v)'), test.waits('u');
SELECT test.begin('t2', 'm6', 2), test.run('t2', 'UPDATE t SET v = 62 WHERE id BETWEEN 900 AND 905'),
	test.run('t2', 'DELETE FROM t WHERE id BETWEEN 906 AND 910');
SELECT test.prepare('t1'), test.prepare('t2'), test.waits('u');
SELECT test.begin('t1', 'm7', 1), test.run('t1', 'UPDATE t SET v = 71 WHERE id BETWEEN 911 AND 920'), test.prepare('t1');
SELECT test.begin('t2', 'm7', 2), test.run('t2', 'UPDATE t SET v = 72 WHERE id BETWEEN 911 AND 920'), test.prepare('t2');
SELECT test.commit('c', 'm6', 2), test.waits('u');
SELECT test.begin('t1', 'm8', 1), test.run('t1', 'UPDATE t SET v = 81 WHERE id BETWEEN 921 AND 930'), test.prepare('t1');
SELECT test.begin('t2', 'm8', 2), test.run('t2', 'UPDATE t SET v = 82 WHERE id BETWEEN 921 AND 930'), test.prepare('t2');
SELECT test.commit('c', 'm7', 2), test.waits('u');
SELECT test.commit('c', 'm8', 2);
CALL test.finish('u');
SELECT test.result('u'), test.check('t');
SELECT v, count(*) FROM t WHERE v BETWEEN 61 AND 82 GROUP BY v ORDER BY v;
SELECT test.begin('t1', 'm9', 1), test.run('t1', 'UPDATE t SET v = 91 WHERE id BETWEEN 921 AND 930');
SELECT test.begin('t2', 'm9', 2), test.run('t2', 'UPDATE t SET v = 92 WHERE id BETWEEN 921 AND 930');
SELECT test.send('u', 'REINDEX INDEX CONCURRENTLY t_c1'), test.waits('u');
SELECT test.prepare('t1'), test.prepare('t2'), test.commit('c', 'm9', 1);
CALL test.finish('u');
SELECT test.result('u');
SELECT indisvalid, test.check('t') FROM pg_index WHERE indexrelid = 't_c1'::regclass;

-- Indexes that somebody adds to the MIPT for queries of his own: of expressions, and partial ones.
CREATE INDEX mipt_result ON mip.mipt ((left(result, 10) || '!'));
CREATE INDEX mipt_good ON mip.mipt (xid) WHERE result = 'good';
CREATE INDEX mipt_since ON mip.mipt USING brin (since);
BEGIN;
SELECT mip.begin('added1', 1);
SELECT state FROM mip.commit_one_phase(NULL, 'good');
BEGIN;
SELECT mip.begin('added2', 1);
SELECT state FROM mip.commit_one_phase(NULL, 'bad');
SELECT bt_index_check('mip.mipt_result', true), bt_index_check('mip.mipt_good', true);
BEGIN;
SET LOCAL enable_seqscan = off;
SELECT xid FROM mip.mipt WHERE left(result, 10) || '!' = 'bad!';
SELECT xid FROM mip.mipt WHERE result = 'good';
COMMIT;
DROP INDEX mip.mipt_result, mip.mipt_good, mip.mipt_since;
SELECT mip.forget('added1'), mip.forget('added2');

SELECT test.close('t1', 't2', 't3', 'u', 'c');
DROP TABLE t;
DROP FUNCTION counts;
