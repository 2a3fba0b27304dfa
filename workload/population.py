"""The population of TPC-W's tables (clause 4.7 of its specification): the same rows for the same size and seed.

A table is made in parts, each from a random generator of its own; so parts can be made in any order, and in parallel.
Rows come as lines of COPY's text format.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from datetime import date, timedelta

__all__ = [
    "CARDS", "COUNTRIES", "SHIP_TYPES", "SIZES", "SUBJECTS", "TABLES", "Part", "Size", "parts", "rows", "uname",
]  # fmt: skip

TABLES = ("country", "address", "author", "item", "customer", "orders", "order_line", "cc_xacts")
PART = 10_000  # rows of the leading table


@dataclass(frozen=True)
class Size:
    """How big the store is: NUM_ITEMS and NUM_EBS (emulated browsers)."""

    name: str
    items: int
    browsers: int

    @property
    def customers(self) -> int:
        return 2880 * self.browsers

    @property
    def addresses(self) -> int:
        return 2 * self.customers

    @property
    def authors(self) -> int:
        return max(1, self.items // 4)

    @property
    def orders(self) -> int:
        return self.customers * 9 // 10


SIZES = {
    size.name: size
    for size in (Size("tiny", 1_000, 1), Size("small", 10_000, 11), Size("large", 10_000_000, 200))
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Rows first to last of what is made together: an order comes with its lines and its payment."""

    tables: tuple[str, ...]
    number: int
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.tables[0]} {self.number}"


def parts(size: Size) -> list[Part]:
    """All there is to load; the largest rows first, so that workers end at about the same time."""
    counts = {
        ("item",): size.items, ("author",): size.authors, ("customer",): size.customers, ("address",): size.addresses,
        ("orders", "order_line", "cc_xacts"): size.orders, ("country",): len(COUNTRIES),
    }  # fmt: skip
    return [
        Part(tables, number, first, min(first + PART - 1, count))
        for tables, count in counts.items()
        for number, first in enumerate(range(1, count + 1, PART))
    ]


def rows(size: Size, seed: int, part: Part) -> dict[str, list[str]]:
    """The part's lines, of each of its tables."""
    maker = _Maker(size, random.Random(f"{seed} {part.name}"))
    made: dict[str, list[str]] = {table: [] for table in part.tables}
    if part.tables[0] == "orders":
        for o_id in range(part.first, part.last + 1):
            maker.order(o_id, made)
        return made
    row = getattr(maker, part.tables[0])
    made[part.tables[0]] = [row(number) for number in range(part.first, part.last + 1)]
    return made


def uname(number: int) -> str:
    """A customer's name for logging in (the specification's DIGSYL)."""
    return "".join(SYLLABLES[int(digit)] for digit in str(number))


SYLLABLES = ("BA", "OG", "AL", "RI", "RE", "SE", "AT", "UL", "IN", "NG")
SUBJECTS = (
    "ARTS", "BIOGRAPHIES", "BUSINESS", "CHILDREN", "COMPUTERS", "COOKING", "HEALTH", "HISTORY", "HOME", "HUMOR",
    "LITERATURE", "MYSTERY", "NON-FICTION", "PARENTING", "POLITICS", "REFERENCE", "RELIGION", "ROMANCE", "SELF-HELP",
    "SCIENCE-NATURE", "SCIENCE-FICTION", "SPORTS", "YOUTH", "TRAVEL",
)  # fmt: skip
BACKINGS = ("HARDBACK", "PAPERBACK", "USED", "AUDIO", "LIMITED-EDITION")
SHIP_TYPES = ("AIR", "UPS", "FEDEX", "SHIP", "COURIER", "MAIL")
STATUSES = ("PROCESSING", "SHIPPED", "PENDING", "DENIED")
CARDS = ("VISA", "MASTERCARD", "DISCOVER", "AMEX", "DINERS")
COUNTRIES = (
    "Algeria", "Argentina", "Armenia", "Australia", "Austria", "Azerbaijan", "Bahamas", "Bahrain", "Bangla Desh",
    "Barbados", "Belarus", "Belgium", "Bermuda", "Bolivia", "Botswana", "Brazil", "Bulgaria", "Canada",
    "Cayman Islands", "Chad", "Chile", "China", "Christmas Island", "Colombia", "Croatia", "Cuba", "Cyprus",
    "Czech Republic", "Denmark", "Dominican Republic", "Eastern Caribbean", "Ecuador", "Egypt", "El Salvador",
    "Estonia", "Ethiopia", "Falkland Islands", "Faroe Islands", "Fiji", "Finland", "France", "Gabon", "Germany",
    "Gibraltar", "Greece", "Guam", "Hong Kong", "Hungary", "Iceland", "India", "Indonesia", "Iran", "Iraq", "Ireland",
    "Israel", "Italy", "Jamaica", "Japan", "Jordan", "Kazakhstan", "Kuwait", "Lebanon", "Luxembourg", "Malaysia",
    "Mexico", "Mauritius", "Netherlands", "New Zealand", "Norway", "Pakistan", "Philippines", "Poland", "Portugal",
    "Romania", "Russia", "Saudi Arabia", "Singapore", "Slovakia", "South Africa", "South Korea", "Spain", "Sudan",
    "Sweden", "Switzerland", "Taiwan", "Thailand", "Trinidad", "Turkey", "United Kingdom", "United States",
    "Venezuela", "Zambia",
)  # fmt: skip

# Random text is cut out of this; making it letter by letter would take most of the time.
_LETTERS = string.ascii_letters + "    ,.-"
_TEXT = "".join(random.Random("text").choices(_LETTERS, k=1 << 16)).replace("  ", " x")
_DAYS = [(date(1900, 1, 1) + timedelta(days)).isoformat() for days in range(45_000)]
_TODAY = (date(2004, 1, 1) - date(1900, 1, 1)).days  # when the population was made, as far as its rows tell


class _Maker:
    def __init__(self, size: Size, generator: random.Random) -> None:
        self.size = size
        self.random = generator.random

    def number(self, least: int, most: int) -> int:
        return least + int(self.random() * (most - least + 1))

    def amount(self, least: int, most: int) -> float:
        """Dollars, in cents."""
        return self.number(100 * least, 100 * most) / 100

    def text(self, least: int, most: int) -> str:
        length = self.number(least, most)
        start = self.number(0, len(_TEXT) - most - 1)
        return _TEXT[start : start + length]

    def digits(self, count: int) -> str:
        return f"{int(self.random() * 10**count):0{count}}"

    def one_of(self, values: tuple[str, ...]) -> str:
        return values[int(self.random() * len(values))]

    def country(self, co_id: int) -> str:
        return f"{co_id}\t{COUNTRIES[co_id - 1]}\t{self.number(1, 10_000) / 1000}\t{self.text(3, 18)}\n"

    def address(self, addr_id: int) -> str:
        return (
            f"{addr_id}\t{self.text(15, 40)}\t{self.text(15, 40)}\t{self.text(4, 30)}\t{self.text(2, 20)}\t"
            f"{self.text(5, 10)}\t{self.number(1, len(COUNTRIES))}\n"
        )

    def author(self, a_id: int) -> str:
        return (
            f"{a_id}\t{self.text(3, 20)}\t{self.text(1, 20)}\t{self.text(1, 20)}\t"
            f"{_DAYS[self.number(0, 33_000)]}\t{self.text(125, 500)}\n"
        )

    def item(self, i_id: int) -> str:
        published = self.number(_TODAY - 27_000, _TODAY)
        price = self.amount(1, 9_999)
        cost = int(100 * price * (0.5 + 0.5 * self.random())) / 100
        related = "\t".join(map(str, self._related(i_id)))
        a_id = i_id if i_id <= self.size.authors else self.number(1, self.size.authors)
        return (
            f"{i_id}\t{self.text(14, 60)}\t{a_id}\t{_DAYS[published]}\t{self.text(14, 60)}\t{self.one_of(SUBJECTS)}\t"
            f"{self.text(100, 500)}\t{related}\timg{i_id % 100}/thumb_{i_id}.gif\timg{i_id % 100}/image_{i_id}.gif\t"
            f"{price}\t{cost}\t{_DAYS[published + self.number(1, 30)]}\t{self.number(10, 30)}\t{self.digits(13)}\t"
            f"{self.number(20, 9_999)}\t{self.one_of(BACKINGS)}\t"
            f"{self.amount(0, 99)}x{self.amount(0, 99)}x{self.amount(0, 99)}\n"
        )

    def _related(self, i_id: int) -> set[int]:
        """Five distinct other items."""
        related: set[int] = set()
        while len(related) < 5:
            related.add(self.number(1, self.size.items))
            related.discard(i_id)
        return related

    def customer(self, c_id: int) -> str:
        name, since = uname(c_id), self.number(_TODAY - 730, _TODAY - 1)
        login = min(_TODAY, since + self.number(0, 60))
        return (
            f"{c_id}\t{name}\t{name.lower()}\t{self.text(8, 15)}\t{self.text(8, 15)}\t"
            f"{self.number(1, self.size.addresses)}\t{self.digits(self.number(9, 16))}\t{name}@mail.example\t"
            f"{_DAYS[since]}\t{_DAYS[login]}\t2004-01-01 00:00:00\t2004-01-01 02:00:00\t{self.number(0, 50)}\t0\t"
            f"{self.amount(0, 999)}\t{_DAYS[self.number(0, 37_000)]}\t{self.text(100, 500)}\n"
        )

    def order(self, o_id: int, made: dict[str, list[str]]) -> None:
        lines = self.number(1, 5)
        sub_total = self.amount(10, 9_999)
        tax = round(sub_total * 0.0825, 2)
        total = round(sub_total + tax + 3 + lines, 2)
        day = self.number(_TODAY - 60, _TODAY - 1)
        ordered, shipped = f"{_DAYS[day]} {self._time()}", f"{_DAYS[day + self.number(0, 7)]} 23:59:59"
        made["orders"].append(
            f"{o_id}\t{self.number(1, self.size.customers)}\t{ordered}\t{sub_total}\t{tax}\t{total}\t"
            f"{self.one_of(SHIP_TYPES)}\t{shipped}\t{self.number(1, self.size.addresses)}\t"
            f"{self.number(1, self.size.addresses)}\t{self.one_of(STATUSES)}\n"
        )
        made["order_line"] += [
            f"{number}\t{o_id}\t{self.number(1, self.size.items)}\t{self.number(1, 300)}\t{self.number(0, 30)}\t"
            f"{self.text(20, 100)}\n"
            for number in range(1, lines + 1)
        ]
        made["cc_xacts"].append(
            f"{o_id}\t{self.one_of(CARDS)}\t{self.digits(16)}\t{self.text(14, 30)}\t"
            f"{_DAYS[_TODAY + self.number(10, 730)]}\t{self.digits(15)}\t{total}\t{shipped}\t"
            f"{self.number(1, len(COUNTRIES))}\n"
        )

    def _time(self) -> str:
        return f"{self.number(0, 23):02}:{self.number(0, 59):02}:{self.number(0, 59):02}"
