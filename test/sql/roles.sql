-- Who may see and decide whose instances.
\set code '\\echo SQLSTATE :SQLSTATE'
\getenv srcdir PG_ABS_SRCDIR
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\set ECHO all
CREATE ROLE mip_owner;
CREATE ROLE mip_member IN ROLE mip_owner;
CREATE ROLE mip_noinherit NOINHERIT IN ROLE mip_owner;
CREATE ROLE mip_stranger;
CREATE TABLE t (id int PRIMARY KEY, v int) USING mip;
INSERT INTO t VALUES (1, 0);
GRANT ALL ON t TO mip_owner, mip_stranger;

SET ROLE mip_owner;
BEGIN;
SELECT mip.begin('r1', 1);
UPDATE t SET v = 1;
SELECT xinst, state, owner FROM mip.prepare('secret', 'secret');
SELECT xid, xinst, owner, request FROM mip.in_doubt;
SELECT count(*) FROM mip.mipt;
:code
INSERT INTO mip.mipt (xid, xinst) VALUES ('r1', 2);
:code
UPDATE mip.mipt SET result = 'x';
:code
DELETE FROM mip.mipt;
:code
TRUNCATE mip.mipt;
:code

SET ROLE mip_stranger;
SELECT * FROM mip.in_doubt;
SELECT * FROM mip.instances('r1');
:code
SELECT * FROM mip.commit('r1', 1);
:code
SELECT * FROM mip.rollback('r1', 1);
:code
SELECT mip.forget('r1');
:code
BEGIN;
SELECT mip.begin('r1', 2);
:code
ROLLBACK;

SET ROLE mip_noinherit;
SELECT * FROM mip.in_doubt;
SELECT * FROM mip.commit('r1', 1);
:code

-- a member may decide, but its attempts would be another role's
SET ROLE mip_member;
SELECT xid, xinst, owner, request FROM mip.in_doubt;
SELECT xinst, state, owner, result FROM mip.instances('r1');
BEGIN;
SELECT mip.begin('r1', 2);
:code
ROLLBACK;
SELECT xinst, state, owner FROM mip.commit('r1', 1);
SELECT current_user;
SELECT mip.forget('r1');
SET ROLE mip_owner;
BEGIN;
SELECT mip.begin('r2', 1);
SELECT xinst, state, owner FROM mip.prepare(NULL, NULL);
SET ROLE mip_member;
SELECT xinst, state, owner FROM mip.rollback('r2', 1);

-- so may a superuser
SET ROLE mip_owner;
BEGIN;
SELECT mip.begin('r3', 1);
SELECT xinst, state, owner FROM mip.prepare(NULL, NULL);
RESET ROLE;
SELECT xid, xinst, owner FROM mip.in_doubt;
SELECT xinst, state, owner FROM mip.commit('r3', 1);

-- a committed family is as private, and its XID taken
SET ROLE mip_stranger;
SELECT * FROM mip.instances('r3');
:code
BEGIN;
SELECT mip.begin('r3', 2);
:code
ROLLBACK;
-- the role counts with which the instance began
SET ROLE mip_owner;
BEGIN;
SELECT mip.begin('r4', 1);
SET LOCAL ROLE mip_owner;
SELECT xinst, state, owner FROM mip.prepare(NULL, NULL);
SELECT xinst, state, owner FROM mip.rollback('r4', 1);
SET mip.site_name = 'x';
:code
SET mip.debug_stop_at = 'crash:committed';
:code
RESET ROLE;
-- ... whoever asks, and whatever deferred triggers do
BEGIN;
SELECT mip.begin('r5', 1);
SET LOCAL ROLE mip_owner;
SELECT * FROM mip.prepare(NULL, NULL);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('r5', 1);
SET SESSION AUTHORIZATION mip_owner;
SELECT * FROM mip.commit_one_phase(NULL, NULL);
:code
ROLLBACK;
RESET SESSION AUTHORIZATION;
CREATE FUNCTION become() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('role', 'mip_stranger', true);
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER become AFTER UPDATE ON t DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION become();
BEGIN;
SELECT mip.begin('r5', 1);
UPDATE t SET v = 5;
SELECT * FROM mip.prepare(NULL, NULL);
:code
SELECT count(*) FROM pg_prepared_xacts;
DROP TRIGGER become ON t;
DROP FUNCTION become;

-- A superuser's attempt would be another role's, too
BEGIN;
SELECT mip.begin('r3', 9);
:code
ROLLBACK;

-- What a stranger does to a family leaves its instances alone, active or prepared
SELECT test.open('a', 'b'), test.run('a', 'SET ROLE mip_owner'), test.run('b', 'SET ROLE mip_stranger');
SELECT test.begin('a', 'r6', 1), test.run('a', 'UPDATE t SET v = 6');
SELECT test.run('b', 'SELECT state FROM mip.instances(''r6'')'), test.begin('b', 'r6', 2);
SELECT test.run('b', 'SELECT xinst FROM mip.commit(''r6'', 2)'), test.run('b', 'SELECT xinst FROM mip.rollback(''r6'', 1)');
SELECT test.run('b', 'SELECT mip.forget(''r6'')'), test.run('b', 'SELECT count(*)::text FROM mip.in_doubt');
SELECT test.prepare('a', 'secret'), test.begin('b', 'r6', 2);
SELECT test.run('b', 'SELECT xinst FROM mip.commit(''r6'', 2)'), test.run('b', 'SELECT xinst FROM mip.rollback(''r6'', 1)');
SELECT test.commit('a', 'r6', 1), test.begin('b', 'r6', 2), test.run('b', 'SELECT result FROM mip.commit(''r6'', 1)');
-- its functions serve its owner where that is wanted, but end nothing
CREATE FUNCTION look() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = ''
	AS $$ SELECT pg_catalog.string_agg(result, '') FROM mip.instances('r6') $$;
CREATE FUNCTION lose() RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = ''
	AS $$ SELECT xinst FROM mip.rollback('r6', 1) $$;
ALTER FUNCTION look OWNER TO mip_owner;
ALTER FUNCTION lose OWNER TO mip_owner;
SELECT test.run('b', 'SELECT look()'), test.run('b', 'SELECT lose()');
DROP FUNCTION look, lose;

-- Membership counts at the moment of the call
SELECT test.begin('a', 'r7', 1), test.prepare('a');
REVOKE mip_owner FROM mip_member;
SET ROLE mip_member;
SELECT count(*) FROM mip.in_doubt;
SELECT * FROM mip.commit('r7', 1);
:code
RESET ROLE;
GRANT mip_owner TO mip_member;
SET ROLE mip_member;
SELECT xinst, state, owner FROM mip.commit('r7', 1);
RESET ROLE;

-- A role that is dropped leaves its requests to superusers; nobody inherits them
CREATE ROLE mip_gone;
SELECT test.run('b', 'RESET ROLE'), test.run('b', 'SET ROLE mip_gone');
SELECT test.begin('b', 'r8', 1), test.prepare('b', 'r');
SELECT test.begin('b', 'r9', 1), test.prepare('b', 'r'), test.commit('b', 'r9', 1);
SELECT test.run('b', 'RESET ROLE');
REASSIGN OWNED BY mip_gone TO mip_member;
DROP OWNED BY mip_gone;
DROP ROLE mip_gone;
SET ROLE mip_member;
SELECT count(*) FROM mip.in_doubt;
SELECT * FROM mip.instances('r9');
:code
BEGIN;
SELECT mip.begin('r9', 2);
:code
ROLLBACK;
RESET ROLE;
SELECT xid, owner FROM mip.in_doubt;
SELECT xinst, state, owner FROM mip.commit('r8', 1);
SELECT xinst, state, owner, result FROM mip.instances('r9');
BEGIN;
SELECT mip.begin('r9', 2);
:code
ROLLBACK;
SELECT mip.forget('r8'), mip.forget('r9');
:code
SELECT mip.forget('r8');
SELECT mip.forget('r9');
SELECT test.close('a', 'b');

SELECT mip.forget('r6');
SELECT mip.forget('r7');
SELECT mip.forget('r2');
SELECT mip.forget('r3');
SELECT mip.forget('r4');
SELECT count(*) FROM mip.mipt WHERE xid ~ '^r[1-9]$';
DROP TABLE t;
DROP ROLE mip_owner, mip_member, mip_noinherit, mip_stranger;
