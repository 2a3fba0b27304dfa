"""What the demo has besides the book store's population: carts that are full, and accounts at the bank.

Made up, but the same in every run. Each function yields the rows of the table of its name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

from workload.population import COUNTRIES, SIZES

SEED = 20020225
SIZE = SIZES["tiny"]
CARTS = 1_000
SHOP_ACCOUNT = 10_000  # + country
BALANCE = Decimal(5_000_000)
BROKE = 25  # every n-th customer has nothing in the bank

Row = tuple[Any, ...]


def shopping_cart() -> Iterator[Row]:
    return ((number, datetime(2026, 1, 5)) for number in range(1, CARTS + 1))


def shopping_cart_line() -> Iterator[Row]:
    rng = random.Random(f"{SEED} shopping_cart_line")
    for number in range(1, CARTS + 1):
        for book in sorted(rng.sample(range(1, SIZE.items + 1), rng.randint(1, 5))):
            yield number, book, rng.randint(1, 4)


def account() -> Iterator[Row]:
    for number in range(1, SIZE.customers + 1):
        yield number, f"customer {number}", BALANCE if number % BROKE else Decimal(0)
    for number in range(1, len(COUNTRIES) + 1):
        yield SHOP_ACCOUNT + number, f"bookstore, country {number}", Decimal(0)


TABLES: dict[str, Callable[[], Iterator[Row]]] = {
    table.__name__: table for table in (shopping_cart, shopping_cart_line, account)
}
