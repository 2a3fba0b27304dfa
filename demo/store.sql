-- What the demo adds to the book store of workload/: the request that placed an order; none for those of former days.
-- There is no unique key on it: nothing here would stop an order from being placed twice.

ALTER TABLE orders ADD o_key text;
CREATE INDEX ON orders (o_key);
