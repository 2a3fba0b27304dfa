-- What the auditor asks. Every query lists what is wrong and must come back empty.
--
-- The auditor works in a database of its own. It sees the two sites through postgres_fdw as the schemas `store` and
-- `bank`, took notes before the shop opened (schema `before`), and got from the customers what they asked for
-- (`asked`) and every answer they received, byte for byte (`answered`). It knows nothing of how the sites are kept in
-- step. `expected` is what each order has to look like, from the cart as it was before.

-- check: every request was answered
SELECT key, 'no answer' AS wrong FROM asked WHERE key NOT IN (SELECT key FROM answered);

-- check: however often it was sent, a request got one and the same answer, byte for byte
SELECT key, count(DISTINCT body) || ' different answers' AS wrong FROM answered GROUP BY key HAVING count(DISTINCT body) > 1;

-- check: whoever was told "ordered" has exactly one order, with that number, total and date
SELECT key, 'told ' || answer::text || ', has ' || count(o_id) || ' orders' AS wrong
FROM told LEFT JOIN store.orders ON o_key = key
WHERE answer ->> 'status' = 'ordered'
GROUP BY key, answer
HAVING count(o_id) <> 1 OR NOT bool_and((o_id::text, o_total::numeric, o_ship_date)
       = (answer ->> 'order', (answer ->> 'total')::numeric, (answer ->> 'ship_date')::timestamp));

-- check: whoever was refused has no order and no payment
SELECT key, 'told ' || answer::text AS wrong FROM told
WHERE answer ->> 'status' <> 'ordered'
  AND (EXISTS (SELECT FROM store.orders WHERE o_key = key) OR EXISTS (SELECT FROM bank.payment WHERE p_key = key));

-- check: only those who cannot pay were refused
SELECT key, 'told ' || answer::text AS wrong
FROM told JOIN expected USING (key) JOIN before.account ON a_id = customer
WHERE answer ->> 'status' <> 'ordered' AND a_balance >= total;

-- check: no order was placed twice, or by nobody
SELECT o_key AS key, count(*) || ' orders' AS wrong FROM store.orders
WHERE o_id NOT IN (SELECT o_id FROM before.orders)
GROUP BY o_key HAVING count(*) > 1 OR o_key IS NULL OR o_key NOT IN (SELECT key FROM asked);

-- check: every order is paid exactly once
SELECT o_key AS key, count(p_id) || ' payments' AS wrong
FROM store.orders LEFT JOIN bank.payment ON p_key = o_key
WHERE o_key IS NOT NULL
GROUP BY o_id, o_key
HAVING count(p_id) <> 1;

-- check: every payment is for exactly one order, of the same amount, by that customer
SELECT p_key AS key, 'payment ' || p_id || ' for ' || count(o_id) || ' orders' AS wrong
FROM bank.payment LEFT JOIN store.orders ON o_key = p_key AND o_total::numeric = p_amount AND o_c_id = p_from
GROUP BY p_id, p_key
HAVING count(o_id) <> 1;

-- check: every order has exactly one card transaction, which names the bank's payment
SELECT o_key AS key, count(cx_o_id) || ' card transactions' AS wrong
FROM store.orders LEFT JOIN store.cc_xacts ON cx_o_id = o_id AND cx_xact_amt = o_total
     LEFT JOIN bank.payment ON p_key = o_key AND cx_auth_id = 'BANK' || lpad(p_id::text, 11, '0')
WHERE o_key IS NOT NULL
GROUP BY o_id, o_key
HAVING count(cx_o_id) <> 1 OR count(p_id) <> 1;

-- check: every order has the right total
SELECT key, o_total || ' instead of ' || total AS wrong
FROM store.orders JOIN expected ON key = o_key
WHERE o_total::numeric <> total OR o_c_id <> customer;

-- check: every order has the books that were in the cart, and no others
SELECT coalesce(o_key, key) AS key, 'book ' || coalesce(i_id, ol_i_id) AS wrong
FROM (SELECT o_key, ol_i_id, ol_qty FROM store.orders JOIN store.order_line ON ol_o_id = o_id WHERE o_key IS NOT NULL) AS sold
     FULL JOIN
     (SELECT key, scl_i_id AS i_id, scl_qty FROM asked JOIN before.shopping_cart_line ON scl_sc_id = cart
      WHERE key IN (SELECT o_key FROM store.orders)) AS wanted
     ON o_key = key AND ol_i_id = i_id AND ol_qty = scl_qty
WHERE key IS NULL OR o_key IS NULL;

-- check: a cart is empty exactly where it was ordered
SELECT key, CASE WHEN ordered THEN 'ordered, cart not emptied' ELSE 'not ordered, cart changed' END AS wrong
FROM (SELECT key, key IN (SELECT o_key FROM store.orders) AS ordered,
             (SELECT count(*) FROM store.shopping_cart_line WHERE scl_sc_id = cart) AS left_over,
             (SELECT count(*) FROM before.shopping_cart_line WHERE scl_sc_id = cart) AS put_in
      FROM asked) AS carts
WHERE left_over <> CASE WHEN ordered THEN 0 ELSE put_in END;

-- check: stock = initial - sold + restocked
SELECT 'book ' || i_id AS key,
       now.i_stock || ' in stock, not ' || before.i_stock || ' - ' || coalesce(sold, 0) || ' + some 21' AS wrong
FROM store.item AS now JOIN before.item AS before USING (i_id)
     LEFT JOIN (SELECT ol_i_id AS i_id, sum(ol_qty) AS sold FROM store.order_line
                WHERE ol_o_id NOT IN (SELECT o_id FROM before.orders) GROUP BY ol_i_id) AS s USING (i_id)
WHERE (now.i_stock - before.i_stock + coalesce(sold, 0)) % 21 <> 0;

-- check: the stock was filled up below 10, and only then
-- 21 books at a time, from 10 to 30: with what was sold, there is one number that a stock can be.
SELECT 'book ' || i_id AS key, i_stock || ' in stock' AS wrong FROM store.item WHERE i_stock NOT BETWEEN 10 AND 30;

-- check: every account's balance is explained by its payments
SELECT 'account ' || a_id AS key,
       now.a_balance || ' instead of ' || before.a_balance - coalesce(paid, 0) + coalesce(received, 0) AS wrong
FROM bank.account AS now JOIN before.account AS before USING (a_id)
     LEFT JOIN (SELECT p_from AS a_id, sum(p_amount) AS paid FROM bank.payment GROUP BY p_from) AS f USING (a_id)
     LEFT JOIN (SELECT p_to AS a_id, sum(p_amount) AS received FROM bank.payment GROUP BY p_to) AS t USING (a_id)
WHERE now.a_balance <> before.a_balance - coalesce(paid, 0) + coalesce(received, 0);

-- check: no money was made or lost
SELECT 'the bank' AS key, now.sum || ' instead of ' || before.sum AS wrong
FROM (SELECT sum(a_balance) FROM bank.account) AS now, (SELECT sum(a_balance) FROM before.account) AS before
WHERE now.sum <> before.sum;

-- check: nothing is left in doubt
SELECT gid AS key, 'prepared at the store, ' || prepared AS wrong FROM store.pg_prepared_xacts WHERE database = 'store'
UNION ALL
SELECT gid, 'prepared at the bank, ' || prepared FROM bank.pg_prepared_xacts WHERE database = 'bank';
