"""The checks of the data see what is wrong."""

from __future__ import annotations

import pytest
from pgmip.testing import Cluster

from bench.bookstore.scripts import SYSTEMS
from bench.bookstore.store import Store
from workload.population import SIZES

TINY = SIZES["tiny"]


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Store:
    made = Store(cluster, TINY, quiet=True)
    for system in ("MIP fail-over", "MIP adopted"):
        made.run("Buy Confirm", SYSTEMS[system], clients=2, seconds=1)
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

