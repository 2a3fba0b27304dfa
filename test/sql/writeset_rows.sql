-- Which row a change of a writeset is about, where that is not plain.
\pset format unaligned
\pset tuples_only on
\set code '\\echo SQLSTATE :SQLSTATE'
\set capture 'BEGIN; SET LOCAL mip.capture_writeset = on;'
\set take 'SELECT mip.writeset() AS w \\gset'
\set apply 'SELECT mip.writeset_apply(:\'w\');'
CREATE SCHEMA wr;
SET search_path = wr, public;

-- A table that is described in two ways in one writeset is one table: what comes by one of
-- them is found by the other, and it is truncated once.
CREATE TABLE two (id int PRIMARY KEY, k int NOT NULL UNIQUE, v text) USING mip;
INSERT INTO two VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three');
:capture
UPDATE two SET v = 'one!' WHERE id = 1;
INSERT INTO two VALUES (4, 4, 'four'), (5, 5, 'five');
SELECT mip.writeset() AS w1 \gset
COMMIT;
ALTER TABLE two REPLICA IDENTITY USING INDEX two_k_key;
:capture
UPDATE two SET v = v || '?' WHERE id IN (1, 4);
DELETE FROM two WHERE id IN (2, 5);
SELECT mip.writeset() AS w2 \gset
COMMIT;
ALTER TABLE two REPLICA IDENTITY FULL;
CREATE TABLE was AS TABLE two;
TRUNCATE two;
INSERT INTO two VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three');
SELECT mip.writeset_compact(:'w1', :'w2') AS w \gset
SELECT op, identity, row FROM mip.writeset_changes(:'w');
:apply
SELECT count(*) FROM (TABLE two EXCEPT TABLE was) x;
TABLE two ORDER BY id;

-- By the whole row, and by a key that has been given up
CREATE TABLE gaining (a int, b int) USING mip;
INSERT INTO gaining VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6);
:capture
UPDATE gaining SET b = b + 10 WHERE a < 6;
INSERT INTO gaining VALUES (7, 7), (8, 8);
SELECT mip.writeset() AS w1 \gset
COMMIT;
ALTER TABLE gaining ADD PRIMARY KEY (a);
:capture
UPDATE gaining SET b = b + 100 WHERE a IN (1, 2, 7);
SELECT mip.writeset() AS w2 \gset
COMMIT;
ALTER TABLE gaining DROP CONSTRAINT gaining_pkey;
ALTER TABLE gaining ALTER a DROP NOT NULL;
:capture
UPDATE gaining SET b = b + 1000 WHERE a IN (1, 7, 8);
SELECT mip.writeset() AS w3 \gset
COMMIT;
CREATE TABLE gained AS TABLE gaining;
TRUNCATE gaining;
INSERT INTO gaining VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6);
CREATE UNIQUE INDEX gaining_a ON gaining (a);
SELECT mip.writeset_compact(:'w1', :'w2', :'w3') AS w \gset
:apply
SELECT count(*) FROM (TABLE gaining EXCEPT TABLE gained) x;
SELECT * FROM gaining ORDER BY a;

-- TRUNCATE, and what is before and behind it
:capture
INSERT INTO two VALUES (7, 7, 'seven');
SELECT mip.writeset() AS w1 \gset
ROLLBACK;
ALTER TABLE two REPLICA IDENTITY DEFAULT;
:capture
TRUNCATE two;
INSERT INTO two VALUES (8, 8, 'eight');
SELECT mip.writeset() AS w2 \gset
ROLLBACK;
ALTER TABLE two REPLICA IDENTITY USING INDEX two_k_key;
:capture
INSERT INTO two VALUES (9, 9, 'nine');
SELECT mip.writeset() AS w3 \gset
ROLLBACK;
:capture
TRUNCATE two;
INSERT INTO two VALUES (10, 10, 'ten');
SELECT mip.writeset() AS w4 \gset
ROLLBACK;
SELECT mip.writeset_compact(:'w1', :'w2') AS w \gset
:apply
TABLE two ORDER BY id;
SELECT mip.writeset_compact(:'w2', :'w3') AS w \gset
:apply
TABLE two ORDER BY id;
SELECT mip.writeset_compact(:'w3', :'w2', :'w3', :'w4') AS w \gset
:apply
TABLE two ORDER BY id;
DROP TABLE two, was, gaining, gained;

DROP SCHEMA wr CASCADE;
