-- After loading: primary and foreign keys, and the indexes that the interactions need.

ALTER TABLE country ADD PRIMARY KEY (co_id);
ALTER TABLE address ADD PRIMARY KEY (addr_id);
ALTER TABLE author ADD PRIMARY KEY (a_id);
ALTER TABLE item ADD PRIMARY KEY (i_id);
ALTER TABLE customer ADD PRIMARY KEY (c_id);
ALTER TABLE orders ADD PRIMARY KEY (o_id);
ALTER TABLE order_line ADD PRIMARY KEY (ol_o_id, ol_id);
ALTER TABLE cc_xacts ADD PRIMARY KEY (cx_o_id);
ALTER TABLE shopping_cart ADD PRIMARY KEY (sc_id);
ALTER TABLE shopping_cart_line ADD PRIMARY KEY (scl_sc_id, scl_i_id);

CREATE UNIQUE INDEX customer_uname ON customer (c_uname);
CREATE INDEX address_street ON address (addr_street1);
CREATE INDEX author_lname ON author (a_lname text_pattern_ops);
CREATE INDEX item_author ON item (i_a_id);
CREATE INDEX item_title ON item (i_title text_pattern_ops);
CREATE INDEX item_subject ON item (i_subject, i_pub_date DESC, i_title);
CREATE INDEX orders_customer ON orders (o_c_id, o_id DESC);
CREATE INDEX order_line_item ON order_line (ol_i_id, ol_o_id);

ALTER TABLE address ADD FOREIGN KEY (addr_co_id) REFERENCES country;
ALTER TABLE item ADD FOREIGN KEY (i_a_id) REFERENCES author;
ALTER TABLE customer ADD FOREIGN KEY (c_addr_id) REFERENCES address;
ALTER TABLE orders ADD FOREIGN KEY (o_c_id) REFERENCES customer,
	ADD FOREIGN KEY (o_bill_addr_id) REFERENCES address,
	ADD FOREIGN KEY (o_ship_addr_id) REFERENCES address;
ALTER TABLE order_line ADD FOREIGN KEY (ol_o_id) REFERENCES orders,
	ADD FOREIGN KEY (ol_i_id) REFERENCES item;
ALTER TABLE shopping_cart_line ADD FOREIGN KEY (scl_sc_id) REFERENCES shopping_cart,
	ADD FOREIGN KEY (scl_i_id) REFERENCES item;
ALTER TABLE cc_xacts ADD FOREIGN KEY (cx_o_id) REFERENCES orders,
	ADD FOREIGN KEY (cx_co_id) REFERENCES country;

SELECT setval(pg_get_serial_sequence('address', 'addr_id'), (SELECT max(addr_id) FROM address));
SELECT setval(pg_get_serial_sequence('customer', 'c_id'), (SELECT max(c_id) FROM customer));
SELECT setval(pg_get_serial_sequence('orders', 'o_id'), (SELECT max(o_id) FROM orders));
