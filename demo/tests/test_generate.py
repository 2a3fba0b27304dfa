"""The generated bookstore is the same in every run, and of the size that TPC-W asks for."""

from __future__ import annotations

import hashlib

import pytest

from demo import generate
from demo.requests import requests
from workload.population import parts, rows


@pytest.mark.parametrize("table", generate.TABLES)
def test_same_rows_every_time(table: str) -> None:
    def digest() -> str:
        return hashlib.sha256(repr(list(generate.TABLES[table]())).encode()).hexdigest()

    assert digest() == digest()


@pytest.mark.parametrize(
    ("table", "rows"),
    [("shopping_cart", 1_000), ("account", 2_972)],
)
def test_number_of_rows(table: str, rows: int) -> None:
    assert sum(1 for _ in generate.TABLES[table]()) == rows


def test_stock_and_carts_never_run_dry() -> None:
    """Below ten the stock is filled up by 21, so that no order of the demo can ask for more than there is."""
    stocks = [
        int(line.split("\t")[17])
        for part in parts(generate.SIZE) if part.tables == ("item",)
        for line in rows(generate.SIZE, generate.SEED, part)["item"]
    ]  # fmt: skip
    assert {10 <= stock <= 30 for stock in stocks} == {True}
    assert all(1 <= line[2] <= 10 for line in generate.shopping_cart_line())
    assert {line[0] for line in generate.shopping_cart_line()} == set(range(1, generate.CARTS + 1))


def test_requests() -> None:
    first, second = requests(), requests()
    assert first == second
    assert len({request.key for request in first}) == len({request.cart for request in first}) == 1_000
    assert any(request.customer % generate.BROKE == 0 for request in first), "some are refused"
    assert any(request.body["elsewhere"] for request in first), "some want another address"
