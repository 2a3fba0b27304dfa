-- The same at every site. Nothing here keeps a request from taking effect twice, or in parts: no unique keys on what
-- a request is called, no foreign keys between what its parts write.

CREATE TABLE account (
	a_id int PRIMARY KEY,
	a_balance bigint NOT NULL CHECK (a_balance >= 0)
) USING mip;
INSERT INTO account SELECT n, 1000 FROM generate_series(1, 40) n;

-- Every change of a balance
CREATE TABLE entry (
	n_id bigint GENERATED ALWAYS AS IDENTITY,
	n_key text NOT NULL,
	n_account int NOT NULL,
	n_change bigint NOT NULL
) USING mip;
CREATE INDEX ON entry (n_account);

CREATE TABLE item (
	i_id int PRIMARY KEY,
	i_stock int NOT NULL CHECK (i_stock >= 0)
) USING mip;
INSERT INTO item SELECT n, 200 FROM generate_series(1, 8) n;

-- Every request that ran here, refusals too; the part of its result that this site has to say
CREATE TABLE effect (
	e_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	e_key text NOT NULL,
	e_nonce text NOT NULL,
	e_part jsonb NOT NULL,
	e_begun timestamptz NOT NULL DEFAULT now()
) USING mip;
CREATE INDEX ON effect (e_key);

-- How many effects there are: hot rows, and one for each effect of those who touch none of them
CREATE TABLE tally (
	t_id int PRIMARY KEY,
	t_count bigint NOT NULL
) USING mip;
INSERT INTO tally SELECT n, 0 FROM generate_series(0, 3) n;

-- Who has appended, in which order
CREATE TABLE list (
	l_id int PRIMARY KEY,
	l_elements text[] NOT NULL
) USING mip;
INSERT INTO list SELECT n, '{}' FROM generate_series(0, 3999) n;
