"""Section 8.4 of the paper: how long READ ONLY DEFERRABLE transactions wait for a safe snapshot beside DBT-2++."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg

from ..rounds import percentile
from ..rows import Row, markdown, number, pick, plotted
from .client import COMMIT, Client, Session, Tally, driving, perform
from .dbt2 import CUSTOMERS, Store, choose_work, mix
from .families import PREPARED, failing_over
from .measured import SSI

__all__ = ["measure", "plot", "tell"]

FAMILIES = "mip, half of the requests with two instances"
SYSTEMS = {"heap": "heap", "mip": "mip", FAMILIES: "mip"}  # and their databases
PARTS = (50, 90, 100)
PAPER = {50: 1980, 90: 6000, 100: 20_000}  # ms; on disks, 36 threads


def measure(store: Store, *, samples: int, every: float, clients: int) -> list[Row]:
    """So many transactions, one after another, with that many seconds between them."""
    rows = []
    for system, database in SYSTEMS.items():
        store.vacuum(database)
        load = [_load(store, system, database, seed) for seed in range(clients)]
        with driving(load), psycopg.connect(store.cluster.conninfo(database), autocommit=True) as conn:
            for sample in range(samples):
                time.sleep(every)
                began = time.monotonic()
                conn.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE")
                conn.execute("SELECT 1")
                took = 1000 * (time.monotonic() - began)
                conn.execute("COMMIT")
                rows.append({"system": system, "sample": sample + 1, "milliseconds": took})
        print(f"deferrable: {system}", flush=True)
    return rows


def _load(store: Store, system: str, database: str, seed: int) -> Client:
    if system == FAMILIES:
        return failing_over(store, SSI, 0.5, [PREPARED], mix(8), CUSTOMERS, Tally(), seed)

    def client(over: Callable[[], bool]) -> None:
        generator = random.Random(seed)
        with closing(Session(store.cluster.conninfo(database))) as session:
            while not over():
                perform([session], SSI, COMMIT, choose_work(generator, mix(8), store.warehouses, CUSTOMERS), Tally())

    return client


def _part(rows: list[Row], system: str, part: int) -> float:
    return percentile(sorted(pick(rows, "milliseconds", system=system)), part)


def tell(rows: list[Row]) -> str:
    lines = [
        [system, len(pick(rows, "milliseconds", system=system)), *(number(_part(rows, system, part)) for part in PARTS)]
        for system in SYSTEMS
    ]
    lines.append(["paper, 36 threads, on disks", "1,200", *(number(PAPER[part]) for part in PARTS)])
    return markdown(["beside", "transactions", "median, ms", "p90", "the longest"], lines)


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, ["READ ONLY DEFERRABLE"], "ms until the snapshot is safe", "share of them") as (axis,):
        for system in SYSTEMS:
            took = sorted(pick(rows, "milliseconds", system=system))
            axis.step(took, [(at + 1) / len(took) for at in range(len(took))], where="post", label=system)
        axis.plot([PAPER[part] for part in PARTS], [part / 100 for part in PARTS], "x", color="gray", label="paper")
        axis.set_xscale("log")
        axis.set_ylim(0, 1.02)
