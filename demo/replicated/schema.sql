-- What the bookstore sells, and what is ordered. An order's number is its customer's own: nobody orders twice.
CREATE EXTENSION pg_mip;
CREATE TABLE item (id int PRIMARY KEY, title text NOT NULL, stock int NOT NULL) USING mip;
CREATE TABLE orders (
	id uuid PRIMARY KEY,
	item int NOT NULL REFERENCES item,
	copies int NOT NULL CHECK (copies > 0),
	placed_at text NOT NULL
) USING mip;
INSERT INTO item SELECT i, 'Book no. ' || i, 100000 FROM generate_series(1, 500) i;
