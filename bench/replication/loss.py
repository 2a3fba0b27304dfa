"""A replica is killed while others take transactions, and comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from ..rows import Row, markdown, median, plotted, spread
from ..targets import Target
from .site import DATABASE, TABLE, Site, replicated

__all__ = ["measure", "plot", "targets", "tell"]

ROWS = 10_000
CLIENTS = 4  # at each of the two that stay
Commits = list[tuple[float, float]]  # when each came back, and how long it took, in seconds


def _commit(conninfo: str, first: int, ended: threading.Event, commits: Commits) -> None:
    """Updates of one row each, of rows that nobody else updates."""
    with psycopg.connect(conninfo, autocommit=True) as conn:
        key = first
        while not ended.is_set():
            began = time.perf_counter()
            conn.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id = %s".encode(), (key,), prepare=True)
            now = time.perf_counter()
            commits.append((now, now - began))
            key = key + 100 if key + 100 <= ROWS else first


def _lose(site: Site, seconds: float) -> Row:
    """For so long before, and behind, the death."""
    ended, commits = threading.Event(), Commits()
    clients = [
        threading.Thread(target=_commit, args=(site.conninfo(member), 1 + 10 * at + number, ended, commits))
        for at, member in enumerate(("a", "b")) for number in range(CLIENTS)
    ]  # fmt: skip
    for client in clients:
        client.start()
    time.sleep(seconds)
    killed = time.perf_counter()
    site.clusters["c"].kill_postmaster()
    time.sleep(seconds)
    position = site.applied("a")
    back = time.perf_counter()
    site.clusters["c"].start()
    site.clusters["c"].run_sql(f"SELECT mip.wait_for({position})", dbname=DATABASE)
    caught_up = time.perf_counter() - back
    ended.set()
    for client in clients:
        client.join()
    before = [took for at, took in commits if at < killed]
    behind = [took for at, took in commits if killed <= at < back]
    return {
        "before": len(before) / seconds, "behind": len(behind) / (back - killed),
        "longest_before_ms": 1000 * max(before), "longest_behind_ms": 1000 * max(behind), "caught_up_s": caught_up,
    }  # fmt: skip


def measure(*, rounds: int, seconds: float) -> list[Row]:
    rows: list[Row] = []
    with replicated(3, ROWS) as site:
        for turn in range(1, rounds + 1):
            rows.append({"round": turn, "seconds": seconds} | _lose(site, seconds))
            site.until_same()
    return rows


def tell(rows: list[Row]) -> str:
    lines = [
        ["commits a second, before", spread(rows, "before")], ["behind its death", spread(rows, "behind")],
        ["the longest COMMIT, ms, before", spread(rows, "longest_before_ms")],
        ["behind its death", spread(rows, "longest_behind_ms")],
        ["s from its start until it had caught up", spread(rows, "caught_up_s")],
    ]  # fmt: skip
    return markdown(["", f"{rows[0]['seconds']:g} s each"], lines)


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, ["The longest COMMIT at the others"], "round", "ms") as (axis,):
        for metric, label in (("longest_before_ms", "before"), ("longest_behind_ms", "behind the death")):
            axis.plot([row["round"] for row in rows], [row[metric] for row in rows], "o", label=label)


def targets(rows: list[Row]) -> Sequence[Target]:
    return [Target("the longest COMMIT at others when a replica is killed, s", median(rows, "longest_behind_ms") / 1000,
                   most=1)]
