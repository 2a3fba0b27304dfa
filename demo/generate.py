"""The bookstore's content, after TPC-W clause 4: made up, but the same in every run.

Each function of `TABLES` yields the rows of one table, in the order of its columns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

SEED = 20020225
ITEMS = 1_000
CUSTOMERS = 2_880
ADDRESSES = 2 * CUSTOMERS
ORDERS = CUSTOMERS * 9 // 10
AUTHORS = ITEMS // 4
COUNTRIES = 92
CARTS = 1_000
SHOP_ACCOUNT = 10_000  # + country
BALANCE = Decimal(20_000)
BROKE = 25  # every n-th customer has nothing in the bank

Row = tuple[Any, ...]


def _words(text: str) -> list[str]:
    return text.split()


_TODAY = date(2026, 1, 5)
_WORDS = _words(
    "amber anchor apple arch autumn badger bark basin beacon birch bridge brook candle canvas cedar chalk chapel "
    "cinder circle cliff cloud clover coast copper coral cradle crane crow current dawn delta desert door drift dune "
    "dust eagle echo ember evening falcon feather fern field fire flint forest fox frost garden gate glass gold grain "
    "granite grass harbour hare harvest heath heron hill hollow honey horizon ice ink iron island ivory ivy jasper "
    "kite ladder lake lamp lantern leaf ledger lemon light linen lion marble marsh meadow mill mirror mist moon moss "
    "mountain night north oak ocean olive orchard otter owl paper path pebble pepper pine plum pond poplar quarry "
    "quill rain raven reed ridge river road robin root rope rose saddle salt sand shadow shell shore silence silver "
    "slate snow spark sparrow spring star stone storm stream summer swallow thistle thorn thunder tide timber tower "
    "valley velvet wave well wheat wheel willow wind window winter wolf wood wool wren"
)
_SYLLABLES = _words(
    "ba be bo da de di ka ke ko la le li ma me mi na ne no ra re ri sa se so ta te ti va ve vi za zo"
)
_SUBJECTS = _words(
    "arts biographies business children computers cooking health history home humor literature mystery non-fiction "
    "parenting politics reference religion romance self-help science-nature science-fiction sports youth travel"
)
_BACKINGS = ("HARDBACK", "PAPERBACK", "USED", "AUDIO", "LIMITED-EDITION")
_SHIPPING = ("AIR", "UPS", "FEDEX", "SHIP", "COURIER", "MAIL")
_CARDS = ("VISA", "MASTERCARD", "DISCOVER", "AMEX", "DINERS")


def _rng(table: str) -> random.Random:
    """Each table has numbers of its own, so that they do not depend on the order of generation."""
    return random.Random(f"{SEED} {table}")


def _text(rng: random.Random, shortest: int, longest: int) -> str:
    """Words, between `shortest` and `longest` characters."""
    length = rng.randint(shortest, longest)
    words = rng.choice(_WORDS)
    while len(words) < length:
        words += " " + rng.choice(_WORDS)
    return words[:length].rstrip().ljust(shortest, "s").capitalize()


def _name(rng: random.Random, syllables: int = 3) -> str:
    return "".join(rng.choices(_SYLLABLES, k=syllables)).capitalize()


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choices("0123456789", k=count))


def _day(rng: random.Random, earliest: int, latest: int) -> date:
    """A day between that many days ago."""
    return _TODAY - timedelta(days=rng.randint(latest, earliest))


def _time(rng: random.Random, earliest: int, latest: int) -> datetime:
    midnight = datetime.combine(_day(rng, earliest, latest), datetime.min.time())
    return midnight + timedelta(seconds=rng.randrange(86_400))


def _amount(rng: random.Random, least: int, most: int) -> Decimal:
    """An amount of money between so many cents."""
    return Decimal(rng.randint(least, most)).scaleb(-2)


def street_address(rng: random.Random) -> Row:
    """street1, street2, city, state, zip, country"""
    return (
        _text(rng, 15, 40), _text(rng, 15, 40), _text(rng, 4, 30), _text(rng, 2, 20), _digits(rng, 9),
        rng.randint(1, COUNTRIES),
    )  # fmt: skip


def card(rng: random.Random, owner: str) -> Row:
    """type, number, name, expires"""
    return rng.choice(_CARDS), _digits(rng, 16), owner, _TODAY + timedelta(days=rng.randint(10, 730))


def shipping(rng: random.Random) -> str:
    return rng.choice(_SHIPPING)


def comment(rng: random.Random) -> str:
    return _text(rng, 20, 100)


def country() -> Iterator[Row]:
    rng = _rng("country")
    for number in range(1, COUNTRIES + 1):
        rate = Decimal(rng.randint(100_000, 9_999_999)).scaleb(-6)
        yield number, f"{_name(rng)} {_text(rng, 4, 12)}", rate, _name(rng, 2)


def address() -> Iterator[Row]:
    rng = _rng("address")
    for number in range(1, ADDRESSES + 1):
        yield number, *street_address(rng)


def author() -> Iterator[Row]:
    rng = _rng("author")
    for number in range(1, AUTHORS + 1):
        yield number, _name(rng), _name(rng, 4), _name(rng, 2), _day(rng, 36_500, 7_300), _text(rng, 125, 500)


def item() -> Iterator[Row]:
    rng = _rng("item")
    for number in range(1, ITEMS + 1):
        published = _day(rng, 20_000, 1)
        price = _amount(rng, 100, 9_999)
        cost = (price * rng.randint(50, 100) / 100).quantize(Decimal("0.01"))
        related = rng.sample([other for other in range(1, ITEMS + 1) if other != number], 5)
        yield (
            number, _text(rng, 14, 60), (number - 1) % AUTHORS + 1, published, _text(rng, 14, 60),
            rng.choice(_SUBJECTS).upper(), _text(rng, 100, 500), *related, f"img/thumb_{number}.gif",
            f"img/image_{number}.gif", price, cost, published + timedelta(days=rng.randint(1, 30)),
            rng.randint(10, 30), _digits(rng, 13), rng.randint(20, 9_999), rng.choice(_BACKINGS),
            "x".join(f"{rng.uniform(0.01, 99):.2f}" for _ in range(3)),
        )  # fmt: skip


def customer() -> Iterator[Row]:
    rng = _rng("customer")
    for number in range(1, CUSTOMERS + 1):
        user, since = f"{_name(rng, 2)}{number}", _day(rng, 730, 1)
        yield (
            number, user, user.lower(), _name(rng), _name(rng, 4), rng.randint(1, ADDRESSES), _digits(rng, 16),
            f"{user}@{_name(rng).lower()}.example", since, since + timedelta(days=rng.randint(0, 60)),
            _time(rng, 60, 1), _time(rng, 1, 0), Decimal(rng.randint(0, 50)).scaleb(-2), Decimal(0),
            _amount(rng, 0, 99_999), _day(rng, 30_000, 6_600), _text(rng, 100, 500),
        )  # fmt: skip


def _old_order(number: int) -> tuple[Row, Row, list[Row]]:
    """An order of former days: the rows of orders, cc_xacts and order_line."""
    rng = _rng(f"order {number}")
    sub_total = _amount(rng, 1_000, 999_999)
    tax = (sub_total * Decimal("0.0825")).quantize(Decimal("0.01"))
    total = sub_total + tax + 3
    placed = _time(rng, 60, 1)
    order = (
        number, rng.randint(1, CUSTOMERS), placed, sub_total, tax, total, shipping(rng),
        placed.date() + timedelta(days=rng.randint(0, 7)), rng.randint(1, ADDRESSES), rng.randint(1, ADDRESSES),
        rng.choice(("PROCESSING", "SHIPPED", "PENDING", "DENIED")), None,
    )  # fmt: skip
    paid = (number, *card(rng, f"{_name(rng)} {_name(rng, 4)}"), _digits(rng, 15), total, placed,
            rng.randint(1, COUNTRIES))  # fmt: skip
    lines: list[Row] = [
        (line, number, rng.randint(1, ITEMS), rng.randint(1, 300), Decimal(rng.randint(0, 3)).scaleb(-2),
         comment(rng))
        for line in range(1, rng.randint(1, 5) + 1)
    ]  # fmt: skip
    return order, paid, lines


def orders() -> Iterator[Row]:
    return (_old_order(number)[0] for number in range(1, ORDERS + 1))


def cc_xacts() -> Iterator[Row]:
    return (_old_order(number)[1] for number in range(1, ORDERS + 1))


def order_line() -> Iterator[Row]:
    return (line for number in range(1, ORDERS + 1) for line in _old_order(number)[2])


def shopping_cart() -> Iterator[Row]:
    rng = _rng("shopping_cart")
    return ((number, _time(rng, 1, 0)) for number in range(1, CARTS + 1))


def shopping_cart_line() -> Iterator[Row]:
    rng = _rng("shopping_cart_line")
    for number in range(1, CARTS + 1):
        for book in sorted(rng.sample(range(1, ITEMS + 1), rng.randint(1, 5))):
            yield number, book, rng.randint(1, 4)


def account() -> Iterator[Row]:
    for number in range(1, CUSTOMERS + 1):
        yield number, f"customer {number}", BALANCE if number % BROKE else Decimal(0)
    for number in range(1, COUNTRIES + 1):
        yield SHOP_ACCOUNT + number, f"bookstore, country {number}", Decimal(0)


STORE: dict[str, Callable[[], Iterator[Row]]] = {
    table.__name__: table
    for table in (
        country, address, author, item, customer, shopping_cart, shopping_cart_line, orders, order_line, cc_xacts
    )
}
BANK: dict[str, Callable[[], Iterator[Row]]] = {"account": account}
