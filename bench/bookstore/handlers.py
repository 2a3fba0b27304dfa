"""The interactions that write, as handlers over two sites: the store, and the payments, which have `cc_xacts`.

The same handlers run under `pgmip` and under plain two-phase commit; neither leaves a trace in them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .population import CARDS, COUNTRIES, SHIP_TYPES, Size
from .scripts import MIX
from .statements import STATEMENTS

__all__ = ["HANDLERS", "TWO_SITES", "WEIGHTS", "Visitor", "buy_confirm"]

STORE, PAYMENT = "store", "payment"
TWO_SITES = (STORE, PAYMENT)
Handler = Callable[[Any, Any], Awaitable[Any]]


async def _run(site: Any, name: str, values: Mapping[str, Any]) -> None:
    await site.execute(STATEMENTS[name].sql, {key: values[key] for key in STATEMENTS[name].types})


async def _ask(site: Any, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    row = await site.fetch_one(STATEMENTS[name].sql, {key: values[key] for key in STATEMENTS[name].types})
    return dict(row._asdict())


async def buy_confirm(tx: Any, request: Any) -> Any:
    """The order at the store, its payment at the other site."""
    store, known = tx[STORE], dict(request)
    known |= await _ask(store, "buyer", known)
    known |= await _ask(store, "cart_total", known)
    if known["elsewhere"]:
        known |= await _ask(store, "find_address", {**known, "country": known["new_country"]})
    known |= await _ask(store, "add_order", known)
    await _run(store, "add_lines", known)
    await _run(store, "take_stock", known)
    await _run(store, "empty_cart", known)
    await _run(tx[PAYMENT], "pay", known)
    return {"order": known["order_id"]}


async def admin_confirm(tx: Any, request: Any) -> Any:
    await _run(tx[STORE], "change_item", request)
    await _run(tx[STORE], "relate_item", request)
    return {}


async def shopping_cart(tx: Any, request: Any) -> Any:
    store, known = tx[STORE], dict(request)
    if not known["cart"]:
        known |= await _ask(store, "new_cart", known)
    await _run(store, "add_to_cart", known)
    await _run(store, "touch_cart", known)
    await _run(store, "show_cart", known)
    return {"cart": known["cart"]}


async def customer_registration(tx: Any, request: Any) -> Any:
    store, known = tx[STORE], dict(request)
    if known["new"]:
        known |= await _ask(store, "find_address", {**known, "country": known["new_country"]})
        known |= await _ask(store, "register", known)
    await _run(store, "log_in", known)
    return {"customer": known["customer"]}


async def buy_request(tx: Any, request: Any) -> Any:
    for name in ("log_in", "buyer", "show_cart"):
        await _run(tx[STORE], name, request)
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
        return name, {
            "customer": number(1, self._size.customers), "item": number(1, self._size.items),
            "quantity": number(1, 10), "cart": self._cart, "cost": number(100, 999_900) / 100,
            "picture": number(0, 99), "elsewhere": number(1, 100) <= 5, "new": number(1, 100) <= 20,
            "street": number(1, 100_000), "new_country": number(1, len(COUNTRIES)), "discount": number(0, 50),
            "shipping": number(1, len(SHIP_TYPES)), "days": number(1, 7), "card": number(1, len(CARDS)),
            "number": number(0, 10**16 - 1),
        }  # fmt: skip

    def answered(self, name: str, answer: Any) -> None:
        """What it got."""
        if name == "shopping_cart":
            self._cart, self._full = answer["cart"], True
        elif name == "buy_confirm":
            self._full = False
