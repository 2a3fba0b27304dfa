"""Buy Confirm, TPC-W clause 2.7: the transaction of the demo.

The same handler runs under pg_mip and under plain two-phase commit; neither leaves a trace in it. It touches rows that
others want too in one order everywhere (the customer's account, then books by number, then the shop's account), so
that no two orders ever deadlock.
"""

from __future__ import annotations

import asyncio
import random
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Protocol

from .generate import SHOP_ACCOUNT

TAX = Decimal("0.0825")
SHIPPING, SHIPPING_PER_LINE = Decimal("3.00"), Decimal("1.00")
GATEWAY_MEDIAN = 0.03  # seconds; one answer in forty takes longer than 150 ms
RESTOCK_BELOW, RESTOCK_BY = 10, 21


class Site(Protocol):
    async def execute(self, sql: str, params: Any = None) -> int: ...
    async def fetch_one(self, sql: str, params: Any = None) -> Any: ...
    async def fetch_all(self, sql: str, params: Any = None) -> list[Any]: ...


class Tx(Protocol):
    @property
    def xid(self) -> str: ...
    def __getitem__(self, site: str) -> Site: ...


async def buy_confirm(tx: Tx, request: Any) -> Any:
    """Order and pay what is in the cart. A refusal is a result like any other."""
    store, bank = tx["store"], tx["bank"]
    await store.execute("SELECT FROM shopping_cart WHERE sc_id = %s FOR UPDATE", (request["cart"],))
    customer = await store.fetch_one(
        "SELECT c_id, c_discount, c_addr_id FROM customer WHERE c_id = %s", (request["customer"],)
    )
    lines = await store.fetch_all(
        "SELECT i_id, i_cost, scl_qty AS qty FROM shopping_cart_line JOIN item ON i_id = scl_i_id"
        " WHERE scl_sc_id = %s ORDER BY i_id",
        (request["cart"],),
    )
    if not lines:
        return {"status": "refused", "why": "the cart is empty"}

    sub_total = _cents(sum(line.i_cost * line.qty for line in lines) * (1 - customer.c_discount))
    tax = _cents(sub_total * TAX)
    total = sub_total + tax + SHIPPING + SHIPPING_PER_LINE * len(lines)
    ship_to, country = await _ship_address(store, customer, request.get("ship_to"))

    await _card_gateway()
    authorisation = await _debit(bank, tx.xid, customer.c_id, SHOP_ACCOUNT + country, total)
    if authorisation is None:
        return {"status": "declined", "why": "not enough money in the account"}

    order = await store.fetch_one(
        "INSERT INTO orders (o_c_id, o_date, o_sub_total, o_tax, o_total, o_ship_type, o_ship_date,"
        " o_bill_addr_id, o_ship_addr_id, o_status, o_key)"
        " VALUES (%s, now(), %s, %s, %s, %s, current_date + %s, %s, %s, 'PENDING', %s)"
        " RETURNING o_id, o_ship_date",
        (
            customer.c_id, sub_total, tax, total, request["shipping"], random.randint(1, 7),
            customer.c_addr_id, ship_to, tx.xid,
        ),
    )  # fmt: skip
    for number, line in enumerate(lines, 1):
        await store.execute(
            "INSERT INTO order_line VALUES (%s, %s, %s, %s, %s, %s)",
            (number, order.o_id, line.i_id, line.qty, customer.c_discount, request["comment"]),
        )
        await _take_from_stock(store, order.o_id, line)
    card = request["card"]
    await store.execute(
        "INSERT INTO cc_xacts VALUES (%s, %s, %s, %s, %s, %s, %s, now(), %s)",
        (
            order.o_id, card["type"], card["number"], card["name"], card["expires"], authorisation, total, country,
        ),
    )  # fmt: skip
    await store.execute("DELETE FROM shopping_cart_line WHERE scl_sc_id = %s", (request["cart"],))
    await bank.execute(
        "UPDATE account SET a_balance = a_balance + %s WHERE a_id = %s", (total, SHOP_ACCOUNT + country)
    )
    return {
        "status": "ordered",
        "order": order.o_id,
        "total": str(total),
        "ship_date": order.o_ship_date.isoformat(),
        "authorisation": authorisation,
    }


def _cents(amount: Decimal) -> Decimal:
    return amount.quantize(Decimal("0.01"), ROUND_HALF_UP)


async def _ship_address(store: Site, customer: Any, wanted: dict[str, Any] | None) -> tuple[int, int]:
    """Id and country of the address to ship to: the customer's, or one that is found or made."""
    if wanted is None:
        row = await store.fetch_one(
            "SELECT addr_id, addr_co_id FROM address WHERE addr_id = %s", (customer.c_addr_id,)
        )
        return row.addr_id, row.addr_co_id
    row = await store.fetch_one(
        "SELECT addr_id, addr_co_id FROM address WHERE addr_street1 = %(street1)s AND addr_street2 = %(street2)s"
        " AND addr_city = %(city)s AND addr_state = %(state)s AND addr_zip = %(zip)s AND addr_co_id = %(country)s",
        wanted,
    ) or await store.fetch_one(
        "INSERT INTO address (addr_street1, addr_street2, addr_city, addr_state, addr_zip, addr_co_id)"
        " VALUES (%(street1)s, %(street2)s, %(city)s, %(state)s, %(zip)s, %(country)s)"
        " RETURNING addr_id, addr_co_id",
        wanted,
    )
    return row.addr_id, row.addr_co_id


async def _card_gateway() -> None:
    """TPC-W asks a payment gateway for its consent; here that is a wait, like the real thing sometimes a long one."""
    await asyncio.sleep(random.lognormvariate(0, 0.82) * GATEWAY_MEDIAN)


async def _debit(bank: Site, key: str, account: int, shop: int, amount: Decimal) -> str | None:
    """Take the money, not yet given to the shop. The bank's authorisation, or None where there is not enough."""
    debited = await bank.execute(
        "UPDATE account SET a_balance = a_balance - %s WHERE a_id = %s AND a_balance >= %s",
        (amount, account, amount),
    )
    if not debited:
        return None
    payment = await bank.fetch_one(
        "INSERT INTO payment (p_key, p_from, p_to, p_amount, p_time) VALUES (%s, %s, %s, %s, now()) RETURNING p_id",
        (key, account, shop, amount),
    )
    return f"BANK{payment.p_id:011d}"


async def _take_from_stock(store: Site, order: int, line: Any) -> None:
    book = await store.fetch_one("SELECT i_stock FROM item WHERE i_id = %s FOR NO KEY UPDATE", (line.i_id,))
    stock = book.i_stock - line.qty
    if stock < RESTOCK_BELOW:
        stock += RESTOCK_BY
        await store.execute(
            "INSERT INTO restock (r_o_id, r_i_id, r_qty) VALUES (%s, %s, %s)", (order, line.i_id, RESTOCK_BY)
        )
    await store.execute("UPDATE item SET i_stock = %s WHERE i_id = %s", (stock, line.i_id))
