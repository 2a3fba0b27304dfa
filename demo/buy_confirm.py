"""Buy Confirm, TPC-W clause 2.7, paid at the bank: the transaction of the demo.

The same handler runs under pg_mip and under plain two-phase commit; neither leaves a trace in it. It touches rows that
others want too in one order everywhere (the customer's account, then books by number, then the shop's account), so
that no two orders ever deadlock.
"""

from __future__ import annotations

import asyncio
import random
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from workload.buy_confirm import order, price, run
from workload.statements import STATEMENTS, add_order
from workload.tx import Site, Tx

from .generate import SHOP_ACCOUNT

TAX = Decimal("0.0825")
SHIPPING, SHIPPING_PER_LINE = 3, 1
GATEWAY_MEDIAN = 0.03  # seconds; one answer in forty takes longer than 150 ms
ADD_ORDER = add_order("o_key")


async def buy_confirm(tx: Tx, request: Any) -> Any:
    """Order and pay what is in the cart. A refusal is a result like any other."""
    store, bank = tx["store"], tx["bank"]
    await store.execute("SELECT FROM shopping_cart WHERE sc_id = %s FOR UPDATE", (request["cart"],))
    known = await price(store, request)
    if not known["lines"]:
        return {"status": "refused", "why": "the cart is empty"}

    total, shop = _total(known), SHOP_ACCOUNT + known["country"]
    await _card_gateway()
    authorisation = await _debit(bank, tx.xid, known["customer"], shop, total)
    if authorisation is None:
        return {"status": "declined", "why": "not enough money in the account"}

    known = await order(store, known | {"o_key": tx.xid}, ADD_ORDER)
    await run(store, STATEMENTS["pay"], known | {"authorisation": authorisation})
    await bank.execute("UPDATE account SET a_balance = a_balance + %s WHERE a_id = %s", (total, shop))
    return {
        "status": "ordered",
        "order": known["order_id"],
        "total": str(total),
        "ship_date": known["ship_date"].isoformat(),
        "authorisation": authorisation,
    }


def _total(known: dict[str, Any]) -> Decimal:
    """What the order will come to: the bank is asked before it is there."""
    sub_total: Decimal = known["sub_total"]
    lines: int = known["lines"]
    tax = (sub_total * TAX).quantize(Decimal("0.01"), ROUND_HALF_UP)
    return sub_total + tax + SHIPPING + SHIPPING_PER_LINE * lines


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
