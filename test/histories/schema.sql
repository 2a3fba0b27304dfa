-- The tables of the histories. All have the same columns, so that one model
-- fits them: k is unique; u and v have indexes or constraints of some kind; w
-- is short or stored out of line.

CREATE EXTENSION pg_mip;
CREATE EXTENSION amcheck;
CREATE EXTENSION pageinspect;
SET default_table_access_method = mip;

-- nothing but the key: updates of the others are HOT
CREATE TABLE plain (k int PRIMARY KEY, u int NOT NULL, v int NOT NULL, w text);
ALTER TABLE plain ALTER w SET STORAGE external;

-- an index of each kind; only one fits each condition: see tables.py
CREATE TABLE many (LIKE plain INCLUDING ALL);
CREATE INDEX many_hash ON many USING hash (v);
CREATE INDEX many_gin ON many USING gin ((ARRAY[v]));
CREATE INDEX many_gist ON many USING gist (int4range(v, v, '[]'));
CREATE INDEX many_spgist ON many USING spgist (point(u, v));
CREATE INDEX many_brin ON many USING brin (u);
CREATE INDEX many_partial ON many ((u + 0)) WHERE v % 2 = 0;
CREATE INDEX many_expression ON many ((u + v));

CREATE TABLE later (LIKE plain INCLUDING ALL);
ALTER TABLE later ADD UNIQUE (u) DEFERRABLE;

CREATE TABLE apart (LIKE plain INCLUDING ALL);
ALTER TABLE apart ADD EXCLUDE USING gist (int4range(u, u + 2) WITH &&);

-- odd keys go to another partition
CREATE TABLE part (LIKE plain INCLUDING STORAGE, PRIMARY KEY (k)) PARTITION BY RANGE (k);
CREATE TABLE part_even PARTITION OF part FOR VALUES FROM (0) TO (1000000000);
CREATE TABLE part_odd PARTITION OF part FOR VALUES FROM (1000000000) TO (2000000000);

CREATE TABLE parent (LIKE plain INCLUDING ALL);
CREATE TABLE child (LIKE plain INCLUDING ALL, FOREIGN KEY (u) REFERENCES parent);
CREATE INDEX child_u ON child (u);

CREATE TABLE owner (LIKE plain INCLUDING ALL);
CREATE TABLE pet (LIKE plain INCLUDING ALL,
	FOREIGN KEY (u) REFERENCES owner ON UPDATE CASCADE ON DELETE CASCADE);
CREATE INDEX pet_u ON pet (u);
