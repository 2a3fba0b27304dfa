"""Rows of measurements: kept as CSV, and told as Markdown and plots."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

__all__ = [
    "Row", "markdown", "median", "number", "pick", "plotted", "quartiles", "ratio", "ratios", "spread", "write_csv",
]  # fmt: skip

Row = dict[str, Any]


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0].keys())
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})


def pick(rows: Iterable[Row], metric: str, **where: Any) -> list[float]:
    """The values of a metric in the rows where all these columns have these values, in their order."""
    return [row[metric] for row in rows if all(row[column] == value for column, value in where.items())]


def median(rows: Iterable[Row], metric: str, **where: Any) -> float:
    return statistics.median(pick(rows, metric, **where))


def spread(rows: Iterable[Row], metric: str, **where: Any) -> str:
    """Median, least and most."""
    values = pick(rows, metric, **where)
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """With three digits, or all there are before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratios(rows: Sequence[Row], metric: str, system: object, base: object, **where: Any) -> list[float]:
    """Of a system to another one, round by round: rows have the columns `system` and `round`."""
    of_base = {row["round"]: row[metric] for row in rows if row["system"] == base and _fits(row, where)}
    return [
        row[metric] / of_base[row["round"]] for row in rows if row["system"] == system and _fits(row, where)
    ]


def quartiles(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and between which values the middle half of them is."""
    first, second, third = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * [*values]
    return f"{second:{form}} ({first:{form}} to {third:{form}})"


def ratio(rows: Sequence[Row], metric: str, system: object, base: object, **where: Any) -> str:
    values = ratios(rows, metric, system, base, **where)
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _fits(row: Row, where: Row) -> bool:
    return all(row[column] == value for column, value in where.items())


def markdown(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    cells = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in cells)


@contextmanager
def plotted(file: Path, titles: Sequence[str], x: str, y: str) -> Iterator[list[Axes]]:
    """A plot with an axis for each title, to be drawn in the block."""
    figure, axes = plt.subplots(1, len(titles), figsize=(5 * len(titles), 3.8), squeeze=False)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(x)
        axis.set_ylabel(y)
    yield list(axes[0])
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
