"""Plain two-phase commit, as the demo's yardstick, is itself sound: a coordinator that dies anywhere is recovered."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from demo import faults
from workload import plain
from workload.tx import Tx

from .conftest import Day

KEY, CART = "the key", 90_000


async def insert(tx: Tx, cart: int) -> int:
    await tx["store"].execute("INSERT INTO shopping_cart VALUES (%s, now())", (cart,))
    await tx["bank"].execute("INSERT INTO account VALUES (%s, 'somebody', 0)", (cart,))
    return cart


def attempt(name: str, conninfos: dict[str, str], folder: Path) -> None:
    """A coordinator's life."""

    async def submit() -> None:
        on_step = partial(faults.die_if_armed, folder, 0)
        coordinator = plain.Coordinator(name, conninfos, folder / name, on_step, key_site="store")
        assert await coordinator.submit(insert, CART, KEY) == str(CART)
        await coordinator.close()

    asyncio.run(submit())


@pytest.mark.parametrize("point", faults.POINTS)
def test_death_at_a_point(day: Day, tmp_path: Path, point: str) -> None:
    """Nothing at all before the decision is logged, everything after it; and a retry finds out which."""
    sites, conninfos = day.sites, day.sites.conninfos

    def counts() -> list[int]:
        found = (
            sites.store.run_sql(f"SELECT FROM shopping_cart WHERE sc_id = {CART}", dbname="store"),
            sites.bank.run_sql(f"SELECT FROM account WHERE a_id = {CART}", dbname="bank"),
        )
        return [len(rows) for rows in found]

    faults.arm(tmp_path, 0, point)
    victim = multiprocessing.get_context("spawn").Process(target=attempt, args=("first", conninfos, tmp_path))
    victim.start()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL

    for cluster, name in sites.databases():  # the sites may still be busy with its last words
        while cluster.run_sql(f"SELECT FROM pg_stat_activity WHERE datname = '{name}'"):
            time.sleep(0.01)
    asyncio.run(plain.recover("first", conninfos, tmp_path / "first"))
    expected = int(point == "committed-first-site")
    assert counts() == [expected, expected]

    attempt("second", conninfos, tmp_path)
    assert counts() == [1, 1]
