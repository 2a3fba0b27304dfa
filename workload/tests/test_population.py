"""The population is TPC-W's, and the same for the same seed."""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest

from workload.population import SIZES, Part, parts, rows

TINY = SIZES["tiny"]


def made(seed: int, order: list[Part]) -> dict[str, str]:
    """A checksum of each table, its parts made in this order."""
    tables: dict[str, dict[int, str]] = defaultdict(dict)
    for part in order:
        for table, lines in rows(TINY, seed, part).items():
            tables[table][part.number] = "".join(lines)
    return {
        table: hashlib.sha256("".join(of[number] for number in sorted(of)).encode()).hexdigest()
        for table, of in tables.items()
    }


def lines_of(table: str) -> list[list[str]]:
    found = [rows(TINY, 1, part)[table] for part in parts(TINY) if table in part.tables]
    return [line.rstrip("\n").split("\t") for lines in found for line in lines]


def test_the_same_seed_makes_the_same_bytes() -> None:
    assert made(1, parts(TINY)) == made(1, parts(TINY)[::-1])


def test_another_seed_makes_others() -> None:
    one, other = made(1, parts(TINY)), made(2, parts(TINY))
    assert not set(one.values()) & set(other.values())


@pytest.mark.parametrize(
    ("table", "count"),
    [("country", 92), ("author", 250), ("item", 1000), ("customer", 2880), ("address", 5760), ("orders", 2592),
     ("cc_xacts", 2592)],
)  # fmt: skip
def test_cardinalities(table: str, count: int) -> None:
    assert [int(line[0]) for line in lines_of(table)] == list(range(1, count + 1))


def test_an_order_has_one_to_five_lines() -> None:
    per_order: dict[str, list[str]] = defaultdict(list)
    for line in lines_of("order_line"):
        per_order[line[1]].append(line[0])
    assert len(per_order) == TINY.orders
    assert {len(numbers) for numbers in per_order.values()} == {1, 2, 3, 4, 5}
    assert all(numbers == [str(i + 1) for i in range(len(numbers))] for numbers in per_order.values())


def test_related_items_are_five_others() -> None:
    for line in lines_of("item"):
        related = {int(one) for one in line[7:12]}
        assert len(related) == 5
        assert int(line[0]) not in related
        assert related <= set(range(1, TINY.items + 1))


def test_the_small_store_is_the_paper_s_smallest() -> None:
    size = SIZES["small"]
    tuples = size.items + size.authors + size.customers + size.addresses + 92 + size.orders * (1 + 3 + 1)
    assert 240_000 < tuples < 260_000
