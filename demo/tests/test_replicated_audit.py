"""The audit of the replicated bookstore finds each kind of fault that is planted."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from uuid import uuid4

import pytest
from pgmip.testing import Cluster

from demo.replicated.audit import wrong_at
from demo.replicated.customers import Order, Placed
from demo.replicated.site import DATABASE, Replica


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with Cluster("shop") as cluster:
        cluster.create_database(DATABASE)
        cluster.run_sql(resources.files("demo.replicated").joinpath("schema.sql").read_text(), dbname=DATABASE)
        yield Replica(cluster, "", tmp_path_factory.mktemp("shop"))


@pytest.fixture
def placed(shop: Replica) -> list[Placed]:
    """Three orders, as they should be."""
    shop.cluster.run_sql("TRUNCATE orders; UPDATE item SET stock = 100000", dbname=DATABASE)
    orders = [Order(uuid4(), item, 2) for item in (1, 1, 3)]
    for order in orders:
        shop.cluster.run_sql(
            f"INSERT INTO orders VALUES ('{order.id}', {order.item}, {order.copies}, 'a');"
            f"UPDATE item SET stock = stock - {order.copies} WHERE id = {order.item}",
            dbname=DATABASE,
        )
    return [Placed(order, "a", 0.0, 1.0) for order in orders]


def test_nothing_is_wrong(shop: Replica, placed: list[Placed]) -> None:
    assert set(wrong_at(shop, placed).values()) == {0}


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("DELETE FROM orders WHERE item = 3", "every order that a customer was told of"),
        ("UPDATE orders SET copies = 3 WHERE item = 3", "every order that a customer was told of"),
        ("INSERT INTO orders VALUES (gen_random_uuid(), 2, 1, 'b')", "no order is there that no customer knows of"),
        ("UPDATE item SET stock = stock + 2 WHERE id = 1", "no update is lost"),
        ("UPDATE item SET stock = stock - 2 WHERE id = 3", "no update is lost"),
        (
            "SET session_replication_role = replica; DELETE FROM item WHERE id = 3",
            "every order is of an item that there is",
        ),
    ],
)
def test_planted(shop: Replica, placed: list[Placed], planted: str, found: str) -> None:
    items = shop.ask("SELECT * FROM item WHERE id = 3")
    shop.cluster.run_sql(planted, dbname=DATABASE)
    try:
        assert next(wrong for check, wrong in wrong_at(shop, placed).items() if found in check) > 0
    finally:
        shop.cluster.run_sql(f"INSERT INTO item VALUES {items[0]} ON CONFLICT DO NOTHING", dbname=DATABASE)
