"""How fast a replica applies what it has missed, once its agent is there again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ..rounds import pgbench
from ..rows import Row, markdown, median, plotted, spread
from ..targets import Target
from .site import DATABASE, TABLE, Site, replicated

__all__ = ["measure", "plot", "targets", "tell"]

CLIENTS = 4


def _insert(site: Site, rows: int, size: int) -> None:
    """So many rows, in transactions of that size, at the first replica."""
    script = site.log.directory / f"insert_{size}.sql"
    script.write_text(f"INSERT INTO {TABLE} SELECT nextval('number'), 1, 'what an item is like' "
                      f"FROM generate_series(1, {size});\n")  # fmt: skip
    cluster = site.clusters["a"]
    pgbench(cluster, DATABASE, "-n", "-M", "prepared", "-f", str(script), "-c", str(CLIENTS), "-j", "2",
            "-t", str(max(1, rows // size // CLIENTS)))  # fmt: skip


def _catch_up(site: Site) -> float:
    """Seconds."""
    position, behind = site.applied("a"), site.applied("b")
    site.agents.start("b")
    while site.applied("b") == behind:  # it starts, and reads what was applied before
        time.sleep(0.001)
    began = time.perf_counter()
    site.clusters["b"].run_sql(f"SELECT mip.wait_for({position})", dbname=DATABASE)
    return time.perf_counter() - began


def measure(*, rounds: int, rows: Sequence[tuple[int, int]]) -> list[Row]:
    """`rows`: how many are missed, and of what size their transactions are."""
    measured: list[Row] = []
    with replicated(2, 10) as site:
        for turn in range(1, rounds + 1):
            for count, size in rows:
                site.agents.stop("b")
                _insert(site, count, size)
                seconds = _catch_up(site)
                measured.append({"size": size, "round": turn, "rows": count, "rows_a_second": count / seconds,
                                 "positions_a_second": count / size / seconds})  # fmt: skip
        site.until_same()
    return measured


def _sizes(rows: list[Row]) -> list[int]:
    return sorted({row["size"] for row in rows})


def tell(rows: list[Row]) -> str:
    lines = [
        [f"{size:,}", spread(rows, "rows_a_second", size=size), spread(rows, "positions_a_second", size=size)]
        for size in _sizes(rows)
    ]
    return markdown(["rows of a transaction", "rows a second", "transactions a second"], lines)


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, ["Applied"], "rows of a transaction", "rows a second") as (axis,):
        axis.set_xscale("log")
        axis.plot(_sizes(rows), [median(rows, "rows_a_second", size=size) for size in _sizes(rows)], "o-", label="b")


def targets(rows: list[Row]) -> Sequence[Target]:
    best = max(median(rows, "rows_a_second", size=size) for size in _sizes(rows))
    return [Target("rows applied a second", best, least=20_000)]
