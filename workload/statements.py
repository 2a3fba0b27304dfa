"""The statements of the interactions: the same for pgbench's scripts and for the handlers of `pgmip`.

Parameters are psycopg's, `%(name)s`; their types are what SQL's PREPARE needs to know. Rows are locked in the order of
their keys, so that nobody waits in a circle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .population import CARDS, SHIP_TYPES, SUBJECTS

__all__ = ["AUTHORISATION", "STATEMENTS", "Statement", "add_order", "preparation"]

AUTHORISATION = "012345678901234"  # of a payment that nobody has been asked for


@dataclass(frozen=True)
class Statement:
    """`types`: of its parameters, in the order in which EXECUTE takes them."""

    types: dict[str, str]
    sql: str

    @property
    def positional(self) -> str:
        """With $1, $2 and so on."""
        numbers = {name: f"${number}" for number, name in enumerate(self.types, 1)}
        return re.sub(r"%\((\w+)\)s", lambda found: numbers[found[1]], self.sql).replace("%%", "%")


def preparation(name: str) -> str:
    """SQL's PREPARE of a statement, in one line."""
    statement = STATEMENTS[name]
    types = f" ({', '.join(statement.types.values())})" if statement.types else ""
    return f"PREPARE {name}{types} AS {' '.join(statement.positional.split())}"


CART = "shopping_cart_line JOIN item ON i_id = scl_i_id WHERE scl_sc_id = %(cart)s"


def _chosen(values: tuple[str, ...], parameter: str) -> str:
    """The value of this number, from 1."""
    return f"('{{{','.join(values)}}}'::text[])[%({parameter})s]"


SUBJECT = _chosen(SUBJECTS, "subject")


def add_order(*more: str) -> Statement:
    """`more`: text columns that `orders` has besides TPC-W's, each for the parameter of its name."""
    columns = "".join(f", {name}" for name in more)
    values = "".join(f", %({name})s" for name in more)
    return Statement(
        {"customer": "int", "sub_total": "numeric", "lines": "int", "shipping": "int", "days": "int",
         "address": "int", "ship_to": "int", **dict.fromkeys(more, "text")},
        f"""INSERT INTO orders (o_c_id, o_date, o_sub_total, o_tax, o_total, o_ship_type, o_ship_date,
            o_bill_addr_id, o_ship_addr_id, o_status{columns})
        VALUES (%(customer)s, now(), %(sub_total)s::numeric, round(%(sub_total)s::numeric * 0.0825, 2),
            %(sub_total)s::numeric + round(%(sub_total)s::numeric * 0.0825, 2) + 3 + %(lines)s::int,
            {_chosen(SHIP_TYPES, "shipping")}, now() + make_interval(days => %(days)s::int),
            %(address)s, %(ship_to)s, 'PENDING'{values})
        RETURNING o_id AS order_id, o_total AS total, o_ship_date AS ship_date""",
    )  # fmt: skip

STATEMENTS = {
    # -- Buy Confirm (2.7) ---------------------------------------------------------------------------------------
    "buyer": Statement(
        {"customer": "int"},
        """SELECT c_discount AS discount, c_addr_id AS address, c_addr_id AS ship_to, addr_co_id AS country
        FROM customer JOIN address ON addr_id = c_addr_id WHERE c_id = %(customer)s""",
    ),
    "cart_total": Statement(
        {"cart": "int", "discount": "float8"},
        f"""SELECT count(*) AS lines, round((coalesce(sum(scl_qty * i_cost), 0)
        * (1 - %(discount)s::float8 / 100))::numeric, 2) AS sub_total FROM {CART}""",
    ),
    "find_address": Statement(
        {"street": "int", "country": "int"},
        """WITH wanted AS (SELECT %(street)s::int || ' Second Street' AS street, %(country)s::int AS country),
        found AS (SELECT addr_id, addr_co_id FROM address, wanted
            WHERE addr_street1 = street AND addr_co_id = country LIMIT 1),
        made AS (INSERT INTO address (addr_street1, addr_street2, addr_city, addr_state, addr_zip, addr_co_id)
            SELECT street, 'left', 'Anytown', 'Anywhere', '12345', country FROM wanted
            WHERE NOT EXISTS (SELECT FROM found) RETURNING addr_id, addr_co_id)
        SELECT addr_id AS ship_to, addr_co_id AS country FROM (TABLE found UNION ALL TABLE made) address""",
    ),
    "add_order": add_order(),
    "add_lines": Statement(
        {"order_id": "int", "cart": "int", "discount": "float8"},
        """INSERT INTO order_line (ol_id, ol_o_id, ol_i_id, ol_qty, ol_discount, ol_comments)
        SELECT row_number() OVER (ORDER BY scl_i_id), %(order_id)s::int, scl_i_id, scl_qty, %(discount)s::float8,
            'no comments on this line' FROM shopping_cart_line WHERE scl_sc_id = %(cart)s""",
    ),
    "take_stock": Statement(
        {"cart": "int"},
        f"""WITH line AS (SELECT i_id, scl_qty FROM {CART} ORDER BY i_id FOR NO KEY UPDATE OF item)
        UPDATE item SET i_stock = i_stock - scl_qty + CASE WHEN i_stock - scl_qty < 10 THEN 21 ELSE 0 END
        FROM line WHERE item.i_id = line.i_id""",
    ),
    "pay": Statement(
        {"order_id": "int", "card": "int", "number": "bigint", "authorisation": "text", "total": "float8",
         "country": "int"},
        f"""INSERT INTO cc_xacts VALUES (%(order_id)s, {_chosen(CARDS, "card")},
            lpad(%(number)s::bigint::text, 16, '0'), 'A Book Lover', current_date + 365, %(authorisation)s,
            %(total)s, now(), %(country)s)""",
    ),
    "empty_cart": Statement({"cart": "int"}, "DELETE FROM shopping_cart_line WHERE scl_sc_id = %(cart)s"),
    # -- Admin Confirm (2.16) ------------------------------------------------------------------------------------
    "change_item": Statement(
        {"item": "int", "cost": "float8", "picture": "int"},
        """UPDATE item SET i_cost = %(cost)s, i_image = 'img' || %(picture)s::int || '/image_' || i_id || '.gif',
            i_thumbnail = 'img' || %(picture)s::int || '/thumb_' || i_id || '.gif', i_pub_date = current_date
        WHERE i_id = %(item)s""",
    ),
    "relate_item": Statement(
        {"item": "int"},
        """WITH buyer AS (SELECT DISTINCT o_c_id FROM orders JOIN order_line ON ol_o_id = o_id
            WHERE o_id > (SELECT max(o_id) - 10000 FROM orders) AND ol_i_id = %(item)s),
        candidate AS (SELECT ol_i_id AS id, sum(ol_qty) AS quantity
            FROM buyer JOIN orders USING (o_c_id) JOIN order_line ON ol_o_id = o_id
            WHERE ol_i_id <> %(item)s GROUP BY ol_i_id
            UNION ALL SELECT unnest(ARRAY[i_related1, i_related2, i_related3, i_related4, i_related5]), 0
            FROM item WHERE i_id = %(item)s),
        best AS (SELECT id, max(quantity) AS quantity FROM candidate GROUP BY id ORDER BY 2 DESC, 1 LIMIT 5),
        five AS (SELECT array_agg(id ORDER BY quantity DESC, id) AS ids FROM best)
        UPDATE item SET i_related1 = ids[1], i_related2 = ids[2], i_related3 = ids[3], i_related4 = ids[4],
            i_related5 = ids[5] FROM five WHERE i_id = %(item)s""",
    ),
    # -- the other ones that write: Shopping Cart (2.4), Customer Registration (2.5), Buy Request (2.6) ---------------
    "new_cart": Statement({}, "INSERT INTO shopping_cart (sc_time) VALUES (now()) RETURNING sc_id AS cart"),
    "add_to_cart": Statement(
        {"cart": "int", "item": "int", "quantity": "int"},
        """INSERT INTO shopping_cart_line VALUES (%(cart)s, %(item)s, %(quantity)s)
        ON CONFLICT (scl_sc_id, scl_i_id)
        DO UPDATE SET scl_qty = least(10, shopping_cart_line.scl_qty + excluded.scl_qty)""",
    ),
    "touch_cart": Statement({"cart": "int"}, "UPDATE shopping_cart SET sc_time = now() WHERE sc_id = %(cart)s"),
    "show_cart": Statement({"cart": "int"}, f"SELECT i_id, i_title, i_cost, i_srp, i_backing, scl_qty FROM {CART}"),
    "register": Statement(
        {"ship_to": "int", "discount": "int"},
        """WITH new AS (SELECT nextval(pg_get_serial_sequence('customer', 'c_id'))::int AS id)
        INSERT INTO customer (c_id, c_uname, c_passwd, c_fname, c_lname, c_addr_id, c_phone, c_email, c_since,
            c_last_login, c_login, c_expiration, c_discount, c_balance, c_ytd_pmt, c_birthdate, c_data)
        SELECT id, 'NEW' || id, 'new' || id, 'Anna', 'Nonymous', %(ship_to)s, '012345678', id || '@mail.example',
            current_date, current_date, now(), now() + interval '2 hours', %(discount)s, 0, 0, '1970-01-01',
            repeat('something about the customer ', 10) FROM new RETURNING c_id AS customer""",
    ),
    "log_in": Statement(
        {"customer": "int"},
        """UPDATE customer SET c_last_login = current_date, c_login = now(), c_expiration = now() + interval '2 hours'
        WHERE c_id = %(customer)s""",
    ),
    # -- those that only read ------------------------------------------------------------------------------------
    "greet": Statement({"customer": "int"}, "SELECT c_fname, c_lname FROM customer WHERE c_id = %(customer)s"),
    "promote": Statement(
        {"item": "int"},
        """SELECT r.i_id, r.i_thumbnail FROM item JOIN item r ON r.i_id IN (item.i_related1, item.i_related2,
            item.i_related3, item.i_related4, item.i_related5) WHERE item.i_id = %(item)s""",
    ),
    "new_products": Statement(
        {"subject": "int"},
        f"""SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id
        WHERE i_subject = {SUBJECT} ORDER BY i_pub_date DESC, i_title LIMIT 50""",
    ),
    "best_sellers": Statement(
        {"subject": "int"},
        f"""SELECT i_id, i_title, a_fname, a_lname, sum(ol_qty) AS sold
        FROM order_line JOIN item ON i_id = ol_i_id JOIN author ON a_id = i_a_id
        WHERE ol_o_id > (SELECT max(o_id) - 3333 FROM orders) AND i_subject = {SUBJECT}
        GROUP BY i_id, i_title, a_fname, a_lname ORDER BY sold DESC LIMIT 50""",
    ),
    "show_item": Statement(
        {"item": "int"}, "SELECT * FROM item JOIN author ON a_id = i_a_id WHERE i_id = %(item)s"
    ),
    "search_subject": Statement(
        {"subject": "int"},
        f"""SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id
        WHERE i_subject = {SUBJECT} ORDER BY i_title LIMIT 50""",
    ),
    "search_title": Statement(
        {"item": "int"},
        """SELECT i.i_id, i.i_title, a_fname, a_lname
        FROM (SELECT left(i_title, 4) AS prefix FROM item WHERE i_id = %(item)s) wanted
        JOIN item i ON i.i_title ~>=~ prefix AND i.i_title ~<~ (prefix || '~')
        JOIN author ON a_id = i.i_a_id ORDER BY i.i_title LIMIT 50""",
    ),
    "search_author": Statement(
        {"item": "int"},
        """SELECT i.i_id, i.i_title, a.a_fname, a.a_lname
        FROM (SELECT left(a_lname, 4) AS prefix FROM author JOIN item ON i_a_id = a_id WHERE i_id = %(item)s) wanted
        JOIN author a ON a.a_lname ~>=~ prefix AND a.a_lname ~<~ (prefix || '~')
        JOIN item i ON i.i_a_id = a.a_id ORDER BY i.i_title LIMIT 50""",
    ),
    "customer_name": Statement({"customer": "int"}, "SELECT c_uname FROM customer WHERE c_id = %(customer)s"),
    "last_order": Statement(
        {"customer": "int"},
        """SELECT coalesce(max(o_id), 0) AS order_id FROM orders WHERE o_c_id = %(customer)s""",
    ),
    "show_order": Statement(
        {"order_id": "int"},
        """SELECT orders.*, bill.*, ship.*, cx_type, cx_auth_id FROM orders JOIN cc_xacts ON cx_o_id = o_id
        JOIN address bill ON bill.addr_id = o_bill_addr_id JOIN address ship ON ship.addr_id = o_ship_addr_id
        WHERE o_id = %(order_id)s""",
    ),
    "show_lines": Statement(
        {"order_id": "int"},
        "SELECT ol_i_id, i_title, ol_qty, ol_discount FROM order_line JOIN item ON i_id = ol_i_id"
        " WHERE ol_o_id = %(order_id)s",
    ),
}  # fmt: skip
