-- Who may see and decide whose instances.
\set code '\\echo SQLSTATE :SQLSTATE'
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
SET mip.debug_crash_at = 'committed';
:code
RESET ROLE;

SELECT mip.forget('r2');
SELECT mip.forget('r3');
SELECT mip.forget('r4');
SELECT count(*) FROM mip.mipt WHERE xid ~ '^r[1-4]$';
DROP TABLE t;
DROP ROLE mip_owner, mip_member, mip_noinherit, mip_stranger;
