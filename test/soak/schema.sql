-- The tables of the soak, and what is constant in them: see check.py.

CREATE EXTENSION pg_mip;
CREATE EXTENSION amcheck;
CREATE EXTENSION pageinspect;
SET default_table_access_method = mip;

-- money moves between a few hot rows
CREATE TABLE account (
	id int PRIMARY KEY,
	balance bigint NOT NULL,
	note text
);
CREATE INDEX account_balance ON account (balance);
INSERT INTO account SELECT i, 1000, '' FROM generate_series(1, 16) i;

-- stock sold through order lines; out-of-line texts
CREATE TABLE item (
	id int PRIMARY KEY,
	stock int NOT NULL,
	text text NOT NULL
);
ALTER TABLE item ALTER text SET STORAGE external;
INSERT INTO item SELECT i, 1000000, repeat('i', 5000) FROM generate_series(1, 6) i;

-- one row a request
CREATE TABLE orders (
	request text PRIMARY KEY,
	xinst bigint NOT NULL,
	account int NOT NULL REFERENCES account,
	text text
);
CREATE INDEX orders_account ON orders (account);
CREATE TABLE line (
	request text REFERENCES orders,
	no int,
	item int NOT NULL REFERENCES item,
	PRIMARY KEY (request, no)
);

-- INSERT ... ON CONFLICT DO UPDATE: a request counts once
CREATE TABLE tally (
	bucket int PRIMARY KEY,
	requests int NOT NULL
);

-- rows that are deleted and come back with another key
CREATE TABLE ticket (
	id bigint PRIMARY KEY,
	number int NOT NULL UNIQUE
);
INSERT INTO ticket SELECT i, i FROM generate_series(1, 20) i;

-- outsiders' foreign keys
CREATE TABLE visit (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account int NOT NULL REFERENCES account
);
