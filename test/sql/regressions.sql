-- Faults that were there once, each of them with the shortest way into it.
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set steps :srcdir '/sql/include/steps.psql'
\set code '\\echo SQLSTATE :SQLSTATE'
\set ECHO none
\i :sessions
\i :steps
CREATE FUNCTION test.family_locks() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' $$;
\set ECHO all
\pset format unaligned
\pset tuples_only on
SELECT test.open('t1', 't2', 'u', 'v');
CREATE TABLE r (id int PRIMARY KEY, v int) USING mip;
INSERT INTO r SELECT i, 0 FROM generate_series(1, 9) i;

-- Several families, or one twice, in one statement: no family lock stays.
SELECT test.steps($$
	t1: MIP lock-a 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t1: MIP lock-b 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t1: MIP lock-c 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: SELECT d.xid || ' ' || c.state FROM (SELECT * FROM mip.in_doubt ORDER BY xid LIMIT 2) d, mip.commit(d.xid, d.xinst) c
	t2: SELECT c.state || ' ' || i.state FROM mip.commit('lock-c', 1) c, mip.instances('lock-a') i
	t2: SELECT c.state || ' ' || i.state FROM mip.rollback('lock-d', 1) c, mip.instances('lock-a') i
$$);
SELECT test.family_locks();
SELECT d.xid || ' ' || c.state FROM mip.in_doubt d, mip.commit(d.xid, d.xinst) c;
SELECT test.family_locks();

-- mip.instances that fails in a savepoint: no family lock stays.
CREATE ROLE mip_regress_stranger;
SELECT test.steps($$
	t1: MIP lock-e 1
	t2: SET ROLE mip_regress_stranger
	t2: BEGIN
	t2: SAVEPOINT s
	t2: SELECT state FROM mip.instances('lock-e')
	t2: ROLLBACK TO s
	t2: SELECT count(*) FROM mip.instances('other')
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: COMMIT
	t2: RESET ROLE
	t1: SELECT state FROM mip.rollback('lock-e', 1)
$$);
SELECT test.family_locks();

-- SET ROLE between mip.begin and mip.prepare: no instance that nobody can finish.
CREATE ROLE mip_regress_owner;
CREATE ROLE mip_regress_member IN ROLE mip_regress_owner;
GRANT ALL ON r TO mip_regress_owner;
SELECT test.steps($$
	t1: SET SESSION AUTHORIZATION mip_regress_member
	t1: SET ROLE mip_regress_owner
	t1: MIP role 1
	t1: UPDATE r SET v = 1 WHERE id = 1
	t1: RESET ROLE
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t1: ROLLBACK
	t1: RESET SESSION AUTHORIZATION
	t1: SELECT state FROM mip.instances('role')
$$);
SELECT count(*) FROM pg_prepared_xacts;

-- An ending that is not the end of its message: an error, and the session lives.
BEGIN\; SELECT mip.begin('end', 1)\; SELECT state FROM mip.prepare(NULL, NULL)\; ROLLBACK;
:code
ROLLBACK;
BEGIN\; SAVEPOINT s\; RELEASE s\; SELECT mip.begin('end', 1)\; SELECT state FROM mip.prepare(NULL, NULL)\; ROLLBACK TO s;
:code
ROLLBACK;
BEGIN\; SELECT mip.begin('end', 1)\; SELECT state FROM mip.prepare(NULL, NULL)\; SELECT 1;
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('end', 1);
SELECT x.state FROM mip.prepare(NULL, NULL) x, mip.prepare(NULL, NULL) y;
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('end', 1);
SELECT (mip.commit_one_phase(NULL, NULL)).state FROM generate_series(1, 2);
:code
ROLLBACK;
SELECT state FROM mip.instances('end');
SELECT count(*) FROM pg_prepared_xacts;

-- mip.begin with the number of a committed instance does not hide that one
-- from the others: one instance a family commits.
SELECT test.steps($$
	t1: MIP once 1
	t1: INSERT INTO r VALUES (10, 1)
	t1: SELECT state FROM mip.commit_one_phase(NULL, NULL)
	t1: BEGIN
	t1: SELECT mip.begin('once', 1)
	u: SELECT xinst || ' ' || state FROM mip.instances('once')
	t2: BEGIN
	t2: SELECT mip.begin('once', 2)
	t2: SELECT state FROM mip.commit_one_phase(NULL, NULL)
	t1: ROLLBACK
	t2: ROLLBACK
	u: SELECT xinst || ' ' || state FROM mip.instances('once')
	t1: MIP twice 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t1: SELECT state FROM mip.rollback('twice', 1)
	t1: MIP twice 2
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t1: MIP twice 1
	t1: MIP twice 2
	u: SELECT xinst || ' ' || state FROM mip.instances('twice')
	t1: SELECT xinst || ' ' || state FROM mip.rollback('twice', 2)
	t1: MIP twice 1
	t1: MIP twice 2
$$);
DELETE FROM r WHERE id = 10;

-- A retry waits for an outsider, who waits for the retry's prepared sibling:
-- the outsider gives way; first for a row, then for an index entry.
SELECT test.steps($$
	u: SET lock_timeout = 0
	t2: SET lock_timeout = 0
	t1: MIP cycle-a 1
	t1: UPDATE r SET v = 1 WHERE id = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	u: BEGIN
	u: UPDATE r SET v = 3 WHERE id = 2
	t2: MIP cycle-a 2
	t2& UPDATE r SET v = 2 WHERE id = 2
	t2? waits
	u& UPDATE r SET v = 3 WHERE id = 1
	u? result
	u: ROLLBACK
	t2? result
	t2: UPDATE r SET v = 2 WHERE id = 1
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	t2: SELECT xinst || ' ' || state FROM mip.commit('cycle-a', 2)
$$);
SELECT test.steps($$
	t1: MIP cycle-b 1
	t1: UPDATE r SET v = 1 WHERE id = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	u: BEGIN
	u: INSERT INTO r VALUES (100, 3)
	u& UPDATE r SET v = 3 WHERE id = 1
	u? waits
	t2: MIP cycle-b 2
	t2& INSERT INTO r VALUES (100, 2)
	u? result
	u: ROLLBACK
	t2? result
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	t2: SELECT xinst || ' ' || state FROM mip.commit('cycle-b', 2)
	u: SET lock_timeout = '3s'
	t2: SET lock_timeout = '3s'
$$);
DELETE FROM r WHERE id = 100;

-- An outsider's INSERT waits for an instance that deletes the row, even if
-- its sibling has only locked it.
SELECT test.steps($$
	t1: MIP reuse 1
	t1: SELECT v FROM r WHERE id = 5 FOR UPDATE
	t2: MIP reuse 2
	t2: DELETE FROM r WHERE id = 5
	u& INSERT INTO r VALUES (5, 5)
	u? waits
	t1: ROLLBACK
	t2: SELECT state FROM mip.commit_one_phase(NULL, NULL)
	u? result
$$);
-- ... even if its sibling has updated it and is gone
SELECT test.steps($$
	t1: MIP reuse-b 1
	t1: UPDATE r SET v = 1 WHERE id = 5
	t2: MIP reuse-b 2
	t2: DELETE FROM r WHERE id = 5
	t1: ROLLBACK
	u& INSERT INTO r VALUES (5, 6)
	u? waits
	t2: SELECT state FROM mip.commit_one_phase(NULL, NULL)
	u? result
$$);
SELECT * FROM r WHERE id = 5;

-- The MIPT itself cannot opt in: siblings would not see each other's rows.
SELECT mip.enable('mip.mipt');
:code
SELECT amname FROM pg_am JOIN pg_class c ON c.relam = pg_am.oid WHERE c.oid = 'mip.mipt'::regclass;

-- Index builds and writes in one session: statistics are not left pointing to
-- a relation that is gone (an assert build fails).
CREATE TABLE s (id int PRIMARY KEY, v int) USING mip;
INSERT INTO s VALUES (1, 1);
CREATE INDEX ON s (v);
REINDEX TABLE s;
SELECT count(*) FROM s;
BEGIN;
CREATE INDEX ON s ((v + 1));
DROP TABLE s;
COMMIT;

-- An ending that is overtaken reads out-of-line values of the MIPT. A deferred
-- trigger holds it up meanwhile.
CREATE TABLE h (i int) USING mip;
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN PERFORM pg_advisory_xact_lock_shared(70413); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON h DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold();
SELECT test.steps($$
	v: SELECT pg_advisory_lock(70413)
	t1: MIP long 3
	t2: MIP long 2
	t2: INSERT INTO h VALUES (1)
	t2& SELECT state FROM mip.prepare(NULL, NULL)
	t2? waits 70413
	t1: SELECT length(result) FROM mip.prepare(NULL, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) i))
	v: SELECT pg_advisory_unlock(70413)
	t2? result
	t2: SELECT state FROM mip.commit('long', 3)
$$);
DROP TABLE h;
DROP FUNCTION hold();

-- A commit in one phase removes the out-of-line values that its overlay has
-- replaced.
CREATE TABLE o (id int PRIMARY KEY, v int, b text) USING mip;
ALTER TABLE o ALTER b SET STORAGE external;
INSERT INTO o SELECT i, 0, repeat('o', 5000) FROM generate_series(1, 4) i;
SELECT reltoastrelid::regclass AS toast FROM pg_class WHERE oid = 'o'::regclass \gset
SELECT count(DISTINCT chunk_id) FROM :toast;
SELECT test.steps($$
	t1: MIP toast 1
	t1: UPDATE o SET v = 1
	t2: MIP toast 2
	t2: UPDATE o SET b = repeat('n', 5000) WHERE id = 1
	t2: DELETE FROM o WHERE id = 2
	t1: ROLLBACK
	t2: SELECT state FROM mip.commit_one_phase(NULL, NULL)
$$);
SELECT count(DISTINCT chunk_id) FROM :toast;
SELECT id, left(b, 1) FROM o ORDER BY id;
DROP TABLE o;

-- SERIALIZABLE: a change beside a sibling conflicts with those who have read
-- the row. One of the two must fail, else both rows are gone.
CREATE TABLE skew (id int PRIMARY KEY, v int) USING mip;
INSERT INTO skew VALUES (1, 0), (2, 0);
SELECT test.steps($$
	t1: MIP skew 1 SERIALIZABLE
	t1: SELECT v FROM skew WHERE id = 1
	t2: MIP skew 2
	t2: UPDATE skew SET v = 2 WHERE id = 2
	u: BEGIN ISOLATION LEVEL SERIALIZABLE
	u: SELECT v FROM skew WHERE id = 2
	u: DELETE FROM skew WHERE id = 1
	t1: DELETE FROM skew WHERE id = 2
	u: COMMIT
	t2: ROLLBACK
	t1: SELECT state FROM mip.commit_one_phase(NULL, NULL)
	t1: ROLLBACK
$$);
SELECT * FROM skew;
DROP TABLE skew;

-- An index-only scan that was planned before the first change beside a
-- sibling, as a SQL function does, does not see the replaced version again,
-- though VACUUM finds its page all-visible: it is not planned beside siblings,
CREATE TABLE ios (id int, v int) USING mip;
INSERT INTO ios SELECT i, 0 FROM generate_series(1, 2000) i;
CREATE INDEX ON ios (id);
VACUUM (ANALYZE) ios;
CREATE FUNCTION change_and_count() RETURNS bigint LANGUAGE sql AS $$
	SELECT pg_advisory_xact_lock(70411);
	UPDATE ios SET v = 2 WHERE id = 50;
	SELECT pg_advisory_xact_lock(70412);
	SELECT count(id) FROM ios WHERE id = 50 $$;
SELECT test.steps($$
	t2: SET enable_seqscan = off
	t2: SET enable_bitmapscan = off
	u: SELECT pg_advisory_lock(70411)
	v: SELECT pg_advisory_lock(70412)
	t1: MIP plan-a 1
	t2: MIP plan-a 2
	t1: UPDATE ios SET v = 1 WHERE id = 50
	t2& SELECT change_and_count()
	t2? waits 70411
	u: SELECT pg_advisory_unlock(70411)
	t2? waits 70412
	t1: ROLLBACK
$$);
VACUUM ios;
SELECT test.steps($$
	v: SELECT pg_advisory_unlock(70412)
	t2? result
	t2: ROLLBACK
$$);
-- ... and run by an index scan if the first sibling came later.
SELECT test.steps($$
	u: SELECT pg_advisory_lock(70411)
	v: SELECT pg_advisory_lock(70412)
	t2: MIP plan-b 2
	t2& SELECT change_and_count()
	t2? waits 70411
	t1: MIP plan-b 1
	t1: UPDATE ios SET v = 1 WHERE id = 50
	u: SELECT pg_advisory_unlock(70411)
	t2? waits 70412
	t1: ROLLBACK
$$);
VACUUM ios;
SELECT test.steps($$
	v: SELECT pg_advisory_unlock(70412)
	t2? result
	t2: ROLLBACK
	t2: RESET enable_seqscan
	t2: RESET enable_bitmapscan
$$);
DROP FUNCTION change_and_count;
DROP TABLE ios;

-- The hand-over of a key share lock does not follow a version that was rolled
-- back, whose place may be empty or another row's.
CREATE TABLE wide (id int PRIMARY KEY, v text) USING mip;
ALTER TABLE wide ALTER v SET STORAGE plain;
CREATE TABLE narrow (id int PRIMARY KEY, p int REFERENCES wide) USING mip;
INSERT INTO wide SELECT i, repeat('w', 1100) FROM generate_series(1, 7) i;
SELECT test.steps($$
	t1: MIP follow 1
	t1: UPDATE wide SET v = repeat('1', 1100) WHERE id = 1
	t2: MIP follow 2
	t2: UPDATE wide SET v = repeat('2', 1100) WHERE id = 1
	t2: INSERT INTO wide SELECT i, repeat('w', 1100) FROM generate_series(11, 15) i
	t2: SAVEPOINT s
	t2: UPDATE wide SET v = repeat('3', 1100) WHERE id = 1
	t2: SELECT ctid FROM wide WHERE id = 1
	t2: ROLLBACK TO s
	t2: RELEASE s
	u: BEGIN
	u: INSERT INTO narrow VALUES (1, 1)
	t1: ROLLBACK
	t2: SELECT state FROM mip.prepare(NULL, NULL)
$$);
VACUUM (TRUNCATE off) wide;
SELECT test.steps($$
	t2: SELECT state FROM mip.commit('follow', 2)
	t1& DELETE FROM wide WHERE id = 1
	t1? waits
	u: COMMIT
	t1? result
$$);
SELECT id, ctid, left(v, 1) FROM wide ORDER BY id;
SELECT test.check('wide');
DROP TABLE narrow, wide;

-- mip.enable and mip.disable wait for those who use the table; a stranger
-- does not get as far as that.
SELECT test.steps($$
	t1: MIP switch 1
	t1: UPDATE r SET v = 1 WHERE id = 1
	t2: MIP switch 2
	t2: UPDATE r SET v = 2 WHERE id = 1
	u: SET lock_timeout = '100ms'
	u: SELECT mip.disable('r')
	u: SELECT mip.enable('r')
	u: SET ROLE mip_regress_stranger
	u: SELECT mip.disable('r')
	u: RESET ROLE
	u: SET lock_timeout = '3s'
	t2: SELECT v FROM r WHERE id = 1
	t1: ROLLBACK
	t2: ROLLBACK
$$);

-- Deferred constraints and triggers run as part of an ending.
CREATE TABLE d (id int UNIQUE DEFERRABLE INITIALLY DEFERRED, r int REFERENCES r DEFERRABLE INITIALLY DEFERRED) USING mip;
CREATE TABLE d_count (n int) USING mip;
INSERT INTO d_count VALUES (0);
CREATE FUNCTION count_d() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN UPDATE d_count SET n = n + 1; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER count_d AFTER INSERT ON d DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_d();
SELECT test.steps($$
	t1: MIP deferred 1
	t1: INSERT INTO d VALUES (1, 1)
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP deferred 2
	t2: INSERT INTO d VALUES (1, 2)
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	t2: SELECT xinst || ' ' || state FROM mip.commit('deferred', 2)
	t1: MIP deferred-one 1
	t1: INSERT INTO d VALUES (2, 1)
	t1: SELECT state FROM mip.commit_one_phase(NULL, NULL)
	t1: MIP deferred-bad 1
	t1: INSERT INTO d VALUES (3, 99)
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t1: MIP deferred-bad 2
	t1: INSERT INTO d VALUES (2, 1)
	t1: SELECT state FROM mip.commit_one_phase(NULL, NULL)
$$);
SELECT * FROM d ORDER BY id;
SELECT * FROM d_count;
DROP TABLE d, d_count;
DROP FUNCTION count_d();

-- A foreign key's lock on a row beside an instance that updates it and one
-- whose delete was rolled back: no wait, no error.
SELECT test.steps($$
	t1: MIP share 1
	t1: UPDATE r SET v = 1 WHERE id = 7
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP share 2
	t2: SAVEPOINT s
	t2: DELETE FROM r WHERE id = 7
	t2: ROLLBACK TO s
	t2: RELEASE s
	t2: SELECT state FROM mip.prepare(NULL, NULL)
	u: SELECT v FROM r WHERE id = 7 FOR KEY SHARE
	t1: SELECT state FROM mip.rollback('share', 2)
	u: SELECT v FROM r WHERE id = 7 FOR KEY SHARE
	t1: SELECT state FROM mip.rollback('share', 1)
	t1: MIP share-b 1
	t1: UPDATE r SET v = 1 WHERE id = 7
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP share-b 2
	t2: DELETE FROM r WHERE id = 7
	t2: SELECT state FROM mip.prepare(NULL, NULL)
	u& SELECT v FROM r WHERE id = 7 FOR KEY SHARE
	u? waits
	t1: SELECT state FROM mip.rollback('share-b', 2)
	u? result
	t1: SELECT state FROM mip.rollback('share-b', 1)
$$);

-- A change beside a sibling is found again, whatever was on the stack: each of
-- many rows, by many ways.
CREATE TABLE many (id int PRIMARY KEY, v int) USING mip;
INSERT INTO many SELECT i, 0 FROM generate_series(1, 2000) i;
SELECT test.steps($$
	t1: MIP many 1
	t1: UPDATE many SET v = -1
	t2: MIP many 2
	t2: UPDATE many SET v = v + 1 WHERE id = ANY (ARRAY(SELECT generate_series(1, 2000)))
	t2: UPDATE many SET v = v + 1 WHERE id % 2 = 0
	t2: DO 'BEGIN FOR i IN 1 .. 2000 LOOP UPDATE many SET v = v + 1 WHERE id = i; END LOOP; END'
	t2: SELECT count(*) || ' ' || sum(v) FROM many
	t1: ROLLBACK
	t2: SELECT state FROM mip.prepare(NULL, NULL)
	t2: SELECT state FROM mip.commit('many', 2)
$$);
SELECT count(*), sum(v) FROM many;
SELECT test.check('many');
DROP TABLE many;

-- A row that an instance has locked beside a sibling that has updated it and
-- is gone, and whose new version is stored out of line: heap locks the old
-- version meanwhile, which an assertion looks at.
CREATE TABLE long (id int PRIMARY KEY, v text) USING mip;
ALTER TABLE long ALTER v SET STORAGE external;
INSERT INTO long VALUES (1, repeat('a', 5000));
SELECT test.steps($$
	t1: MIP gone 1
	t1: UPDATE long SET v = repeat('b', 5000)
	t2: MIP gone 2
	t2: SELECT length(v) FROM long FOR NO KEY UPDATE
	t1: ROLLBACK
	t2: UPDATE long SET v = repeat('c', 6000) RETURNING length(v)
	t2: SELECT state FROM mip.commit_one_phase(NULL, NULL)
$$);
SELECT length(v) FROM long;
SELECT test.check('long');
DROP TABLE long;

-- In heap's line for a row of a table that has not opted in, behind an outsider
-- who waits for somebody who waits for a sibling: he gives way.
SELECT test.open('w');
CREATE TABLE hp (id int PRIMARY KEY, v int);
CREATE TABLE ch (id int PRIMARY KEY, hp int REFERENCES hp) USING mip;
INSERT INTO hp VALUES (1, 0);
SELECT test.steps($$
	t1: MIP line 1
	t1: UPDATE r SET v = 1 WHERE id = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	w: BEGIN
	w: SELECT v FROM hp WHERE id = 1 FOR UPDATE
	u: BEGIN
	u& SELECT v FROM hp WHERE id = 1 FOR UPDATE
	u? waits
	w& UPDATE r SET v = 2 WHERE id = 1
	w? waits
	t2: MIP line 2
	t2& INSERT INTO ch VALUES (1, 1)
	w? result
	w: ROLLBACK
	u? result
	u: ROLLBACK
	t2? result
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	t2: SELECT xinst || ' ' || state FROM mip.commit('line', 2)
$$);
DROP TABLE ch, hp;
UPDATE r SET v = 2 WHERE id = 1;

-- What would make siblings wait, asked for before mip.begin or in a disguise.
CREATE TABLE hp (id int PRIMARY KEY, v int);
INSERT INTO hp VALUES (1, 0);
SELECT test.steps($$
	t1: BEGIN
	t1: LOCK TABLE r IN SHARE ROW EXCLUSIVE MODE
	t1: SELECT mip.begin('before', 1)
	t1: ROLLBACK
	t1: BEGIN
	t1: LOCK TABLE r IN ROW EXCLUSIVE MODE
	t1: SELECT mip.begin('before', 1)
	t1: ROLLBACK
	t1: BEGIN
	t1: DECLARE c CURSOR FOR SELECT v FROM hp FOR UPDATE
	t1: SELECT mip.begin('before', 2)
	t1: FETCH c
	t1: ROLLBACK
	t1: BEGIN
	t1: DECLARE c CURSOR FOR SELECT v FROM r ORDER BY id FOR UPDATE
	t1: SELECT mip.begin('before', 3)
	t1: FETCH c
	t1: ROLLBACK
	t1: MIP before 4
	t1: EXPLAIN ANALYZE CREATE TABLE disguised AS SELECT 1
	t1: ROLLBACK
$$);
DROP TABLE hp;

-- A sibling has locked the row FOR UPDATE, and lost to an update that leaves
-- the key alone: an outsider's foreign key follows it, as in heap.
CREATE TABLE parent (id int PRIMARY KEY, v int) USING mip;
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent) USING mip;
INSERT INTO parent VALUES (1, 0);
SELECT test.steps($$
	t1: MIP followed 1
	t1: UPDATE parent SET v = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP followed 2
	t2: SELECT v FROM parent FOR UPDATE
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	u: BEGIN ISOLATION LEVEL REPEATABLE READ
	u: SELECT v FROM parent
	v: SELECT xinst || ' ' || state FROM mip.commit('followed', 1)
	u: INSERT INTO child VALUES (1, 1)
	v: DELETE FROM parent
	u: COMMIT
	v: DELETE FROM parent
$$);
SELECT test.check('parent');
SELECT test.corruption('parent');
DROP TABLE child, parent;

-- An instance that merely locks a row, beside a foreign key: whoever asks
-- whether the key is there need not wait.
SELECT test.steps($$
	u: BEGIN
	u: SELECT v FROM r WHERE id = 1 FOR KEY SHARE
	t1: MIP merely 1
	t1: SELECT v FROM r WHERE id = 1 FOR NO KEY UPDATE
	v: INSERT INTO r VALUES (1, 5) ON CONFLICT DO NOTHING
	u: INSERT INTO r VALUES (1, 5) ON CONFLICT DO NOTHING
	t1& DELETE FROM r WHERE id = 1
	t1? waits
	u: COMMIT
	t1? result
	t1: ROLLBACK
$$);

-- A place of a version that a rolled back subtransaction has replaced another
-- one with is used again: that is no version of the replaced row.
CREATE TABLE place (id int PRIMARY KEY, v int) USING mip;
INSERT INTO place VALUES (1, 0);
SELECT test.steps($$
	t1: MIP place 1
	t1: UPDATE place SET v = 1
	t2: MIP place 2
	t2: SAVEPOINT s
	t2: UPDATE place SET v = 2 WHERE id = 1
	t2: ROLLBACK TO s
	t2: RELEASE s
	v: VACUUM (TRUNCATE off) place
	t2: INSERT INTO place VALUES (2, 0) RETURNING ctid
	t2: UPDATE place SET v = 3 WHERE id = 1 RETURNING ctid
	u: BEGIN
	u: SELECT v FROM place WHERE id = 1 FOR KEY SHARE
	t2: DELETE FROM place WHERE id = 2
	u: COMMIT
	t1: ROLLBACK
	t2: SELECT state FROM mip.commit_one_phase(NULL, NULL)
$$);
SELECT * FROM place;
SELECT test.check('place');
DROP TABLE place;

-- Nobody keeps others from a family in which he has changed nothing.
SELECT test.steps($$
	v: SELECT pg_advisory_lock(1)
	u& SELECT pg_advisory_xact_lock(1) FROM mip.acknowledge('order-4711'), mip.forget('order-4711')
	u? waits 1
	t1: MIP order-4711 1
	t1: ROLLBACK
	v: SELECT pg_advisory_unlock(1)
	u? result
$$);

-- One statement that acknowledges a request and forgets it.
SELECT test.steps($$
	t1: MIP thrice 1
	t1: SELECT state FROM mip.commit_one_phase(NULL, 'x')
	t1: SELECT mip.forget('thrice') FROM mip.acknowledge('thrice')
	t1: SELECT count(*) FROM mip.instances('thrice')
$$);

-- Who finishes a serializable instance may be serializable himself.
SELECT test.steps($$
	t1: MIP serializable-caller 1 SERIALIZABLE
	t1: UPDATE r SET v = 2 WHERE id = 1
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: SET default_transaction_isolation = 'serializable'
	t2: SELECT state FROM mip.commit('serializable-caller', 1)
	t2: RESET default_transaction_isolation
	u: BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE
	u: SELECT v FROM r WHERE id = 1
	u: COMMIT
	v: SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'
$$);

-- Rows that somebody is writing to the MIPT, as a dump does that is restored in
-- one transaction, are not instances.
SELECT test.steps($$
	t2: MIP restored 3
	u: BEGIN
	u: INSERT INTO mip.mipt (xid, xinst, result, sites, owner, since, aborted) VALUES ('restored', 1, 'old', '{}', current_user::regrole, now(), false)
	t1: MIP restored 2
	t1: ROLLBACK
	v: SELECT state FROM mip.instances('restored')
	v: SELECT state FROM mip.commit('restored', 1)
	v: SELECT count(*) FROM mip.in_doubt
	t2: SELECT state FROM mip.prepare(NULL, NULL)
	t2: ROLLBACK
	u: INSERT INTO mip.mipt (xid, xinst) VALUES (NULL, 1)
	u: ROLLBACK
	u: BEGIN
	t2: MIP restored 4
	u: INSERT INTO mip.mipt (xid, xinst, result, sites, owner, since, aborted) VALUES ('restored', 1, 'old', '{}', current_user::regrole, now(), false)
	u: COMMIT
	t2: SELECT state FROM mip.prepare(NULL, NULL)
	t2: ROLLBACK
	v: SELECT state FROM mip.instances('restored')
	v: SELECT mip.forget('restored')
$$);

-- Statements that decide the same families in opposite orders do not wait for
-- each other in a circle when they note the losers.
SELECT test.begin('t1', 'book ' || f, x), test.prepare('t1') FROM unnest('{a,b}'::text[]) f, generate_series(1, 2) x;
SELECT test.steps($$
	t1: SET mip.debug_stop_at = 'wait:book'
	u: SELECT pg_advisory_lock(1)
	v: SELECT pg_advisory_lock(2)
	t2& SELECT n || pg_advisory_xact_lock(2)::text FROM (SELECT count(*) FROM unnest('{b,a}'::text[]) f, mip.rollback('book ' || f, 2) OFFSET 0) d (n)
	t2? waits 2
	t1& SELECT count(*) FROM unnest('{a,b}'::text[]) f, mip.rollback('book ' || f, 1)
	t1? waits 1
	v: SELECT pg_advisory_unlock(2)
	t2? waits
	u: SELECT pg_advisory_unlock(1)
	t1? result
	t2? result
	t1: RESET mip.debug_stop_at
	v: SELECT string_agg(f || xinst || state, ' ' ORDER BY f, xinst) FROM unnest('{a,b}'::text[]) f, mip.instances('book ' || f)
$$);

-- A key share lock waits for a loser, then for the winner whose version has come in
-- its place, and holds on that one.
CREATE TABLE child (id int PRIMARY KEY, r int REFERENCES r) USING mip;
SELECT test.steps($$
	t1: MIP missed 1
	t1: UPDATE r SET v = 1 WHERE id = 9
	t1: DELETE FROM r WHERE id = 9
	t1: SELECT state FROM mip.prepare(NULL, NULL)
	t2: MIP missed 2
	t2: UPDATE r SET v = 2 WHERE id = 9
	t2: SELECT xinst || ' ' || state FROM mip.prepare(NULL, NULL)
	u: BEGIN
	u& INSERT INTO child VALUES (1, 9)
	u? waits
	v: SELECT pg_advisory_lock(1)
	t1: SET mip.debug_stop_at = 'wait:losers'
	t1& SELECT xinst || ' ' || state FROM mip.commit('missed', 2)
	t1? waits 1
	u? waits
	v: SELECT pg_advisory_unlock(1)
	t1? result
	t1: RESET mip.debug_stop_at
	u? result
	v& DELETE FROM r WHERE id = 9
	v? waits
	u: COMMIT
	v? result
$$);
DROP TABLE child;

SELECT * FROM r ORDER BY id;
SELECT test.check('r');
SELECT test.corruption('r');
SELECT count(*) FROM pg_prepared_xacts;
SELECT test.family_locks();
SELECT test.close('t1', 't2', 'u', 'v', 'w');
DROP TABLE r;
DROP ROLE mip_regress_stranger, mip_regress_member, mip_regress_owner;
