-- Where a MIP transaction may begin and end, and how else it cannot.
\set code '\\echo SQLSTATE :SQLSTATE'
CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
INSERT INTO t VALUES (1, 0), (2, 0);

-- mip.begin: in a block, before the first change, once, not in a savepoint
SELECT mip.begin('e1', 1);
:code
SELECT mip.begin('e1', 1)\; SELECT 1;
:code
BEGIN;
INSERT INTO t VALUES (3, 0);
SELECT mip.begin('e1', 1);
:code
ROLLBACK;
BEGIN;
SELECT * FROM t WHERE id = 1 FOR UPDATE;
SELECT mip.begin('e1', 1);
:code
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT mip.begin('e1', 1);
:code
ROLLBACK;
BEGIN;
DO $$ BEGIN PERFORM mip.begin('e1', 1); END $$;
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e1', 1);
SELECT mip.begin('e1', 2);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e1', 1);
SELECT mip.begin('e2', 1);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e' || i, 1) FROM generate_series(1, 2) i;
:code
ROLLBACK;
BEGIN READ ONLY;
SELECT mip.begin('e1', 1);
:code
ROLLBACK;
-- also a change of nothing
BEGIN;
UPDATE t SET v = 1 WHERE id = 99;
SELECT mip.begin('e1', 1);
:code
ROLLBACK;
BEGIN;
SAVEPOINT a;
DO $$ BEGIN DELETE FROM t WHERE id = 99; END $$;
ROLLBACK TO a;
RELEASE a;
SELECT mip.begin('e1', 1);
:code
ROLLBACK;
BEGIN;
SELECT * FROM t WHERE id = 99 FOR KEY SHARE;
SELECT mip.begin('e1', 1);
:code
ROLLBACK;
BEGIN;
COPY t FROM PROGRAM 'true';
SELECT mip.begin('e1', 1);
:code
ROLLBACK;
SELECT 1 AS one FROM t WHERE id = 99 FOR UPDATE\; BEGIN\; SELECT mip.begin('e1', 1);
:code
ROLLBACK;
-- reads before it are fine
BEGIN;
SET LOCAL work_mem = '1MB';
SELECT count(*) FROM t;
EXPLAIN (COSTS OFF) UPDATE t SET v = 1;
LOCK TABLE t IN ROW EXCLUSIVE MODE;
COPY (SELECT 1) TO STDOUT;
SELECT mip.begin('e1', 1);
ROLLBACK;
BEGIN; SELECT mip.begin('e1', 1); ROLLBACK;
SELECT * FROM mip.instances('e1');

-- mip.prepare and mip.commit_one_phase outside a MIP transaction
SELECT * FROM mip.prepare(NULL, NULL);
:code
SELECT * FROM mip.commit_one_phase(NULL, NULL);
:code
BEGIN;
SELECT * FROM mip.prepare(NULL, NULL);
:code
ROLLBACK;

-- in a savepoint, a function, DO, with EXCEPTION
BEGIN;
SELECT mip.begin('e3', 1);
SAVEPOINT a;
SELECT * FROM mip.prepare(NULL, NULL);
:code
ROLLBACK TO a;
RELEASE a;
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT xinst, state FROM mip.rollback('e3', 1);
BEGIN;
SELECT mip.begin('e4', 1);
DO $$ BEGIN PERFORM mip.prepare(NULL, NULL); END $$;
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e4', 1);
DO $$ BEGIN PERFORM mip.prepare(NULL, NULL); EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', SQLERRM; END $$;
SELECT xinst, state FROM mip.instances('e4');
ROLLBACK;
CREATE FUNCTION do_prepare() RETURNS SETOF mip.instance LANGUAGE sql VOLATILE AS $$ SELECT * FROM mip.prepare(NULL, NULL) $$;
CREATE FUNCTION do_one_phase() RETURNS SETOF mip.instance LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT * FROM mip.commit_one_phase(NULL, NULL); END $$;
BEGIN;
SELECT mip.begin('e4', 1);
SELECT * FROM do_one_phase();
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e4', 1);
SELECT xinst, state FROM do_prepare();
:code
ROLLBACK;
SELECT * FROM mip.instances('e4');
-- PL/pgSQL evaluates simple expressions without a statement
CREATE FUNCTION do_refuse() RETURNS bool LANGUAGE plpgsql AS $$
	DECLARE refused bool;
	BEGIN refused := mip.refuse('e4', 1, '{}'); RETURN refused; END $$;
CREATE FUNCTION do_begin() RETURNS int LANGUAGE plpgsql AS $$
	BEGIN IF mip.begin('e4', 1) IS NULL THEN RETURN 1; END IF; RETURN 2; END $$;
SELECT do_refuse();
:code
SELECT * FROM do_refuse();
:code
BEGIN;
SELECT do_begin();
:code
ROLLBACK;
SELECT * FROM mip.instances('e4');
DROP FUNCTION do_prepare, do_one_phase, do_refuse, do_begin;
DO $$ BEGIN PERFORM mip.commit('e4', 1); END $$;
:code
DO $$ BEGIN PERFORM mip.rollback('e4', 1); END $$;
:code
DO $$ BEGIN PERFORM mip.forget('e4'); END $$;
:code
BEGIN; SELECT * FROM mip.commit('e4', 1);
:code
ROLLBACK;
BEGIN; SELECT * FROM mip.rollback('e4', 1);
:code
ROLLBACK;
BEGIN; SELECT mip.forget('e4');
:code
ROLLBACK;
SELECT * FROM mip.rollback('e4', 1)\; SELECT 1;
:code

-- in a failed transaction: refused, and nothing is prepared
BEGIN;
SELECT mip.begin('e5', 1);
SELECT 1 / 0;
SELECT * FROM mip.prepare(NULL, NULL);
:code
COMMIT;
SELECT * FROM mip.instances('e5');

-- COMMIT and PREPARE TRANSACTION do not end it
BEGIN;
SELECT mip.begin('e6', 1);
INSERT INTO t VALUES (6, 6);
COMMIT;
:code
BEGIN;
SELECT mip.begin('e6', 1);
PREPARE TRANSACTION 'raw';
:code
BEGIN;
SELECT mip.begin('e6', 1);
PREPARE TRANSACTION 'mip:1:1:e6';
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e6', 1);
COMMIT AND CHAIN;
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e6', 1);
PREPARE TRANSACTION 'raw'\; SELECT 1;
:code
ROLLBACK;
SELECT * FROM mip.instances('e6');
-- What follows a ROLLBACK would take effect without it, unnoticed by whoever
-- has let others give statements to the instance
BEGIN;
SELECT mip.begin('e6', 1);
ROLLBACK\; INSERT INTO t VALUES (6, 6);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e6', 1);
SELECT 1 AS one\; abort work /* out */ \; -- and back
\; BEGIN\; INSERT INTO t VALUES (6, 6)\; COMMIT\; BEGIN\; SELECT mip.begin('e6', 1);
:code
ROLLBACK;
BEGIN\; SELECT mip.begin('e6', 1)\; ROLLBACK\; INSERT INTO t VALUES (6, 6);
:code
ROLLBACK;
SELECT mip.begin('e6', 1)\; ROLLBACK\; INSERT INTO t VALUES (6, 6);
:code
BEGIN;
SELECT mip.begin('e6', 1);
ROLLBACK AND CHAIN;
:code
INSERT INTO t VALUES (6, 6);
ROLLBACK;
-- also once it has failed, whatever ends it
BEGIN;
SELECT mip.begin('e6', 1);
SELECT 1 / 0;
ROLLBACK\; INSERT INTO t VALUES (6, 6);
:code
COMMIT\; INSERT INTO t VALUES (6, 6);
:code
PREPARE TRANSACTION 'raw'\; INSERT INTO t VALUES (6, 6);
:code
ROLLBACK AND CHAIN;
:code
COMMIT AND CHAIN;
:code
INSERT INTO t VALUES (6, 6);
COMMIT;
-- at the end of a message, and in savepoints, as ever; and in other transactions
BEGIN;
SELECT mip.begin('e6', 1);
SAVEPOINT a\; SELECT 1 AS one\; ROLLBACK TO a\; RELEASE a\; SELECT 2 AS two;
SELECT 3 AS three\; ROLLBACK; -- the end
BEGIN;
SELECT mip.begin('e6', 1);
SELECT 1 / 0;
ROLLBACK \; \; -- the end
;
BEGIN;
SELECT 1 / 0;
ROLLBACK\; SELECT 1 AS one\; BEGIN\; ROLLBACK AND CHAIN\; COMMIT;
SELECT * FROM t WHERE id = 6;
SELECT * FROM mip.instances('e6');
-- raw two-phase statements on instances
BEGIN;
SELECT mip.begin('e7', 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT gid = format('mip:%s:1:e7', (SELECT oid FROM pg_database WHERE datname = current_database())) AS gid FROM pg_prepared_xacts;
\set VERBOSITY sqlstate
SELECT format('COMMIT PREPARED %L', gid) AS commit, format('ROLLBACK PREPARED %L', gid) AS rollback FROM pg_prepared_xacts \gset
:commit;
:rollback;
\set VERBOSITY default
COMMIT PREPARED 'mip:0:1:x';
:code
BEGIN; PREPARE TRANSACTION 'mip:0:1:x';
:code
ROLLBACK;
SELECT xinst, state FROM mip.rollback('e7', 1);
-- other prepared transactions are none of our business
BEGIN; INSERT INTO t VALUES (7, 7); PREPARE TRANSACTION 'other';
COMMIT PREPARED 'other';

-- a statement after it in the same message would join the transaction
BEGIN;
SELECT mip.begin('e8', 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL)\; INSERT INTO t VALUES (8, 8);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e8', 1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL)\; SELECT 1;
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e8', 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL)\; SAVEPOINT a;
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e8', 1);
SELECT 1 FROM mip.prepare(NULL, NULL), mip.prepare(NULL, NULL) AS again;
:code
ROLLBACK;
SELECT * FROM mip.instances('e8');
-- a trailing COMMIT
BEGIN;
SELECT mip.begin('e9', 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL)\; COMMIT;
:code
ROLLBACK;
-- the whole transaction in one message
BEGIN\; SELECT mip.begin('e10', 1)\; UPDATE t SET v = 10 WHERE id = 1\; SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT xinst, state FROM mip.commit('e10', 1);
SELECT * FROM t ORDER BY id;

-- forms of the statement
BEGIN;
SELECT mip.begin('e11', 1);
SELECT * FROM mip.prepare(NULL, NULL) LIMIT 0;
SELECT state FROM mip.instances('e11');
ROLLBACK;
SELECT xinst, state FROM mip.rollback('e11', 1);
PREPARE ending(text) AS SELECT xinst, state, result FROM mip.prepare('q', $1);
BEGIN;
SELECT mip.begin('e12', 1);
EXECUTE ending('r');
SELECT xinst, state, result FROM mip.commit('e12', 1);
BEGIN;
SELECT mip.begin('e12b', 1);
EXECUTE ending('s');
DEALLOCATE ending;
SELECT xinst, state FROM mip.rollback('e12b', 1);
BEGIN;
SELECT mip.begin('e13', 1);
EXPLAIN (COSTS OFF) SELECT * FROM mip.prepare(NULL, NULL);
SELECT state FROM mip.instances('e13');
ROLLBACK;
BEGIN;
SELECT mip.begin('e13', 1);
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT * FROM mip.prepare(NULL, NULL);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e13', 1);
CREATE TABLE ctas AS SELECT * FROM mip.prepare(NULL, NULL);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e13', 1);
DECLARE cur CURSOR FOR SELECT xinst, state FROM mip.prepare(NULL, NULL);
FETCH ALL FROM cur;
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e13', 1);
COPY (SELECT xinst, state FROM mip.prepare(NULL, NULL)) TO STDOUT;
ROLLBACK;
SELECT * FROM mip.instances('e13');
SELECT count(*) FROM pg_prepared_xacts;

-- what PREPARE cannot do: temporary tables, NOTIFY, cursors WITH HOLD
CREATE TEMP TABLE tmp (i int);
BEGIN;
SELECT mip.begin('e14', 1);
INSERT INTO tmp VALUES (1);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
:code
ROLLBACK;
SELECT * FROM mip.instances('e14');
-- they can be committed in one phase
BEGIN;
SELECT mip.begin('e15', 1);
INSERT INTO tmp VALUES (1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
TABLE tmp;
DROP TABLE tmp;

-- deferred constraints are checked as part of it
CREATE TABLE d (id int UNIQUE DEFERRABLE INITIALLY DEFERRED, p int REFERENCES t DEFERRABLE INITIALLY DEFERRED) USING mip;
BEGIN;
SELECT mip.begin('e16', 1);
INSERT INTO d VALUES (1, 1), (1, 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e16', 1);
INSERT INTO d VALUES (1, 99);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e16', 1);
INSERT INTO d VALUES (1, 99);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
:code
ROLLBACK;
SELECT * FROM mip.instances('e16');
BEGIN;
SELECT mip.begin('e16', 1);
INSERT INTO d VALUES (1, 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT xinst, state FROM mip.commit('e16', 1);
BEGIN;
SELECT mip.begin('e17', 1);
INSERT INTO d VALUES (2, 1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
TABLE d;
SELECT count(*) FROM pg_prepared_xacts;

-- deferred triggers may use cursors, which they read in parts
CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	r record;
	n int := 0;
BEGIN
	FOR r IN SELECT * FROM d, generate_series(1, 60) LOOP
		n := n + 1;
	END LOOP;
	RAISE NOTICE '% rows', n;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER count_rows AFTER INSERT ON d DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION count_rows();
BEGIN;
SELECT mip.begin('e18', 1);
INSERT INTO d VALUES (3, 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL);
SELECT xinst, state FROM mip.commit('e18', 1);
BEGIN;
SELECT mip.begin('e19', 1);
INSERT INTO d VALUES (4, 1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
-- and a statement of the client is refused all the same
BEGIN;
SELECT mip.begin('e20', 1);
INSERT INTO d VALUES (5, 1);
SELECT xinst, state FROM mip.prepare(NULL, NULL)\; SELECT 1;
:code
ROLLBACK;
-- a cursor WITH HOLD is read to its end, whatever its query calls
CREATE FUNCTION count_d(i int) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) + i FROM d); END $$;
CREATE FUNCTION loop_d(i int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	r record;
	n bigint := i;
BEGIN
	FOR r IN SELECT * FROM d LOOP
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT i, count_d(i) - loop_d(i) AS difference FROM generate_series(1, 2) i;
SELECT mip.begin('e20b', 1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
FETCH ALL FROM held;
CLOSE held;
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT count_d(i) FROM generate_series(1, 2) i;
SELECT mip.begin('e20c', 1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL)\; FETCH ALL FROM held;
:code
ROLLBACK;
SELECT * FROM mip.instances('e20c');
DROP FUNCTION count_d, loop_d;
-- but cannot end or decide anything
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT * FROM mip.commit_one_phase(NULL, NULL);
SELECT mip.begin('e20d', 1);
COMMIT;
:code
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT * FROM mip.prepare(NULL, NULL);
SELECT mip.begin('e20d', 1);
COMMIT;
:code
DECLARE held CURSOR WITH HOLD FOR SELECT mip.forget('e20b');
:code
SELECT xinst, state FROM mip.instances('e20b');
-- nor can a deferred trigger end or decide anything
CREATE FUNCTION run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE current_setting('test.query'); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER run AFTER INSERT ON d DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION run();
DROP TRIGGER count_rows ON d;
SET test.query = 'SELECT * FROM mip.commit_one_phase(NULL, NULL)';
BEGIN;
SELECT mip.begin('e21', 1);
INSERT INTO d VALUES (6, 1);
COMMIT;
:code
SET test.query = 'SELECT * FROM mip.prepare(NULL, NULL)';
BEGIN;
SELECT mip.begin('e21', 1);
INSERT INTO d VALUES (6, 1);
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
:code
SET test.query = 'SELECT mip.forget(''e19'')';
INSERT INTO d VALUES (6, 1);
:code
RESET test.query;
DROP TABLE d, t;
DROP FUNCTION count_rows, run;

-- With a key: only who shows it ends the instance as prepared or committed, whatever else is given
CREATE TABLE t (id int PRIMARY KEY) USING mip;
BEGIN;
SELECT mip.begin('e22', 1, key => 'k');
INSERT INTO t VALUES (1);
SELECT * FROM mip.prepare(NULL, NULL);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e22', 2, '{}', 'k');
SELECT * FROM mip.commit_one_phase('q', 'r', 'kk');
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e22', 3);
SELECT * FROM mip.commit_one_phase('q', 'r', '');
:code
ROLLBACK;
SELECT count(*) FROM mip.instances('e22');
BEGIN;
SELECT mip.begin('e22', 4, '{}', 'k');
INSERT INTO t VALUES (4);
SELECT xinst, state FROM mip.prepare('q', 'r', 'k');
SELECT xinst, state FROM mip.commit('e22', 4);
BEGIN;
SELECT mip.begin('e23', 1, '{}', 'k');
INSERT INTO t VALUES (5);
SELECT xinst, state FROM mip.commit_one_phase('q', 'r', 'k');
SELECT id FROM t ORDER BY id;
DROP TABLE t;

-- What becomes part of the client's query is the client's: views, functions that the
-- planner inlines; of defaults and conditions what may change rows.
CREATE VIEW preparing AS SELECT xinst, state FROM mip.prepare('q', 'by a view');
CREATE FUNCTION beginning(xid text) RETURNS void LANGUAGE sql AS $$ SELECT mip.begin(xid, 1) $$;
CREATE FUNCTION ending() RETURNS SETOF mip.instance LANGUAGE sql STABLE AS $$ SELECT * FROM mip.prepare('q', 'inlined') $$;
BEGIN;
SELECT beginning('e24');
TABLE preparing;
SELECT state, result FROM mip.commit('e24', 1);
BEGIN;
SELECT beginning('e25');
SELECT count(*) FROM ending();
SELECT state, result FROM mip.commit('e25', 1);
BEGIN;
SELECT mip.begin('e26', 1);
SELECT count(*) FROM ending() WHERE 1 / (xinst - 1) = 0;
ROLLBACK;
SELECT count(*) FROM mip.instances('e26');
DROP VIEW preparing;
DROP FUNCTION beginning, ending;
-- but functions that the planner evaluates are functions.
CREATE FUNCTION planned(query text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	r record;
BEGIN
	FOR r IN EXECUTE query LOOP
	END LOOP;
	RETURN 1;
END $$;
BEGIN;
SELECT planned('SELECT mip.begin(''e28'', 1)');
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e28', 1);
SELECT planned('SELECT * FROM mip.prepare(NULL, NULL)');
:code
ROLLBACK;
SELECT planned('SELECT mip.refuse(''e28'', 1, ''{}'')');
:code
SELECT count(*) FROM mip.instances('e28');
DROP FUNCTION planned;
-- ... and so are those that EXECUTE evaluates for its arguments, and the
-- executor, before it starts, to choose among partitions.
CREATE FUNCTION called(query text) RETURNS int LANGUAGE plpgsql STABLE AS $$
DECLARE
	r record;
BEGIN
	FOR r IN EXECUTE query LOOP
		NULL;
	END LOOP;
	RETURN 1;
END $$;
CREATE TABLE parts (i int) PARTITION BY LIST (i);
CREATE TABLE part1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE part2 PARTITION OF parts FOR VALUES IN (2);
PREPARE argument(int) AS SELECT $1;
PREPARE choice(text) AS SELECT * FROM parts WHERE i = called($1);
BEGIN;
EXECUTE argument(called('SELECT mip.begin(''e29'', 1)'));
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('e29', 1);
EXECUTE argument(called('SELECT * FROM mip.prepare(NULL, NULL)'));
:code
ROLLBACK;
EXECUTE argument(called('SELECT mip.refuse(''e29'', 1, ''{}'')'));
:code
SET plan_cache_mode = force_generic_plan;
EXECUTE choice('SELECT mip.refuse(''e29'', 1, ''{}'')');
:code
RESET plan_cache_mode;
SELECT count(*) FROM mip.instances('e29');
DEALLOCATE argument;
DEALLOCATE choice;
DROP TABLE parts;
DROP FUNCTION called;
CREATE TABLE t (id int PRIMARY KEY, refused bool DEFAULT mip.refuse('e27', 1, '{}'), CHECK (id > 0)) USING mip;
CREATE TABLE b (id int, begun text DEFAULT mip.begin('e27', 2)) USING mip;
BEGIN;
INSERT INTO b VALUES (1);
:code
ROLLBACK;
BEGIN;
INSERT INTO t VALUES (1);
:code
ROLLBACK;
DO $$ BEGIN INSERT INTO t VALUES (1); END $$;
:code
INSERT INTO t VALUES (0);
SELECT count(*) FROM mip.instances('e27');
INSERT INTO t VALUES (1) RETURNING refused;
SELECT xinst, state FROM mip.instances('e27');
CREATE FUNCTION forgotten() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER forgets AFTER DELETE ON t FOR EACH ROW WHEN (mip.forget('e27') > 0) EXECUTE FUNCTION forgotten();
BEGIN;
DELETE FROM t;
:code
ROLLBACK;
DELETE FROM t;
SELECT count(*) FROM mip.instances('e27');
ALTER TABLE b ALTER begun TYPE name, ALTER begun SET DEFAULT (mip.prepare('', '')).owner;
DROP TABLE b, t;
DROP FUNCTION forgotten;
