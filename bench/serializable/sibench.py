"""SIBENCH, Figure 4 of the paper: half of the transactions update the row of one key, half look through all rows for
the lowest value.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pgmip.testing import Cluster

from ..rounds import METHODS
from ..rows import Row, plotted
from .measured import SI, SSI, compare, shares, tell_compared

__all__ = ["SIZES", "load", "measure", "plot", "tell"]

SIZES = (10, 100, 1_000, 10_000)  # rows
PAPER = "80 to 90 %, more with more rows"
UPDATE = """\
\\set key random(1, {size})
\\set value random(0, 1000000000)
BEGIN ISOLATION LEVEL {level};
UPDATE sibench_{size} SET value = :value WHERE key = :key;
COMMIT;
"""
LOWEST = """\
BEGIN ISOLATION LEVEL {level} READ ONLY;
SELECT key FROM sibench_{size} ORDER BY value LIMIT 1;
COMMIT;
"""


def load(cluster: Cluster, sizes: Sequence[int]) -> None:
    for method in METHODS:
        for size in sizes:
            cluster.run_sql(
                f"CREATE TABLE sibench_{size} (key int PRIMARY KEY, value int NOT NULL) WITH (fillfactor = 50);"
                f" INSERT INTO sibench_{size} SELECT key, key FROM generate_series(1, {size}) key",
                dbname=method,
            )


def measure(cluster: Cluster, *, rounds: int, seconds: float, clients: int, sizes: Sequence[int]) -> list[Row]:
    rows = []
    for number in range(rounds):
        for size in sizes:
            rows += compare(
                cluster, number, partial(_scripts, size), f"VACUUM ANALYZE sibench_{size}", clients=clients,
                seconds=seconds, size=size,
            )  # fmt: skip
        print(f"SIBENCH: round {number + 1} of {rounds}", flush=True)
    return rows


def _scripts(size: int, level: str) -> list[tuple[str, float]]:
    return [(text.format(size=size, level=level), 0.5) for text in (UPDATE, LOWEST)]


def tell(rows: list[Row]) -> str:
    return tell_compared(rows, "size", "rows", lambda size: f"{size:,}", lambda size: PAPER)


def plot(rows: list[Row], file: Path) -> None:
    sizes = sorted({row["size"] for row in rows})
    with plotted(file, ["SIBENCH"], "rows", f"{SSI}, per cent of {SI}") as (axis,):
        axis.axhspan(80, 90, color="lightgray", label="paper, few rows")
        for method in METHODS:
            medians = [statistics.median(shares(rows, size=size, method=method)) for size in sizes]
            axis.plot(sizes, medians, marker="o", label=method)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
