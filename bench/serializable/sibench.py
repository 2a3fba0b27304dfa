"""SIBENCH, Figure 4 of the paper: half of the transactions update the row of one key, half look through all rows for
the lowest value.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from pgmip.testing import Cluster

from ..rounds import METHODS, interleaved
from ..rows import Row, markdown, median, plotted, quartiles, ratios, spread
from .measured import LEVELS, SI, SSI, run

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
            for method in METHODS:
                for level in interleaved(LEVELS, number):
                    cluster.run_sql(f"VACUUM ANALYZE sibench_{size}", dbname=method)
                    scripts = [(text.format(size=size, level=level), 0.5) for text in (UPDATE, LOWEST)]
                    m = run(cluster, method, scripts, clients=clients, seconds=seconds)
                    rows.append(
                        {"size": size, "method": method, "system": level, "round": number + 1, "tps": m.tps,
                         "failures": m.failures}
                    )  # fmt: skip
        print(f"SIBENCH: round {number + 1} of {rounds}", flush=True)
    return rows


def _sizes(rows: list[Row]) -> list[int]:
    return sorted({row["size"] for row in rows})


def _shares(rows: list[Row], size: int, method: str) -> list[float]:
    """Per cent, round by round."""
    return [100 * value for value in ratios(rows, "tps", SSI, SI, size=size, method=method)]


def tell(rows: list[Row]) -> str:
    lines = []
    for size in _sizes(rows):
        for method in METHODS:
            where = {"size": size, "method": method}
            lines.append(
                [f"{size:,}", method, *(spread(rows, "tps", system=level, **where) for level in LEVELS),
                 f"{quartiles(_shares(rows, size, method), '.0f')} %", PAPER,
                 *(f"{median(rows, 'failures', system=level, **where):.2%}" for level in LEVELS)]
            )  # fmt: skip
    header = ["rows", "tables", f"{SI}, tps", f"{SSI}, tps", "of that", "paper", f"failures, {SI}",
              f"failures, {SSI}"]  # fmt: skip
    return markdown(header, lines)


def plot(rows: list[Row], file: Path) -> None:
    sizes = _sizes(rows)
    with plotted(file, ["SIBENCH"], "rows", f"{SSI}, per cent of {SI}") as (axis,):
        axis.axhspan(80, 90, color="lightgray", label="paper, few rows")
        for method in METHODS:
            shares = [statistics.median(_shares(rows, size, method)) for size in sizes]
            axis.plot(sizes, shares, marker="o", label=method)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
