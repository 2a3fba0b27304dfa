-- DBT-2++: a workload like TPC-C's, written anew, with Cahill's credit check and without what everybody would update
-- (the totals of warehouses and districts) or only read (warehouses and items, which clients are taken to cache).
-- What a transaction chooses at random follows from its seed: sent again it chooses the same. What is updated has room
-- for new versions beside the old ones from the beginning.

CREATE TABLE district (
  d_w_id int, d_id int, d_tax numeric(4, 4) NOT NULL, d_next_o_id int NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE customer (
  c_w_id int, c_d_id int, c_id int,
  c_last int NOT NULL,              -- the number of its three syllables
  c_first text NOT NULL,
  c_credit char(2) NOT NULL,        -- GC, good, or BC, bad
  c_checks int NOT NULL,            -- so many checks have made it that
  c_credit_lim numeric(12, 2) NOT NULL, c_discount numeric(4, 4) NOT NULL,
  c_balance numeric(12, 2) NOT NULL, c_ytd_payment numeric(12, 2) NOT NULL,
  c_payment_cnt int NOT NULL, c_delivery_cnt int NOT NULL, c_data text NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE history (
  h_c_w_id int, h_c_d_id int, h_c_id int, h_w_id int, h_d_id int, h_date timestamptz, h_amount numeric(6, 2)
);
CREATE TABLE orders (
  o_w_id int, o_d_id int, o_id int, o_c_id int NOT NULL, o_entry_d timestamptz NOT NULL, o_carrier_id int,
  o_ol_cnt int NOT NULL,
  o_checks int NOT NULL             -- c_checks when it was accepted
) WITH (fillfactor = 80);
CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int);
CREATE TABLE order_line (
  ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int NOT NULL, ol_supply_w_id int NOT NULL,
  ol_delivery_d timestamptz, ol_quantity int NOT NULL, ol_amount numeric(6, 2) NOT NULL, ol_dist_info text NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE stock (
  s_w_id int, s_i_id int, s_quantity int NOT NULL, s_ytd int NOT NULL, s_order_cnt int NOT NULL,
  s_remote_cnt int NOT NULL, s_data text NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE credit_check (
  k_w_id int, k_d_id int, k_c_id int,
  k_number int,                     -- c_checks after it
  k_last_order int NOT NULL         -- the customer's last order that it has seen
);


-- ---------------------------------------------------------------- choices

CREATE FUNCTION choose(seed bigint, what int, smallest int, largest int) RETURNS int
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN smallest + ((hashint8extended(seed, what) & 2147483647) % (largest - smallest + 1))::int;

-- TPC-C's NURand: some are chosen more often than others
CREATE FUNCTION choose_unevenly(seed bigint, what int, bits int, smallest int, largest int) RETURNS int
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN smallest + ((choose(seed, what, 0, bits) | choose(seed, -what, smallest, largest)) + 42) % (largest - smallest + 1);

CREATE FUNCTION choose_customer(seed bigint, customers int) RETURNS int
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN choose_unevenly(seed, 11, 1023, 1, customers);

-- Where any customer may be chosen, six of ten are asked for by name: the middle one by first name.
CREATE FUNCTION find_customer(seed bigint, customers int, w int, d int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  found int[];
BEGIN
  IF customers < 3000 OR choose(seed, 12, 1, 100) > 60 THEN
    RETURN choose_customer(seed, customers);
  END IF;
  SELECT array_agg(c_id ORDER BY c_first) INTO found FROM customer
    WHERE c_w_id = w AND c_d_id = d AND c_last = choose_unevenly(seed, 13, 255, 0, 999);
  RETURN found[(cardinality(found) + 1) / 2];
END $$;


-- ---------------------------------------------------------------- transactions

CREATE FUNCTION enter_order(warehouses int, customers int, seed bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w int := choose(seed, 1, 1, warehouses);
  d int := choose(seed, 2, 1, 10);
  c int := choose_customer(seed, customers);
  lines int := choose(seed, 3, 5, 15);
  checks int;
  discount numeric;
  tax numeric;
  o int;
  line record;
BEGIN
  SELECT c_discount, c_checks INTO STRICT discount, checks FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
  UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d
    RETURNING d_next_o_id - 1, d_tax INTO STRICT o, tax;
  INSERT INTO orders VALUES (w, d, o, c, now(), NULL, lines, checks);
  INSERT INTO new_order VALUES (w, d, o);
  -- in this order, so that nobody waits for each other
  FOR line IN
    SELECT number, CASE WHEN choose(seed, 300 + number, 1, 100) = 1 THEN choose(seed, 400 + number, 1, warehouses)
        ELSE w END AS supply,
      choose_unevenly(seed, 500 + number, 8191, 1, 100000) AS item, choose(seed, 600 + number, 1, 10) AS quantity
    FROM generate_series(1, lines) number ORDER BY supply, item
  LOOP
    UPDATE stock SET s_ytd = s_ytd + line.quantity, s_order_cnt = s_order_cnt + 1,
      s_remote_cnt = s_remote_cnt + (line.supply <> w)::int,
      s_quantity = s_quantity - line.quantity + CASE WHEN s_quantity >= line.quantity + 10 THEN 0 ELSE 91 END
      WHERE s_w_id = line.supply AND s_i_id = line.item;
    INSERT INTO order_line VALUES (w, d, o, line.number, line.item, line.supply, NULL, line.quantity,
      line.quantity * (1 + line.item % 100) * (1 + tax) * (1 - discount), repeat('d', 24));
  END LOOP;
END $$;

CREATE FUNCTION pay(warehouses int, customers int, seed bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w int := choose(seed, 1, 1, warehouses);
  d int := choose(seed, 2, 1, 10);
  elsewhere boolean := choose(seed, 4, 1, 100) > 85;
  c_w int := CASE WHEN elsewhere THEN choose(seed, 5, 1, warehouses) ELSE w END;
  c_d int := CASE WHEN elsewhere THEN choose(seed, 6, 1, 10) ELSE d END;
  c int := find_customer(seed, customers, c_w, c_d);
  amount numeric := choose(seed, 7, 100, 500000) / 100.0;
BEGIN
  UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount,
    c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = c_w AND c_d_id = c_d AND c_id = c;
  INSERT INTO history VALUES (c_w, c_d, c, w, d, now(), amount);
END $$;

CREATE FUNCTION deliver(warehouses int, customers int, seed bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w int := choose(seed, 1, 1, warehouses);
  o int;
  c int;
  amount numeric;
BEGIN
  FOR d IN 1..10 LOOP
    SELECT no_o_id INTO o FROM new_order WHERE no_w_id = w AND no_d_id = d ORDER BY no_o_id LIMIT 1;
    CONTINUE WHEN NOT FOUND;
    DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d AND no_o_id = o;
    UPDATE orders SET o_carrier_id = choose(seed, 8, 1, 10) WHERE o_w_id = w AND o_d_id = d AND o_id = o
      RETURNING o_c_id INTO STRICT c;
    WITH delivered AS (
      UPDATE order_line SET ol_delivery_d = now() WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o RETURNING ol_amount
    ) SELECT sum(ol_amount) INTO STRICT amount FROM delivered;
    UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1
      WHERE c_w_id = w AND c_d_id = d AND c_id = c;
  END LOOP;
END $$;

-- Cahill's: whether what a customer owes, undelivered orders included, is more than it may. It has read what
-- enter_order writes, and writes what that reads.
CREATE FUNCTION check_credit(warehouses int, customers int, seed bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w int := choose(seed, 1, 1, warehouses);
  d int := choose(seed, 2, 1, 10);
  c int := choose_customer(seed, customers);
  owed numeric;
  credit_limit numeric;
  ordered numeric;
  last int;
  number int;
BEGIN
  SELECT c_balance, c_credit_lim INTO STRICT owed, credit_limit FROM customer
    WHERE c_w_id = w AND c_d_id = d AND c_id = c;
  SELECT coalesce(sum(ol_amount), 0) INTO STRICT ordered FROM orders
    JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
    JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
    WHERE o_w_id = w AND o_d_id = d AND o_c_id = c;
  SELECT coalesce(max(o_id), 0) INTO STRICT last FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = c;
  UPDATE customer SET c_credit = CASE WHEN owed + ordered > credit_limit THEN 'BC' ELSE 'GC' END,
    c_checks = c_checks + 1 WHERE c_w_id = w AND c_d_id = d AND c_id = c RETURNING c_checks INTO STRICT number;
  INSERT INTO credit_check VALUES (w, d, c, number, last);
END $$;

CREATE FUNCTION show_order(warehouses int, customers int, seed bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  w int := choose(seed, 1, 1, warehouses);
  d int := choose(seed, 2, 1, 10);
  c int := find_customer(seed, customers, w, d);
  o int;
BEGIN
  PERFORM c_balance FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
  SELECT o_id INTO o FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = c ORDER BY o_id DESC LIMIT 1;
  RETURN (SELECT sum(ol_quantity) FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o);
END $$;

CREATE FUNCTION show_stock(warehouses int, customers int, seed bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  w int := choose(seed, 1, 1, warehouses);
  d int := choose(seed, 2, 1, 10);
  next int;
BEGIN
  SELECT d_next_o_id INTO STRICT next FROM district WHERE d_w_id = w AND d_id = d;
  RETURN (SELECT count(DISTINCT s_i_id) FROM order_line JOIN stock ON s_w_id = w AND s_i_id = ol_i_id
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id BETWEEN next - 20 AND next - 1
      AND s_quantity < choose(seed, 9, 10, 20));
END $$;


-- ---------------------------------------------------------------- population

-- One warehouse, as TPC-C has it: 3,000 customers in each of 10 districts, each with an order, of which the last 900
-- are not delivered.
CREATE FUNCTION load_warehouse(w int) RETURNS void LANGUAGE sql AS $$
  INSERT INTO district SELECT w, d, d / 100.0, 3001 FROM generate_series(1, 10) d;
  INSERT INTO customer SELECT w, d, c,
      CASE WHEN c <= 1000 THEN c - 1 ELSE choose_unevenly(c * 100 + d, 21, 255, 0, 999) END,
      md5((c * 100 + d)::text), CASE WHEN c % 10 = 0 THEN 'BC' ELSE 'GC' END, 0, 50000, c % 5000 / 10000.0, -10, 10, 1,
      0, repeat('c', 350)
    FROM generate_series(1, 10) d, generate_series(1, 3000) c;
  INSERT INTO history SELECT w, d, c, w, d, now(), 10 FROM generate_series(1, 10) d, generate_series(1, 3000) c;
  INSERT INTO orders SELECT w, d, o, 1 + o * 1237 % 3000, now(), CASE WHEN o <= 2100 THEN 1 + o % 10 END,
      choose(o * 100 + d, 31, 5, 15), 0
    FROM generate_series(1, 10) d, generate_series(1, 3000) o;
  INSERT INTO new_order SELECT w, d, o FROM generate_series(1, 10) d, generate_series(2101, 3000) o;
  INSERT INTO order_line SELECT w, o_d_id, o_id, number, choose(o_id * 100 + number, o_d_id, 1, 100000), w, now(), 5,
      CASE WHEN o_carrier_id IS NULL THEN choose(o_id * 100 + number, 40 + o_d_id, 1, 999999) / 100.0 ELSE 0 END,
      repeat('d', 24)
    FROM orders, generate_series(1, o_ol_cnt) number WHERE o_w_id = w;
  INSERT INTO stock SELECT w, i, choose(i, 51, 10, 100), 0, 0, 0, repeat('s', 280) FROM generate_series(1, 100000) i;
$$;
