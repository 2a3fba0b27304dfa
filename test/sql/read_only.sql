-- In a read-only transaction a request can be ended like any transaction: so that
-- one which only reads here can say so, and nothing stays in doubt in a session
-- that is read-only by default. So an instance is refused there, too, and a result
-- acknowledged. Everything else that writes is refused.
\set VERBOSITY terse
CREATE TABLE r (id int PRIMARY KEY, v int) USING mip;
CREATE TABLE h (id int);
INSERT INTO r VALUES (1, 0);
BEGIN; SELECT mip.begin('ro1', 1);
UPDATE r SET v = 1;
SELECT xinst, state FROM mip.prepare('', 'one');
BEGIN; SELECT mip.begin('ro1', 2);
UPDATE r SET v = 2;
SELECT xinst, state FROM mip.prepare('', 'two');

SET default_transaction_read_only = on;
BEGIN; SELECT mip.begin('ro2', 1);
SELECT * FROM r;
SELECT xinst, state FROM mip.prepare('', '');
SELECT xinst, state FROM mip.rollback('ro2', 1);
BEGIN; SELECT mip.begin('ro2', 2);
SELECT xinst, state FROM mip.commit_one_phase('', 'read');
-- losers are noted, and links emptied
SELECT xinst, state FROM mip.commit('ro1', 2);
SELECT xinst, aborted, links IS NULL AS emptied FROM mip.mipt WHERE xid = 'ro1' ORDER BY xinst;
SELECT * FROM r;
SELECT xinst, state, result FROM mip.instances('ro2');
SELECT count(*) FROM mip.in_doubt WHERE xid LIKE 'ro_';
SELECT count(*) FROM mip.waits WHERE xid LIKE 'ro_';
SELECT count(*) FROM mip.finished('0') WHERE xid LIKE 'ro_';
SELECT count(*) FROM mip.stats;

\set VERBOSITY sqlstate
BEGIN; SELECT mip.begin('ro3', 1);
UPDATE r SET v = 3;
ROLLBACK;
\set VERBOSITY terse
SELECT mip.refuse('ro3', 1, '{}');
BEGIN; SELECT mip.begin('ro3', 1);
ROLLBACK;
SELECT mip.forget('ro1');
SELECT mip.forget('never seen');
SELECT mip.acknowledge('ro1');
SELECT mip.acknowledge('never seen');
SELECT mip.expire();
SELECT mip.enable('h');
SELECT mip.disable('r');
RESET default_transaction_read_only;
SELECT xid, xinst, aborted, acknowledged FROM mip.mipt WHERE xid LIKE 'ro_' ORDER BY xid, xinst;
SELECT mip.forget('ro1'), mip.forget('ro2'), mip.forget('ro3');
DROP TABLE r, h;
