"""The paper's Figure 3: response time and aborts by load, of transactions that update 20 rows each."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg_pool import AsyncConnectionPool

from ..changes import triggers
from ..rows import Row, markdown, median, plotted
from ..targets import Target
from .site import DATABASE, TABLE, replicated, server

__all__ = ["LOADS", "measure", "plot", "targets", "tell"]

LOADS = (10, 20, 30, 40, 50, 100, 200)  # transactions a second; the paper's end with 50
PAPER = 50
ROWS = 10_000  # of the table; the paper does not say how many it had
UPDATES = 20  # rows of a transaction
SESSIONS = 32  # at each server
ALONE, TRIGGERS = "one server", "one server, writesets by triggers"
SYSTEMS = (ALONE, TRIGGERS, "one replica", "two replicas", "three replicas")


@dataclass
class _Outcome:
    ms: list[float] = field(default_factory=list)  # of those that were committed
    aborted: int = 0


@contextmanager
def _system(name: str) -> Iterator[list[str]]:
    """Where it takes transactions."""
    if name in (ALONE, TRIGGERS):
        with server(ROWS) as cluster:
            if name == TRIGGERS:
                cluster.run_sql(triggers.in_sql(TABLE), dbname=DATABASE)
            yield [cluster.conninfo(DATABASE)]
        return
    with replicated(SYSTEMS.index(name) - 1, ROWS) as site:
        yield list(site.conninfos)
        site.until_same()


async def _transaction(pool: AsyncConnectionPool, keys: Sequence[int], outcome: _Outcome) -> None:
    """In the order of their keys, and one by one, as the paper's; snapshot isolation, as there."""
    began = time.perf_counter()
    try:
        async with pool.connection() as conn:
            await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            for key in keys:
                await conn.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id = %s".encode(), (key,), prepare=True)
    except psycopg.OperationalError:  # 40001, 40P01; or its session has been ended between two statements
        outcome.aborted += 1
    else:
        outcome.ms.append((time.perf_counter() - began) * 1000)


async def _offer(conninfos: Sequence[str], load: float, seconds: float, chance: random.Random) -> _Outcome:
    """Transactions come when they come, whether or not those before have ended."""
    outcome = _Outcome()
    # Who is in the way of what is applied loses his session.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    pools = [AsyncConnectionPool(where, min_size=4, max_size=SESSIONS, open=False) for where in conninfos]
    for pool in pools:
        await pool.open(wait=True)
    clock = asyncio.get_running_loop().time
    due, end, running = clock(), clock() + seconds, set()
    while (due := due + chance.expovariate(load)) < end:
        await asyncio.sleep(max(0.0, due - clock()))
        keys = sorted(chance.sample(range(1, ROWS + 1), UPDATES))
        running.add(asyncio.create_task(_transaction(chance.choice(pools), keys, outcome)))
    await asyncio.gather(*running)
    for pool in pools:
        await pool.close()
    return outcome


def measure(*, rounds: int, seconds: float, loads: Sequence[int]) -> list[Row]:
    rows: list[Row] = []
    chance = random.Random(1)
    for turn in range(1, rounds + 1):
        for name in SYSTEMS:
            with _system(name) as conninfos:
                asyncio.run(_offer(conninfos, loads[0], seconds / 2, chance))
                for load in loads:
                    outcome = asyncio.run(_offer(conninfos, load, seconds, chance))
                    rows.append(_row(name, turn, load, outcome))
    return rows


def _row(name: str, turn: int, load: int, outcome: _Outcome) -> Row:
    done = len(outcome.ms) + outcome.aborted
    return {
        "system": name, "round": turn, "load": load, "transactions": done,
        "ms": sum(outcome.ms) / max(1, len(outcome.ms)), "aborted": 100 * outcome.aborted / max(1, done),
    }  # fmt: skip


def _loads(rows: list[Row]) -> list[int]:
    return sorted({row["load"] for row in rows})


def tell(rows: list[Row]) -> str:
    lines = [
        [name, what, *(f"{median(rows, metric, system=name, load=load):.1f}" for load in _loads(rows))]
        for name in SYSTEMS for what, metric in (("ms", "ms"), ("aborted, %", "aborted"))
    ]  # fmt: skip
    return markdown(["transactions a second", "", *map(str, _loads(rows))], lines)


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, ["Response time, ms", "Aborted, %"], "transactions a second", "") as axes:
        for axis, metric in zip(axes, ("ms", "aborted"), strict=True):
            for name in SYSTEMS:
                loads = _loads(rows)
                axis.plot(loads, [median(rows, metric, system=name, load=load) for load in loads], "o-", label=name)


def targets(rows: list[Row]) -> Sequence[Target]:
    """The paper's aborts are 1 to 10 %."""
    loads = [load for load in _loads(rows) if load <= PAPER]
    worst = max(median(rows, "aborted", system=SYSTEMS[-1], load=load) for load in loads)
    return [Target(f"aborted at three replicas, up to {PAPER} transactions a second, %", worst, most=10)]
