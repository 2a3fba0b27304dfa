"""How long a COMMIT takes one client."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from pgmip.replication.embedded import EmbeddedLog
from pgmip.replication.engine import Message

from workload.replicas import LOG

from ..rows import Row, markdown, median, pick, plotted, spread
from ..targets import Target
from .site import DATABASE, TABLE, Site, pair, replicated, server

__all__ = ["measure", "plot", "targets", "tell"]

APPEND = "an append to the log"
ONE, THREE = "one replica", "three replicas"
ALONE, BEHIND, BESIDE = "one server", "with a standby", "with a synchronous standby"
SYSTEMS = (ALONE, BEHIND, BESIDE, APPEND, ONE, THREE)
ROWS = 10_000
MESSAGE = 250  # bytes: about what such a transaction's message has
Work = Callable[[float], list[float]]  # for so many seconds; the milliseconds of each


def _updates(conninfo: str) -> Work:
    def work(seconds: float) -> list[float]:
        taken: list[float] = []
        end = time.perf_counter() + seconds
        with psycopg.connect(conninfo, autocommit=True) as conn:
            while (began := time.perf_counter()) < end:
                key = len(taken) % ROWS + 1
                conn.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id = %s".encode(), (key,), prepare=True)
                taken.append((time.perf_counter() - began) * 1000)
        return taken

    return work


def _appends(site: Site) -> Work:
    """To a log of its own at the same server."""

    async def append(seconds: float) -> list[float]:
        taken: list[float] = []
        end = time.perf_counter() + seconds
        async with EmbeddedLog(site.log.conninfo(LOG)) as log:
            while (began := time.perf_counter()) < end:
                await log.append([Message(uuid4(), os.urandom(MESSAGE))])
                taken.append((time.perf_counter() - began) * 1000)
        return taken

    return lambda seconds: asyncio.run(append(seconds))


@contextmanager
def _of_server(made: AbstractContextManager[object]) -> Iterator[Work]:
    with made as cluster:
        yield _updates(cluster.conninfo(DATABASE))  # type: ignore[attr-defined]


@contextmanager
def _of_site(members: int) -> Iterator[Work]:
    with replicated(members, ROWS) as site:
        yield _updates(site.conninfo("a"))
        site.until_same()


@contextmanager
def _of_log() -> Iterator[Work]:
    """Nobody reads it: to a replica it would be none of its log."""
    with replicated(1, ROWS) as site:
        site.agents.stop("a")
        yield _appends(site)


def _system(name: str) -> AbstractContextManager[Work]:
    made: dict[str, Callable[[], AbstractContextManager[Work]]] = {
        ALONE: lambda: _of_server(server(ROWS)),
        BEHIND: lambda: _of_server(pair(ROWS, synchronous=False)),
        BESIDE: lambda: _of_server(pair(ROWS, synchronous=True)),
        APPEND: _of_log,
        ONE: lambda: _of_site(1),
        THREE: lambda: _of_site(3),
    }
    return made[name]()


def measure(*, rounds: int, seconds: float) -> list[Row]:
    rows: list[Row] = []
    for turn in range(1, rounds + 1):
        for name in SYSTEMS:
            with _system(name) as work:
                work(seconds / 4)
                taken = sorted(work(seconds))
            rows.append({
                "system": name, "round": turn, "commits": len(taken),
                "median_ms": taken[len(taken) // 2], "p95_ms": taken[len(taken) * 95 // 100],
            })  # fmt: skip
    return rows


def tell(rows: list[Row]) -> str:
    lines = [[name, spread(rows, "median_ms", system=name), spread(rows, "p95_ms", system=name)] for name in SYSTEMS]
    return markdown(["", "median, ms", "95 of 100, ms"], lines)


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, ["One client"], "", "ms") as (axis,):
        for metric, label in (("median_ms", "median"), ("p95_ms", "95 of 100")):
            axis.plot([median(rows, metric, system=name) for name in SYSTEMS], "o", label=label)
        axis.set_xticks(range(len(SYSTEMS)), SYSTEMS, rotation=20, fontsize=7)


def targets(rows: list[Row]) -> Sequence[Target]:
    """Round by round: appends and commits of one are close to each other in time."""
    commits, appends = (pick(rows, "median_ms", system=system) for system in (THREE, APPEND))
    more = statistics.median(commit - append for commit, append in zip(commits, appends, strict=True))
    return [Target("a COMMIT at one of three replicas, more than an append, ms", more, most=1)]
