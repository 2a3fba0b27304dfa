-- What removes MIPT entries, and why no request runs a second time for it.
\set VERBOSITY terse
CREATE DATABASE mip_expiry;
\c mip_expiry
CREATE EXTENSION pg_mip;
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\set ECHO all
SELECT test.open('s');
SET timezone = 'UTC';
SET lock_timeout = '10s';
CREATE TABLE ex (id int PRIMARY KEY, v int) USING mip;
INSERT INTO ex VALUES (1, 0);

-- The n-th XID made at a time
CREATE FUNCTION xid_of(made timestamptz, n int) RETURNS text LANGUAGE sql AS $$
	SELECT lpad(to_hex(ms >> 16), 8, '0') || '-' || lpad(to_hex(ms & 65535), 4, '0')
		|| '-7000-8000-' || lpad(to_hex(n), 12, '0')
	FROM (SELECT (extract(epoch FROM made) * 1000)::bigint) AS m (ms)
$$;
CREATE VIEW entries AS
	SELECT coalesce(mip.xid_time(xid)::date::text, xid) AS xid, xinst, request, result, sites, aborted, acknowledged
	FROM mip.mipt ORDER BY 1, xinst;
CREATE FUNCTION horizon() RETURNS timestamptz LANGUAGE sql AS
	'SELECT to_timestamp(last_value / 1000.0) FROM mip.horizon WHERE is_called';

-- The time of an XID: one form only
SELECT xid, mip.xid_time(xid) FROM (VALUES
	('016f5e66-e800-7000-8000-000000000001'),
	('016f5e66-e801-7fff-bfff-ffffffffffff'),
	('00000000-0000-7000-8000-000000000000'),
	('ffffffff-ffff-7000-9000-000000000000'),
	('016F5E66-E800-7000-8000-000000000001'),
	('016f5e66e80070008000000000000001'),
	('016f5e66-e800-4000-8000-000000000001'),
	('016f5e66-e800-7000-7000-000000000001'),
	('016f5e66-e800-7000-c000-000000000001'),
	('016f5e66-e800-7000-8000-00000000000g'),
	('016f5e66-e800-7000-8000-0000000000011'),
	('016f5e66-e800-7000-8000-00000000000'),
	('016f5e66-e800-7000-8000 000000000001'),
	('016f5e66xe800-7000-8000-000000000001'),
	('8f1c')) AS x (xid);
SELECT mip.xid_time(xid_of('2026-01-02 03:04:05.678', 1));

-- ---- acknowledging ----

BEGIN; SELECT mip.begin('ack', 1, '{x,y}');
UPDATE ex SET v = 1;
SELECT xinst, state, acknowledged FROM mip.prepare('request', 'result');
SELECT mip.acknowledge('ack');
SELECT xinst, state FROM mip.commit('ack', 1);
-- a sibling of before
BEGIN; SELECT mip.begin('ack', 2, '{x,y}');
ROLLBACK;
SELECT mip.acknowledge('ack');
SELECT xinst, state, request, result, acknowledged FROM mip.instances('ack');
\set VERBOSITY default
BEGIN; SELECT mip.begin('ack', 3, '{x,y}');
ROLLBACK;
\set VERBOSITY sqlstate
BEGIN; SELECT mip.begin('ack', 3, '{x,y}');
ROLLBACK;
\set VERBOSITY terse
-- again, as everything may be repeated
SELECT mip.acknowledge('ack');
SELECT xinst, state, result, acknowledged FROM mip.commit('ack', 1);
-- another winner, or none: that the result is gone is told, not a null one
SELECT mip.commit('ack', 2);
SELECT mip.rollback('ack', 1);

-- Entries of losers go, too.
BEGIN; SELECT mip.begin('ack losers', 1);
SELECT FROM mip.prepare('request', 'one');
BEGIN; SELECT mip.begin('ack losers', 2);
SELECT FROM mip.prepare('request', 'two');
SELECT xinst, state FROM mip.commit('ack losers', 2);
SELECT mip.acknowledge('ack losers');
SELECT xinst, state FROM mip.instances('ack losers');

-- Where there is nothing to acknowledge
SELECT mip.acknowledge('ack nothing');
SELECT * FROM mip.instances('ack nothing');
BEGIN; SELECT mip.begin('ack aborted', 1);
SELECT FROM mip.prepare('', '');
SELECT FROM mip.rollback('ack aborted', 1);
SELECT mip.acknowledge('ack aborted');
SELECT mip.acknowledge(NULL);
SELECT mip.acknowledge('');
BEGIN; SELECT mip.acknowledge('ack');
ROLLBACK;
DO $$ BEGIN PERFORM mip.acknowledge('ack'); END $$;
BEGIN; SELECT mip.begin('ack within', 1); SELECT mip.acknowledge('ack');
ROLLBACK;
-- many at once
SELECT mip.acknowledge(xid) FROM unnest('{ack,ack losers}'::text[]) AS xid;
SELECT mip.forget(xid) FROM unnest('{ack,ack losers,ack aborted}'::text[]) AS xid;

-- ---- too old by the clock ----

-- Whoever reads only learns it at the end, ...
BEGIN; SELECT mip.begin(xid_of('2001-01-01', 1), 1, '{x,y}');
SELECT v FROM ex;
\set VERBOSITY default
SELECT FROM mip.prepare('request', 'result');
\set VERBOSITY terse
-- ... whoever writes, before that.
BEGIN; SELECT mip.begin(xid_of('2001-01-01', 2), 1, '{x,y}');
UPDATE ex SET v = 2;
ROLLBACK;
BEGIN; SELECT mip.begin(xid_of('2001-01-02', 1), 1, '{x,y}');
UPDATE ex SET v = 2;
ROLLBACK;
BEGIN; SELECT mip.begin(xid_of('2001-01-03', 1), 1, '{x,y}');
SELECT * FROM ex FOR UPDATE;
ROLLBACK;
BEGIN; SELECT mip.begin(xid_of('2001-01-04', 1), 1, '{x,y}');
COPY ex FROM PROGRAM 'true';
ROLLBACK;
BEGIN; SELECT mip.begin(xid_of('2001-01-05', 1), 1);
SELECT FROM mip.commit_one_phase('request', NULL);
BEGIN READ ONLY; SELECT mip.begin(xid_of('2001-01-06', 1), 1, '{x,y}');
SELECT FROM mip.prepare('request', 'result');
SELECT * FROM entries;
-- Who has been refused stays so, also when the clock was wrong.
SELECT horizon();
SET mip.retention = 0;
BEGIN; SELECT mip.begin(xid_of('2001-01-06', 1), 2, '{x,y}');
ROLLBACK;
BEGIN; SELECT mip.begin(xid_of('2001-01-06', 2), 2, '{x,y}');
ROLLBACK;
BEGIN; SELECT mip.begin(xid_of('2001-01-06 00:00:00.001', 1), 2, '{x,y}');
UPDATE ex SET v = 2;
ROLLBACK;
RESET mip.retention;

-- Cancelling is possible, and is doing nothing.
BEGIN; SELECT mip.begin(xid_of('2001-02-01', 1), 1, '{x,y}');
SELECT xinst, state, acknowledged FROM mip.prepare('request', NULL);
SELECT xinst, state FROM mip.commit(xid_of('2001-02-01', 1), 1);
-- What has been written before the request became too old counts. (A refusal
-- moves the horizon: each XID is newer than the one before.)
SELECT xid_of(now(), 1) AS xid \gset
BEGIN; SELECT mip.begin(:'xid', 1, '{x,y}');
UPDATE ex SET v = 3;
SET LOCAL mip.debug_clock_offset = '31d';
\set VERBOSITY sqlstate
SELECT FROM mip.prepare('request', NULL);
SELECT xid_of(now() + '1s', 1) AS xid \gset
BEGIN; SELECT mip.begin(:'xid', 1, '{x,y}');
SET LOCAL mip.debug_clock_offset = '31d';
SELECT lo_create(0) > 0 AS created, p.state FROM mip.prepare('request', NULL) AS p;
SELECT xid_of(now() + '1500ms', 1) AS xid \gset
BEGIN; SELECT mip.begin(:'xid', 1, '{x,y}');
SET LOCAL mip.debug_clock_offset = '31d';
WITH w AS (INSERT INTO ex VALUES (2, 0)) SELECT state FROM mip.prepare('request', NULL) AS p;
\set VERBOSITY terse
SELECT v FROM ex;
-- (before that nobody minds)
SELECT xid_of(now() + '2s', 1) AS xid \gset
BEGIN; SELECT mip.begin(:'xid', 1, '{x,y}');
UPDATE ex SET v = 4;
SELECT state FROM mip.prepare('request', NULL);
SELECT state FROM mip.commit(:'xid', 1);
-- A clock that has jumped ahead, and back, refuses no new ones.
SELECT xid_of(now() + '3s', 1) AS xid \gset
BEGIN; SELECT mip.begin(:'xid', 1);
UPDATE ex SET v = 5;
SELECT state FROM mip.commit_one_phase('request', 'result');
SELECT mip.forget(xid) FROM mip.mipt;
SELECT setval('mip.horizon', 0, false);

-- ---- expiry ----

-- Families of any age, by a clock that allows them: one instance commits, and
-- one that is lower is rolled back.
SET mip.retention = 0;
CREATE TABLE kind (no serial, xid text, sites text, ending text, acknowledge boolean);
INSERT INTO kind (xid, sites, ending, acknowledge) VALUES
	(xid_of('2002-01-01', 1), '{}', 'commit', false),
	(xid_of('2002-01-02', 1), '{x}', 'commit', false),
	(xid_of('2002-01-03', 1), '{x,y}', 'commit', false),
	(xid_of('2002-01-04', 1), '{x,y}', 'commit', true),
	(xid_of('2002-01-05', 1), '{x,y}', 'nothing', false),
	(xid_of('2002-01-06', 1), '{x,y}', 'rollback', false),
	(xid_of('2002-01-07', 1), '{}', 'nothing', false),
	(xid_of('2002-01-08', 1), '{}', 'commit', true),
	(xid_of('2902-01-01', 1), '{}', 'commit', true),
	('one site', '{}', 'commit', false),
	('two sites', '{x,y}', 'commit', false),
	('acknowledged', '{x,y}', 'commit', true),
	('in doubt', '{}', 'nothing', false),
	('aborted', '{}', 'rollback', false);
CREATE FUNCTION steps(k kind) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT step FROM unnest(ARRAY[
		format('BEGIN; SELECT mip.begin(%L, 1, %L); SELECT FROM mip.prepare(''request'', ''lower'')', k.xid, k.sites),
		format('BEGIN; SELECT mip.begin(%L, 2, %L); SELECT FROM mip.prepare(''request'', ''result'')', k.xid, k.sites),
		CASE WHEN k.ending <> 'nothing' THEN format('SELECT FROM mip.%s(%L, 2)', k.ending, k.xid) END,
		CASE WHEN k.ending = 'rollback' THEN format('SELECT FROM mip.rollback(%L, 1)', k.xid) END,
		CASE WHEN k.acknowledge THEN format('SELECT mip.acknowledge(%L)', k.xid) END]) AS step
	WHERE step IS NOT NULL
$$;
\o /dev/null
SELECT steps(kind) FROM kind ORDER BY no \gexec
\o
-- one whose commit has stopped half-way: its winner is still prepared
SELECT xid_of('2002-01-04 12:00', 1) AS half \gset
BEGIN; SELECT mip.begin(:'half', 1); SELECT FROM mip.prepare('request', 'lower');
BEGIN; SELECT mip.begin(:'half', 2); SELECT FROM mip.prepare('request', 'result');
SET mip.debug_stop_at = 'error:losers';
SELECT mip.commit(:'half', 2);
RESET mip.debug_stop_at;
SELECT mip.acknowledge(:'half');
SELECT * FROM entries;
-- for ever
SELECT mip.expire();
SELECT * FROM mip.finished();
-- not yet
SET mip.retention = '24000d';
SELECT mip.expire();
RESET mip.retention;
-- what waits for an acknowledgement
SELECT mip.xid_time(xid)::date, xinst, sites, owner = current_user AS mine FROM mip.finished();
SELECT mip.xid_time(xid)::date, xid = 'two sites' AS timeless FROM mip.finished('-1 day');
SELECT count(*) FROM mip.finished('-1 day', 1);
SELECT mip.finished('1 day', 0);
SELECT mip.finished('1 day', NULL);
SELECT mip.finished('30000 days');

-- Those that may go go, and the horizon with them.
SELECT mip.expire();
SELECT mip.expire();
SELECT * FROM entries;
SELECT horizon();
-- Those without a time by their own: only their texts.
SET mip.debug_clock_offset = '31d';
SELECT mip.expire();
SELECT mip.expire();
SELECT * FROM entries;
SELECT mip.xid_time(xid)::date, xid = 'two sites' AS timeless, xinst FROM mip.finished();
RESET mip.debug_clock_offset;
SELECT horizon();

-- Whatever the clock says now, nothing that was removed runs again.
SET mip.debug_clock_offset = '-10000d';
BEGIN; SELECT mip.begin(xid_of('2002-01-01', 1), 3);
ROLLBACK;
BEGIN; SELECT mip.begin(xid_of('2002-01-04', 1), 3, '{x,y}');
ROLLBACK;
SELECT mip.commit(xid_of('2002-01-04', 1), 2);
SELECT mip.commit(xid_of('2002-01-04', 1), 3);
SELECT mip.commit('never seen', 3);
SELECT mip.acknowledge(xid_of('2002-01-04', 1));
SELECT * FROM mip.instances(xid_of('2002-01-04', 1));
-- not newer than the horizon, but never seen: refused all the same, ...
BEGIN; SELECT mip.begin(xid_of('2002-01-01 12:00', 1), 3);
ROLLBACK;
-- ... and newer ones are not.
BEGIN; SELECT mip.begin(xid_of('2002-01-09', 1), 3);
UPDATE ex SET v = 6;
SELECT state FROM mip.commit_one_phase('request', 'result');
RESET mip.debug_clock_offset;
-- The entries that are there answer as ever.
BEGIN; SELECT mip.begin(xid_of('2002-01-03', 1), 3, '{x,y}');
ROLLBACK;
BEGIN; SELECT mip.begin(xid_of('2002-01-09', 1), 4);
ROLLBACK;
BEGIN; SELECT mip.begin('one site', 3);
ROLLBACK;
BEGIN; SELECT mip.begin('aborted', 1);
ROLLBACK;
BEGIN; SELECT mip.begin('aborted', 3);
SELECT state FROM mip.commit_one_phase('request', 'result');
BEGIN; SELECT mip.begin(xid_of('2902-01-01', 1), 3);
ROLLBACK;

-- Behind the horizon an instance may do nothing, to end the doubt of another. [no-cancel-of-done]
SELECT xid_of('2002-01-05', 1) AS xid \gset
BEGIN; SELECT mip.begin(:'xid', 3, '{x,y}');
UPDATE ex SET v = 7;
ROLLBACK;
BEGIN; SELECT mip.begin(:'xid', 3, '{x,y}');
SELECT FROM mip.prepare('request', 'result');
BEGIN; SELECT mip.begin(:'xid', 3, '{x,y}');
SELECT xinst, state FROM mip.prepare('request', NULL);
BEGIN; SELECT mip.begin(:'xid', 4, '{x,y}');
SELECT test.run('s', format('SELECT count(*)::text FROM mip.rollback(%L, %s)', :'xid', n)) FROM generate_series(1, 3) n;
SELECT FROM mip.prepare('request', NULL);
BEGIN; SELECT mip.begin(:'xid', 5, '{x,y}');
ROLLBACK;
SELECT xinst, state FROM mip.commit('in doubt', 1);
SELECT xinst, state FROM mip.commit(xid_of('2002-01-07', 1), 1);
SELECT count(*) FROM mip.in_doubt;
SELECT mip.acknowledge(xid) FROM mip.finished();

SELECT xinst, state FROM mip.instances(:'half');
SELECT xinst, state FROM mip.commit(:'half', 2);

-- Many, some at a time
INSERT INTO mip.mipt (xid, xinst, owner, since, aborted, sites)
	SELECT xid_of('2003-01-01', n), m, current_user::regrole, '2003-01-01', m < 2, '{}'
	FROM generate_series(1, 1100) n, generate_series(1, 2) m;
SELECT mip.expire();
SELECT mip.expire();
SELECT mip.expire();
SELECT mip.expire();
SELECT horizon();
SELECT * FROM entries;

-- The rows of one family need not be neighbours, nor does a statement call once.
INSERT INTO mip.mipt (xid, xinst, result, owner, since, aborted, sites)
	SELECT 'apart ' || n % 2, n, 'result', current_user::regrole,
		'2003-01-01'::date + n, n < 2, '{}'
	FROM generate_series(0, 3) n;
SELECT count(*), min(n) FROM (SELECT mip.expire() FROM generate_series(1, 3)) e (n);
SELECT xid, xinst, result, acknowledged FROM mip.mipt WHERE xid ~ 'apart';

-- An XID without a time is as old as its youngest attempt.
INSERT INTO mip.mipt (xid, xinst, result, owner, since, aborted, sites)
	VALUES ('youngest', 1, NULL, current_user::regrole, '2003-01-01', true, '{}'),
		('youngest', 2, 'result', current_user::regrole, now(), false, '{}');
SELECT mip.expire();
SELECT xinst, result, acknowledged FROM mip.mipt WHERE xid = 'youngest' ORDER BY xinst;
UPDATE mip.mipt SET since = '2003-01-01' WHERE xid = 'youngest';
SELECT mip.expire();
SELECT xinst, result, acknowledged FROM mip.mipt WHERE xid = 'youngest' ORDER BY xinst;

-- Whole families of XIDs without a time go once that is allowed for them: those
-- that are stripped, and those that still have their texts. Nothing refuses them
-- any more.
SELECT mip.forget(xid) FROM mip.mipt WHERE mip.xid_time(xid) IS NULL GROUP BY xid ORDER BY xid;
CREATE TABLE timeless (xid text, sites text, ending text, acknowledge boolean);
INSERT INTO timeless VALUES ('t one site', '{}', 'commit', false), ('t two sites', '{x,y}', 'commit', false),
	('t acknowledged', '{x,y}', 'commit', true), ('t in doubt', '{x,y}', 'nothing', false),
	('t aborted', '{}', 'rollback', false);
\o /dev/null
SELECT steps((0, t.xid, t.sites, t.ending, t.acknowledge)::kind) FROM timeless t \gexec
\o
SELECT xid_of(now(), 7) AS timed \gset
BEGIN; SELECT mip.begin(:'timed', 1); SELECT state FROM mip.commit_one_phase('request', 'result');
CREATE VIEW left_of_them AS
	SELECT xid, xinst, state FROM (SELECT DISTINCT xid FROM timeless) AS t, LATERAL mip.instances(t.xid) ORDER BY 1, 2;
SET mip.debug_clock_offset = '9d';
SELECT mip.expire();
SET mip.retention_timeless = '10d';
SELECT mip.expire();
SELECT * FROM left_of_them;
SET mip.debug_clock_offset = '11d';
SELECT mip.expire();
SELECT * FROM left_of_them;
SELECT mip.expire();
-- its own promise alone; and without the other one
SELECT state FROM mip.instances(:'timed');
SELECT mip.forget(:'timed');
SET mip.retention = 0;
SELECT mip.acknowledge('t two sites');
SELECT mip.expire();
SELECT * FROM left_of_them;
SELECT mip.expire();
RESET mip.retention;
-- An instance that ends meanwhile is a young one.
SELECT xinst, state FROM mip.commit('t in doubt', 2);
SELECT mip.acknowledge('t in doubt');
BEGIN; SELECT mip.begin('t one site', 1);
UPDATE ex SET v = 8;
SELECT xinst, state FROM mip.commit_one_phase('request', 'again');
RESET mip.debug_clock_offset;
SELECT mip.expire();
SELECT * FROM left_of_them;
SELECT v FROM ex;
-- what is forgotten is not known, to whomever asks
SELECT mip.commit('t acknowledged', 2);
SELECT mip.acknowledge('t acknowledged');
-- stripped before, by the retention of the others
SET mip.retention_timeless = '40d';
SET mip.debug_clock_offset = '31d';
SELECT mip.expire();
SELECT xid, xinst, result, acknowledged FROM mip.mipt WHERE xid ~ '^t ' ORDER BY 1, 2;
SET mip.debug_clock_offset = '41d';
SELECT mip.expire();
SELECT * FROM left_of_them;
RESET mip.debug_clock_offset;
-- many, some at a time, also where the two kinds are mixed
INSERT INTO mip.mipt (xid, xinst, owner, since, aborted, sites, acknowledged)
	SELECT 'many ' || n, m, current_user::regrole, '2003-01-01', m < 2, '{}', n % 2 = 0
	FROM generate_series(1, 1100) n, generate_series(1, 2) m;
SELECT mip.expire();
SELECT mip.expire();
SELECT mip.expire();
SELECT mip.expire();
SELECT count(*) FROM mip.mipt WHERE xid ~ '^many';
RESET mip.retention_timeless;

-- By whom
CREATE ROLE mip_expiring;
CREATE ROLE mip_expiring_too IN ROLE mip_expiring;
CREATE ROLE mip_expiring_not;
SET ROLE mip_expiring;
BEGIN; SELECT mip.begin('roles', 1, '{x,y}');
SELECT FROM mip.prepare('request', 'result');
SELECT FROM mip.commit('roles', 1);
SELECT xid FROM mip.finished('-1 day');
SELECT count(*) FROM mip.horizon;
SELECT setval('mip.horizon', 1);
SET mip.retention = 1;
SELECT mip.expire();
-- a refusal moves the horizon for whomever
BEGIN; SELECT mip.begin(xid_of('2004-01-01', 1), 1);
SELECT FROM mip.commit_one_phase('request', 'result');
SELECT current_user;
SELECT horizon();
SET ROLE mip_expiring_not;
SELECT xid FROM mip.finished('-1 day');
SELECT mip.acknowledge('roles');
SET ROLE mip_expiring_too;
SELECT xid FROM mip.finished('-1 day');
SELECT mip.acknowledge('roles');
RESET ROLE;
ALTER DATABASE mip_expiry OWNER TO mip_expiring_not;
SET ROLE mip_expiring_not;
SELECT mip.expire();
SET mip.debug_clock_offset = 1;
RESET ROLE;
SELECT test.close('s');
\c contrib_regression
DROP DATABASE mip_expiry;
DROP ROLE mip_expiring_too, mip_expiring, mip_expiring_not;
