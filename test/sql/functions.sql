-- The functions of schema mip, used as they are meant to be, and with wrong
-- arguments. :code prints the SQLSTATE of the statement before it.
\set code '\\echo SQLSTATE :SQLSTATE'
\set rows 'xinst, state, request, result, sites, owner = current_user AS mine, since <= now() AS past'
CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0)) USING mip;
INSERT INTO account VALUES (1, 100), (2, 100);
SELECT unnest(enum_range(NULL::mip.state));

-- One instance, one site
BEGIN;
SELECT mip.begin('f1', 10);
UPDATE account SET balance = balance - 10 WHERE id = 1;
SELECT :rows FROM mip.instances('f1');
SELECT :rows FROM mip.prepare('take 10', 'taken');
SELECT balance FROM account WHERE id = 1;
SELECT :rows FROM mip.instances('f1');
SELECT xid, xinst, owner = current_user AS mine, request, sites FROM mip.in_doubt;
SELECT count(*) FROM pg_prepared_xacts;
SELECT :rows FROM mip.commit('f1', 10);
SELECT balance FROM account WHERE id = 1;
SELECT :rows FROM mip.instances('f1');
SELECT count(*) FROM mip.in_doubt;
SELECT count(*) FROM pg_prepared_xacts;
-- again: the same answer
SELECT :rows FROM mip.commit('f1', 10);
-- another winner, a rollback of the winner, a new attempt
SELECT * FROM mip.commit('f1', 11);
:code
SELECT * FROM mip.rollback('f1', 10);
:code
BEGIN;
SELECT mip.begin('f1', 11);
:code
ROLLBACK;
-- rollback of what was never here is harmless
SELECT :rows FROM mip.rollback('f1', 11);
SELECT mip.forget('f1');
SELECT * FROM mip.instances('f1');
SELECT mip.forget('f1');
SELECT * FROM mip.rollback('f1', 1);

-- Rollback of a prepared instance
BEGIN;
SELECT mip.begin('f2', 1);
UPDATE account SET balance = 0;
SELECT :rows FROM mip.prepare(NULL, NULL);
SELECT mip.forget('f2');
:code
SELECT :rows FROM mip.rollback('f2', 1);
SELECT * FROM account ORDER BY id;
SELECT :rows FROM mip.rollback('f2', 1);
SELECT * FROM mip.commit('f2', 1);
:code
-- its id is used up, but the request can be tried again
BEGIN;
SELECT mip.begin('f2', 1);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('f2', 2);
SELECT :rows FROM mip.prepare('r', '');
SELECT mip.forget('f2');
:code
SELECT :rows FROM mip.commit('f2', 2);
SELECT mip.forget('f2');

-- Commit and rollback of what is not prepared [only-prepared]
SELECT * FROM mip.commit('f3', 1);
:code
BEGIN;
SELECT mip.begin('f3', 1);
SELECT * FROM mip.commit('f3', 1);
:code
ROLLBACK;
SELECT * FROM mip.instances('f3');
SELECT * FROM mip.rollback('f3', 1);

-- One phase
BEGIN;
SELECT mip.begin('f4', 1);
UPDATE account SET balance = balance + 1 WHERE id = 2;
SELECT :rows FROM mip.commit_one_phase('add 1', 'added');
SELECT balance FROM account WHERE id = 2;
SELECT :rows FROM mip.instances('f4');
SELECT :rows FROM mip.commit('f4', 1);
SELECT * FROM mip.in_doubt;
BEGIN;
SELECT mip.begin('f4', 2);
:code
ROLLBACK;
BEGIN;
SELECT mip.begin('f5', 1, '{a}');
SELECT :rows FROM mip.commit_one_phase(NULL, NULL);
BEGIN;
SELECT mip.begin('f6', 1, '{a,b}');
SELECT * FROM mip.commit_one_phase(NULL, NULL);
:code
ROLLBACK;
SELECT * FROM mip.instances('f6');
BEGIN;
SELECT mip.begin('f7', 1);
SELECT state FROM mip.prepare(NULL, NULL);
BEGIN;
SELECT mip.begin('f7', 2);
SELECT * FROM mip.commit_one_phase(NULL, NULL);
:code
ROLLBACK;
SELECT xinst, state FROM mip.commit('f7', 1);

-- Arguments
BEGIN; SELECT mip.begin(NULL, 1);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('', 1);
:code
ROLLBACK;
BEGIN; SELECT mip.begin(repeat('x', 129), 1);
:code
ROLLBACK;
BEGIN; SELECT mip.begin(repeat('ü', 65), 1);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f8', NULL);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f8', 0);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f8', -1);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f8', 1, NULL);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f8', 1, '{a,NULL}');
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f8', 1, '{{a},{b}}');
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f8', 1, '{""}');
:code
ROLLBACK;
SELECT mip.commit(NULL, 1);
:code
SELECT mip.commit('f8', NULL);
:code
SELECT mip.commit('f8', 0);
:code
SELECT mip.rollback(NULL, 1);
:code
SELECT mip.instances(NULL);
:code
SELECT mip.forget(NULL);
:code

-- Limits: 128 bytes, the largest XINST, any character, a result of 1 MB
BEGIN;
SELECT mip.begin(repeat('ü', 64), 9223372036854775807);
SELECT xinst, state FROM mip.prepare('', '');
SELECT octet_length(xid), xinst FROM mip.in_doubt;
SELECT xinst, state FROM mip.commit(repeat('ü', 64), 9223372036854775807);
BEGIN;
SELECT mip.begin(E'it''s: "x"\n:1:\\ %s 日本', 1);
SELECT xinst, state FROM mip.prepare('"', E'\\');
SELECT xinst, state, request, result FROM mip.rollback(E'it''s: "x"\n:1:\\ %s 日本', 1);
BEGIN;
SELECT mip.begin('f9', 1);
SELECT md5(result) = md5(repeat('0123456789abcdef', 65536)) AS same, length(request) FROM mip.prepare(repeat('r', 2000), repeat('0123456789abcdef', 65536));
SELECT length(result) FROM mip.commit('f9', 1);
BEGIN;
SELECT mip.begin('f10', 1);
SELECT result FROM mip.commit_one_phase('', E'tab\t"quote" \\ ü');
-- the result in the detail of MP001 is a JSON string
BEGIN;
SELECT mip.begin('f10', 2);
ROLLBACK;

-- XIDs are bytes: nothing in them means anything
CREATE TABLE hostile (id serial, xid text);
INSERT INTO hostile (xid) VALUES ('x'), (' x'), ('x '), ('X'), ('%n%s%1$s%%'), (';--'), ('$1'), ('\'), (''''), ('"'), (','), ('{}'),
	(E'\n'), (E'\r\n'), (E'\t'), (E'\x01'), (E'\x1b[2J'), (E'\x7f'), ('mip:1:1:x'), (':'), ('1:x'), ('NULL'), (repeat('a', 128)),
	(repeat('b', 127) || '%'), (U&'\00e9'), (U&'e\0301'), (U&'\+01f600'), (U&'\feff'), (U&'\202e');
\set ECHO none
\o /dev/null
SELECT 'BEGIN', format('SELECT mip.begin(%1$L, %2$s, ARRAY[%1$L])', xid, id), format('SELECT * FROM mip.prepare(%1$L, %1$L)', xid) FROM hostile ORDER BY id
\gexec
\o
\set ECHO all
SELECT count(*), bool_and(d.request = h.xid), bool_and(d.sites = ARRAY[h.xid]) FROM mip.in_doubt d JOIN hostile h ON h.xid = d.xid AND h.id = d.xinst;
\set ECHO none
\o /dev/null
SELECT format('SELECT * FROM mip.commit(%L, %s)', xid, id) FROM hostile ORDER BY id
\gexec
\o
\set ECHO all
SELECT count(*) FROM mip.in_doubt;
SELECT count(*), bool_and(i.state = 'committed' AND i.result = h.xid) FROM hostile h, mip.instances(h.xid) i;
BEGIN;
SELECT mip.begin('%n%s%1$s%%', 99);
ROLLBACK;
SELECT sum(mip.forget(xid)) FROM hostile;
DROP TABLE hostile;
SELECT convert_from('\x6100', 'UTF8');
:code

-- What an argument may hold at most
BEGIN; SELECT mip.begin('f11', 1);
SELECT * FROM mip.prepare(repeat('x', 104857601), NULL);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f11', 1);
SELECT * FROM mip.commit_one_phase(NULL, repeat('x', 104857601));
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f11', 1, ARRAY[repeat('x', 1048577)]);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f11', 1, ARRAY(SELECT 's' || i % 5000 FROM generate_series(1, 20000, 3) i));
SELECT cardinality(sites), sites[1], sites[2], sites[5000] FROM mip.prepare(NULL, NULL);
BEGIN; SELECT mip.begin('f11', 2, ARRAY(SELECT 's' || i FROM generate_series(0, 4998) i));
:code
ROLLBACK;
BEGIN; SELECT mip.begin('f11', 2, ARRAY(SELECT 's' || i FROM generate_series(0, 4999) i));
SELECT xinst, cardinality(sites) FROM mip.prepare(NULL, NULL);
SELECT xinst, cardinality(sites) FROM mip.commit('f11', 1);

-- Sites: a set, the same for all instances
BEGIN;
SELECT mip.begin('s1', 1, '{b,a,b}');
SELECT sites FROM mip.prepare(NULL, NULL);
BEGIN; SELECT mip.begin('s1', 2, '{a,c}');
:code
ROLLBACK;
BEGIN; SELECT mip.begin('s1', 2);
:code
ROLLBACK;
BEGIN; SELECT mip.begin('s1', 2, '{a,b}');
SELECT xinst, state, sites FROM mip.instances('s1');
SELECT xinst, sites FROM mip.prepare(NULL, NULL);
SELECT xinst, state FROM mip.commit('s1', 2);
SET mip.site_name = 'bank';
BEGIN; SELECT mip.begin('s2', 1, '{store,shop}');
:code
ROLLBACK;
BEGIN; SELECT mip.begin('s2', 1, '{store,bank}');
SELECT sites FROM mip.prepare(NULL, NULL);
SELECT xinst, state FROM mip.rollback('s2', 1);
BEGIN; SELECT mip.begin('s3', 1);
SELECT sites FROM mip.commit_one_phase(NULL, NULL);
RESET mip.site_name;
-- a large set is shown from the beginning
BEGIN; SELECT mip.begin('s4', 1, (SELECT array_agg('site ' || i) FROM generate_series(1, 100) i));
SELECT state, array_length(sites, 1) FROM mip.instances('s4');
SELECT state, array_length(sites, 1) FROM mip.prepare(NULL, NULL);
SELECT state, array_length(sites, 1) FROM mip.rollback('s4', 1);

SELECT * FROM account ORDER BY id;
SELECT count(*) FROM mip.in_doubt;
DROP TABLE account;

-- Who is prepared here, told with the begin
BEGIN;
SELECT mip.begin_beside('beside', 1, '{here,there}');
SELECT :rows FROM mip.prepare('q', 'r');
BEGIN;
SELECT mip.begin_beside('beside', 2, '{here,there}');
SELECT mip.begin_beside('beside', 3, '{here,there}');
:code
ROLLBACK;
BEGIN;
SELECT mip.begin_beside('beside', 4, '{here,there}', 'key');
SELECT :rows FROM mip.prepare('q', 'r');
:code
ROLLBACK;
BEGIN;
SELECT mip.begin_beside('beside', 5, '{here,there}', 'key');
SELECT :rows FROM mip.prepare('q', 'r', 'key');
BEGIN;
SELECT mip.begin_beside('beside', 6, '{here,there}');
ROLLBACK;
SELECT mip.begin_beside('beside', 7);
:code
SELECT :rows FROM mip.commit('beside', 1);
BEGIN;
SELECT mip.begin_beside('beside', 8, '{here,there}');
:code
ROLLBACK;
