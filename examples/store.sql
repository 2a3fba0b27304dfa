-- The database of goods and orders.
CREATE EXTENSION pg_mip;
CREATE TABLE item (i_id int PRIMARY KEY, title text NOT NULL, price bigint NOT NULL, stock int NOT NULL) USING mip;
CREATE TABLE orders (
    o_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    i_id int NOT NULL REFERENCES item,
    quantity int NOT NULL
) USING mip;
INSERT INTO item VALUES (1, 'a book', 20, 1000), (2, 'the last copy', 30, 1);
