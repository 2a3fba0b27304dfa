"""The auditor finds every kind of fault that is planted, and none where there is none."""

from __future__ import annotations

import pytest

from demo.audit import ANSWERED, checks

from .conftest import Day

NEW_ORDER = "(SELECT max(o_id) FROM orders WHERE o_key IS NOT NULL)"
NEW_KEY = "(SELECT max(p_key) FROM payment)"

# check: site, SQL that does the harm
FAULTS: list[tuple[str, str, str]] = [
    (
        'whoever was told "ordered" has exactly one order, with that number, total and date',
        "store", f"UPDATE orders SET o_ship_date = o_ship_date + interval '30 days' WHERE o_id = {NEW_ORDER}",
    ),
    (
        "no order was placed twice, or by nobody",
        "store",
        "INSERT INTO orders (o_c_id, o_date, o_sub_total, o_tax, o_total, o_ship_type, o_ship_date, o_bill_addr_id,"
        " o_ship_addr_id, o_status, o_key) SELECT o_c_id, o_date, o_sub_total, o_tax, o_total, o_ship_type,"
        f" o_ship_date, o_bill_addr_id, o_ship_addr_id, o_status, o_key FROM orders WHERE o_id = {NEW_ORDER}",
    ),
    (
        "no order was placed twice, or by nobody",
        "store", f"UPDATE orders SET o_key = NULL WHERE o_id = {NEW_ORDER}",
    ),
    ("every order is paid exactly once", "bank", f"DELETE FROM payment WHERE p_key = {NEW_KEY}"),
    (
        "every order is paid exactly once",
        "bank",
        "INSERT INTO payment (p_key, p_from, p_to, p_amount, p_time)"
        f" SELECT p_key, p_from, p_to, p_amount, p_time FROM payment WHERE p_key = {NEW_KEY}",
    ),
    (
        "every payment is for exactly one order, of the same amount, by that customer",
        "bank", f"UPDATE payment SET p_amount = p_amount + 1 WHERE p_key = {NEW_KEY}",
    ),
    (
        "every payment is for exactly one order, of the same amount, by that customer",
        "bank", f"UPDATE payment SET p_from = p_from % 2880 + 1 WHERE p_key = {NEW_KEY}",
    ),
    (
        "every order has exactly one card transaction, which names the bank's payment",
        "store", f"DELETE FROM cc_xacts WHERE cx_o_id = {NEW_ORDER}",
    ),
    (
        "every order has exactly one card transaction, which names the bank's payment",
        "store", f"UPDATE cc_xacts SET cx_auth_id = 'BANK00000999999' WHERE cx_o_id = {NEW_ORDER}",
    ),
    ("every order has the right total", "store", f"UPDATE orders SET o_total = o_total - 1 WHERE o_id = {NEW_ORDER}"),
    (
        "every order has the books that were in the cart, and no others",
        "store", f"DELETE FROM order_line WHERE ol_o_id = {NEW_ORDER} AND ol_id = 1",
    ),
    (
        "every order has the books that were in the cart, and no others",
        "store", f"UPDATE order_line SET ol_qty = ol_qty + 1 WHERE ol_o_id = {NEW_ORDER} AND ol_id = 1",
    ),
    (
        "a cart is empty exactly where it was ordered",
        "store", "INSERT INTO shopping_cart_line SELECT 1, ol_i_id, 1 FROM order_line LIMIT 1",
    ),
    (
        "stock = initial - sold + restocked",
        "store", f"UPDATE item SET i_stock = i_stock - 1 WHERE i_id = (SELECT ol_i_id FROM order_line WHERE ol_o_id ="
        f" {NEW_ORDER} LIMIT 1)",
    ),
    (
        "stock = initial - sold + restocked",
        "store", f"DELETE FROM order_line WHERE ol_o_id = {NEW_ORDER} AND ol_id = 1",
    ),
    ("the stock was filled up below 10, and only then", "store", "UPDATE item SET i_stock = 9 WHERE i_id = 1"),
    (
        "the stock was filled up below 10, and only then",
        "store", "UPDATE item SET i_stock = i_stock + 21 WHERE i_id = 1",
    ),
    (
        "every account's balance is explained by its payments",
        "bank", f"UPDATE account SET a_balance = a_balance - 1 WHERE a_id = (SELECT p_from FROM payment"
        f" WHERE p_key = {NEW_KEY})",
    ),
    ("no money was made or lost", "bank", "UPDATE account SET a_balance = a_balance + 1 WHERE a_id = 1"),
    (
        "nothing is left in doubt",
        "store", "BEGIN; UPDATE item SET i_page = 1 WHERE i_id = 1; PREPARE TRANSACTION 'left'",
    ),
    (
        "nothing is left in doubt",
        "bank", "BEGIN; UPDATE account SET a_owner = '' WHERE a_id = 1; PREPARE TRANSACTION 'left'",
    ),
]  # fmt: skip


def test_a_good_day(day: Day) -> None:
    day.answers *= 2
    assert day.audit() == set()


@pytest.mark.parametrize(("check", "site", "harm"), FAULTS)
def test_harm_at_a_site(day: Day, check: str, site: str, harm: str) -> None:
    assert check in dict(checks())
    getattr(day.sites, site).run_sql(harm, dbname=site)
    assert check in day.audit()


def test_request_without_answer(day: Day) -> None:
    day.answers.pop()
    assert day.audit() == {ANSWERED}


def test_two_answers(day: Day) -> None:
    key, body = day.answers[0]
    day.answers.append((key, body.replace(b": ", b":")))
    assert day.audit() == {"however often it was sent, a request got one and the same answer, byte for byte"}


def test_told_another_order(day: Day) -> None:
    """As if both sites had rolled back what the customer was told, and another attempt had gone through."""
    key = day.ordered()
    other = [body.replace(b'"order": ', b'"order": 9') for one, body in day.answers if one == key]
    day.answers = [(one, other[0] if one == key else body) for one, body in day.answers]
    assert day.audit() == {'whoever was told "ordered" has exactly one order, with that number, total and date'}


def test_refused_but_charged(day: Day) -> None:
    key = day.ordered()
    day.answers = [(one, b'{"status": "declined"}' if one == key else body) for one, body in day.answers]
    assert day.audit() == {
        "whoever was refused has no order and no payment",
        "only those who cannot pay were refused",
    }
