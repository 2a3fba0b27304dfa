-- The extension in its database: who may create it and where, what it shares
-- with other databases, what keeps it from being dropped.
\set code '\\echo SQLSTATE :SQLSTATE'
SELECT current_database() AS here \gset
CREATE DATABASE mip_other;
CREATE ROLE mip_ext_user;
GRANT ALL ON DATABASE mip_other TO mip_ext_user;
\c mip_other

-- Only a superuser, and only in schema mip
SET ROLE mip_ext_user;
CREATE EXTENSION pg_mip;
:code
RESET ROLE;
CREATE SCHEMA elsewhere;
CREATE EXTENSION pg_mip SCHEMA elsewhere;
:code
-- which nobody has prepared for us: neither its owner nor what is in it is taken over
SET ROLE mip_ext_user;
CREATE SCHEMA mip;
CREATE FUNCTION mip."begin"(text, int) RETURNS void LANGUAGE sql AS 'SELECT';
RESET ROLE;
\set SHOW_CONTEXT never
CREATE EXTENSION pg_mip;
:code
DROP FUNCTION mip.begin;
CREATE EXTENSION pg_mip;
:code
\set SHOW_CONTEXT errors
ALTER SCHEMA mip OWNER TO CURRENT_USER;
CREATE EXTENSION pg_mip;
ALTER EXTENSION pg_mip UPDATE;
ALTER EXTENSION pg_mip SET SCHEMA elsewhere;
:code

-- Functions: never in parallel, with the caller's rights, for everybody
SELECT proname, provolatile, proparallel, prosecdef, proisstrict,
		replace(proacl::text, current_user, 'owner') AS proacl FROM pg_proc
	WHERE pronamespace = 'mip'::regnamespace ORDER BY proname COLLATE "C";
SELECT relname, relkind, privilege FROM pg_class, unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,TRIGGER}'::text[]) privilege
	WHERE relnamespace = 'mip'::regnamespace AND relkind IN ('r', 'v')
		AND has_table_privilege('mip_ext_user', pg_class.oid, privilege);

-- Links are never taken from outside, not even from superusers
INSERT INTO mip.mipt VALUES ('x', 1, NULL, NULL, '{}', CURRENT_USER::regrole, now(), false, '\x00');
SET session_replication_role = replica;
COPY mip.mipt (xid, xinst, owner, since, aborted, links) FROM STDIN (DELIMITER ',');
x,2,mip_ext_user,2001-01-01,t,\\x00
\.
RESET session_replication_role;
SELECT xid, xinst, links FROM mip.mipt ORDER BY xinst;
-- nor by who turns all triggers off, and on again, as pg_restore --disable-triggers does
CREATE VIEW triggers AS SELECT tgrelid::regclass, tgname, tgenabled FROM pg_trigger
	WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'mip'::regnamespace) ORDER BY 1, 2;
SELECT * FROM triggers;
BEGIN;
ALTER TABLE mip.mipt DISABLE TRIGGER ALL;
INSERT INTO mip.mipt VALUES ('x', 3, NULL, NULL, '{}', CURRENT_USER::regrole, now(), false, '\x00');
SELECT xinst, links FROM mip.mipt WHERE xinst = 3;
ALTER TABLE mip.mipt ENABLE TRIGGER ALL;
ALTER TABLE mip.mipt DISABLE TRIGGER USER, ENABLE TRIGGER USER;
ALTER TABLE IF EXISTS mip.applied DISABLE TRIGGER ALL;
ALTER TABLE IF EXISTS mip.nothing DISABLE TRIGGER ALL;
DO 'BEGIN ALTER TABLE mip.log DISABLE TRIGGER ALL; ALTER TABLE mip.replicas ENABLE TRIGGER ALL; END';
SELECT * FROM triggers;
-- in whatever schema; what somebody else has there is his
CREATE TABLE mip.theirs (i int);
CREATE TRIGGER keep_links BEFORE UPDATE ON mip.theirs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
ALTER TABLE mip.theirs DISABLE TRIGGER ALL;
ALTER SCHEMA mip RENAME TO renamed;
ALTER TABLE renamed.mipt DISABLE TRIGGER ALL;
ALTER SCHEMA renamed RENAME TO mip;
SELECT * FROM triggers;
ROLLBACK;
-- those of the extension stay, and who names the trigger has his way
ALTER TABLE mip.mipt DISABLE TRIGGER keep_links;
UPDATE mip.mipt SET links = '\x12' WHERE xinst = 2;
ALTER TABLE mip.mipt ENABLE ALWAYS TRIGGER keep_links;
DROP VIEW triggers;
UPDATE mip.mipt SET links = '\x00', result = 'r';
SELECT xinst, result, links FROM mip.mipt ORDER BY xinst;
CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
CREATE TRIGGER stray BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION mip.keep_links();
INSERT INTO t VALUES (1, 0);
:code
SELECT mip.keep_links();
:code
DROP TRIGGER stray ON t;
INSERT INTO t VALUES (1, 0);
DELETE FROM mip.mipt;

-- The same request in two databases: two families
BEGIN;
SELECT mip.begin('ext1', 1);
UPDATE t SET v = 1;
SELECT xinst, state FROM mip.prepare('here', NULL);
\c :here
SELECT * FROM mip.instances('ext1');
SELECT * FROM mip.in_doubt;
SELECT * FROM mip.commit('ext1', 1);
:code
BEGIN;
SELECT mip.begin('ext1', 1);
SELECT xinst, state FROM mip.prepare('there', NULL);
SELECT xinst, request FROM mip.in_doubt;
SELECT xinst, state FROM mip.rollback('ext1', 1);
SELECT mip.forget('ext1');
-- a copy would have the instances twice
CREATE DATABASE mip_copy TEMPLATE mip_other;
:code
\c mip_other
SELECT xinst, request FROM mip.in_doubt;

-- Dropping it: not while instances are in doubt, not under its tables
SET lock_timeout = '100ms';
DROP EXTENSION pg_mip CASCADE;
:code
RESET lock_timeout;
SELECT xinst, state FROM mip.commit('ext1', 1);
\set VERBOSITY terse
DROP EXTENSION pg_mip;
:code
\set VERBOSITY default
\c :here
CREATE DATABASE mip_copy TEMPLATE mip_other;
\c mip_copy
SELECT xinst, state, request FROM mip.instances('ext1');
SELECT * FROM t;
BEGIN;
SELECT mip.begin('ext2', 1);
UPDATE t SET v = 2;
SELECT xinst, state FROM mip.commit_one_phase(NULL, NULL);
SELECT * FROM t;
SELECT mip.disable('t');
DROP EXTENSION pg_mip;
CREATE EXTENSION pg_mip;
SELECT * FROM mip.instances('ext1');
SELECT * FROM t;
\c mip_other
SELECT * FROM t;
\c :here
DROP DATABASE mip_copy;
DROP DATABASE mip_other;
DROP ROLE mip_ext_user;
