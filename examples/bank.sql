-- The database of money.
CREATE EXTENSION pg_mip;
CREATE TABLE account (owner text PRIMARY KEY, balance bigint NOT NULL) USING mip;
CREATE TABLE payment (
    p_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text NOT NULL REFERENCES account,
    amount bigint NOT NULL,
    o_id bigint NOT NULL
) USING mip;
INSERT INTO account VALUES ('alice', 100000), ('bob', 50);
