"""The interactions that write, as handlers over two sites: the store, and the payments, which have `cc_xacts`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from workload.buy_confirm import ask, choices, order, price, run
from workload.population import Size
from workload.statements import AUTHORISATION, STATEMENTS
from workload.tx import Tx

from .scripts import MIX

__all__ = ["HANDLERS", "TWO_SITES", "WEIGHTS", "Visitor", "buy_confirm"]

STORE, PAYMENT = "store", "payment"
TWO_SITES = (STORE, PAYMENT)
Handler = Callable[[Any, Any], Awaitable[Any]]


async def buy_confirm(tx: Tx, request: Any) -> Any:
    """The order at the store, its payment at the other site."""
    known = await order(tx[STORE], await price(tx[STORE], request))
    await run(tx[PAYMENT], STATEMENTS["pay"], known | {"authorisation": AUTHORISATION})
    return {"order": known["order_id"]}


async def admin_confirm(tx: Tx, request: Any) -> Any:
    await run(tx[STORE], STATEMENTS["change_item"], request)
    await run(tx[STORE], STATEMENTS["relate_item"], request)
    return {}


async def shopping_cart(tx: Tx, request: Any) -> Any:
    store, known = tx[STORE], dict(request)
    if not known["cart"]:
        known |= await ask(store, STATEMENTS["new_cart"], known)
    await run(store, STATEMENTS["add_to_cart"], known)
    await run(store, STATEMENTS["touch_cart"], known)
    await run(store, STATEMENTS["show_cart"], known)
    return {"cart": known["cart"]}


async def customer_registration(tx: Tx, request: Any) -> Any:
    store, known = tx[STORE], dict(request)
    if known["new"]:
        known |= await ask(store, STATEMENTS["find_address"], {**known, "country": known["new_country"]})
        known |= await ask(store, STATEMENTS["register"], known)
    await run(store, STATEMENTS["log_in"], known)
    return {"customer": known["customer"]}


async def buy_request(tx: Tx, request: Any) -> Any:
    for name in ("log_in", "buyer", "show_cart"):
        await run(tx[STORE], STATEMENTS[name], request)
    return {}


HANDLERS: dict[str, tuple[Handler, tuple[str, ...]]] = {
    "buy_confirm": (buy_confirm, TWO_SITES),
    "admin_confirm": (admin_confirm, (STORE,)),
    "shopping_cart": (shopping_cart, (STORE,)),
    "customer_registration": (customer_registration, (STORE,)),
    "buy_request": (buy_request, (STORE,)),
}
# As in the ordering mix, whose other interactions only read.
WEIGHTS = {
    "shopping_cart": MIX["Shopping Cart"],
    "customer_registration": MIX["Customer Registration"],
    "buy_request": MIX["Buy Request"],
    "buy_confirm": MIX["Buy Confirm of the mix"],
    "admin_confirm": MIX["Admin Confirm"],
}


class Visitor:
    """Somebody who goes from one interaction to the next, and so has a cart."""

    def __init__(self, size: Size, generator: random.Random) -> None:
        self._size = size
        self._random = generator
        self._cart = 0
        self._full = False

    def next(self) -> tuple[str, dict[str, Any]]:
        """Which interaction, and its request."""
        (name,) = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if name == "buy_confirm" and not self._full:
            name = "shopping_cart"
        number = self._random.randint
        return name, choices(self._random) | {
            "customer": number(1, self._size.customers), "item": number(1, self._size.items),
            "quantity": number(1, 10), "cart": self._cart, "cost": number(100, 999_900) / 100,
            "picture": number(0, 99), "new": number(1, 100) <= 20, "discount": number(0, 50),
        }  # fmt: skip

    def answered(self, name: str, answer: Any) -> None:
        """What it got."""
        if name == "shopping_cart":
            self._cart, self._full = answer["cart"], True
        elif name == "buy_confirm":
            self._full = False
