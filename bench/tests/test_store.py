"""Loading can be interrupted, and the checks of the data see what is wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from bookstore.load import load
from bookstore.population import SIZES, TABLES
from bookstore.scripts import SYSTEMS
from bookstore.store import Store
from pgmip.testing import Cluster

TINY = SIZES["tiny"]


def sums(cluster: Cluster, database: str) -> dict[str, object]:
    """A checksum of each table."""
    return {
        table: cluster.run_sql(f"SELECT sum(hashtextextended(t::text, 0)) FROM {table} t", dbname=database)
        for table in TABLES
    }


@pytest.fixture(scope="module")
def whole(cluster: Cluster) -> dict[str, object]:
    cluster.create_database("whole")
    load(cluster.conninfo("whole"), TINY, quiet=True)
    return sums(cluster, "whole")


def test_an_interrupted_load_goes_on(cluster: Cluster, whole: dict[str, object]) -> None:
    cluster.create_database("broken")
    command = [sys.executable, "-m", "bookstore.load", cluster.conninfo("broken"), "--size", "tiny", "--workers", "1"]
    loading = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not cluster.run_sql("SELECT to_regclass('loaded_part')", dbname="broken")[0][0]:
        time.sleep(0.01)
    while not cluster.run_sql("SELECT FROM loaded_part", dbname="broken"):
        time.sleep(0.001)
    loading.kill()
    loading.wait()
    cluster.restart("immediate")
    load(cluster.conninfo("broken"), TINY, quiet=True)
    assert sums(cluster, "broken") == whole


def test_what_is_loaded_is_not_loaded_again(cluster: Cluster, whole: dict[str, object]) -> None:
    load(cluster.conninfo("whole"), TINY, quiet=True)
    assert sums(cluster, "whole") == whole


def test_another_population_is_refused(cluster: Cluster, whole: dict[str, object]) -> None:
    with pytest.raises(SystemExit, match="another population"):
        load(cluster.conninfo("whole"), TINY, seed=2, quiet=True)


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Iterator[Store]:
    made = Store(cluster, TINY, quiet=True)
    made.run("Buy Confirm", SYSTEMS["MIP fail-over"], clients=2, seconds=1)
    made.run("Admin Confirm", SYSTEMS["2PC"], clients=2, seconds=1)
    made.run_mix(SYSTEMS["MIP"], clients=2, seconds=1)
    made.check()
    return made


DAMAGE = {
    "an order's total": "UPDATE orders SET o_total = o_total + {sign} WHERE o_id = 1",
    "every order is paid": "UPDATE cc_xacts SET cx_xact_amt = cx_xact_amt + {sign} WHERE cx_o_id = 1",
    "stock is refilled": "UPDATE item SET i_stock = i_stock + {sign} WHERE i_id = (SELECT min(i_id) FROM item)",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_seen(store: Store, what: str) -> None:
    store.cluster.run_sql(DAMAGE[what].format(sign="1"), dbname="mip")
    try:
        with pytest.raises(SystemExit, match=what):
            store.check()
    finally:
        store.cluster.run_sql(DAMAGE[what].format(sign="-1"), dbname="mip")
    store.check()


def test_an_order_too_many_is_seen(store: Store) -> None:
    store.ordered["mip"] -= 1
    with pytest.raises(SystemExit, match="orders have been confirmed"):
        store.check()
    store.ordered["mip"] += 1

