"""Buy Confirm, TPC-W clause 2.7, up to its payment, which demo and bench have at other sites.

The same handlers run under pg_mip and under plain two-phase commit; neither leaves a trace in them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from .population import CARDS, COUNTRIES, SHIP_TYPES
from .statements import STATEMENTS, Statement
from .tx import Site

__all__ = ["ask", "choices", "order", "price", "run"]

Values = dict[str, Any]


def choices(generator: random.Random) -> Values:
    """What a buyer chooses, besides the cart."""
    number = generator.randint
    return {
        "elsewhere": number(1, 100) <= 5, "street": number(1, 100_000), "new_country": number(1, len(COUNTRIES)),
        "shipping": number(1, len(SHIP_TYPES)), "days": number(1, 7), "card": number(1, len(CARDS)),
        "number": number(0, 10**16 - 1),
    }  # fmt: skip


async def run(site: Site, statement: Statement, values: Mapping[str, Any]) -> None:
    await site.execute(statement.sql, {name: values[name] for name in statement.types})


async def ask(site: Site, statement: Statement, values: Mapping[str, Any]) -> Values:
    """The one row that it returns."""
    row = await site.fetch_one(statement.sql, {name: values[name] for name in statement.types})
    return dict(row._asdict())


async def price(store: Site, request: Mapping[str, Any]) -> Values:
    """The request, with what its customer and cart say: lines and their total, and where they go."""
    known = dict(request)
    known |= await ask(store, STATEMENTS["buyer"], known)
    known |= await ask(store, STATEMENTS["cart_total"], known)
    if known["elsewhere"]:
        known |= await ask(store, STATEMENTS["find_address"], {**known, "country": known["new_country"]})
    return known


async def order(store: Site, known: Values, add_order: Statement = STATEMENTS["add_order"]) -> Values:
    """Turns the cart into an order, out of the stock: that, too, is known then."""
    known = known | await ask(store, add_order, known)
    for name in ("add_lines", "take_stock", "empty_cart"):
        await run(store, STATEMENTS[name], known)
    return known
