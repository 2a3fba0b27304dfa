"""What pgbench has measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgmip.testing import Cluster

from ..rounds import METHODS, interleaved, pgbench, rate
from ..rows import Row, markdown, median, quartiles, ratios, spread

__all__ = ["LEVELS", "SI", "SSI", "Measured", "compare", "run", "shares", "tell_compared"]

SI, SSI = LEVELS = ("REPEATABLE READ", "SERIALIZABLE")  # the paper's names are these


@dataclass(frozen=True)
class Measured:
    """Of transactions that fail to be serialized, or by a deadlock, every attempt but the last one has `failed`."""

    tps: float
    done: int
    failed: int

    @classmethod
    def read(cls, output: str) -> Measured:
        """What pgbench printed; it was told to try again."""
        counts = {
            name: int(value)
            for name, value in re.findall(r"^(?:total )?(number of [\w ]+): (\d+)", output, re.MULTILINE)
        }
        failed = counts["number of retries"] + counts["number of failed transactions"]
        return cls(rate(output), counts["number of transactions actually processed"], failed)

    @property
    def failures(self) -> float:
        """Of all attempts, the share that failed."""
        return self.failed / max(1, self.failed + self.done)


def run(
    cluster: Cluster, database: str, scripts: Iterable[tuple[str, float]], *, clients: int, seconds: float
) -> Measured:
    """These scripts by their weights; what fails is tried again until it succeeds."""
    files = []
    for number, (text, weight) in enumerate(scripts):
        file: Path = cluster.directory / f"script{number}.sql"
        file.write_text(text)
        files.append(f"-f{file}@{round(10_000 * weight)}")
    return Measured.read(pgbench(
        cluster, database, "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(2, clients)),
        "-T", f"{seconds:g}", "--max-tries=0", *files,
    ))  # fmt: skip


# -- the two levels, on heap tables and on opted-in ones, as the paper compares them --------------------------------


def compare(
    cluster: Cluster, number: int, scripts: Callable[[str], Iterable[tuple[str, float]]], vacuum: str, *,
    clients: int, seconds: float, **case: object,
) -> list[Row]:  # fmt: skip
    """A round of a case. `scripts` is given the level; `vacuum` is executed before each run."""
    rows = []
    for method in METHODS:
        for level in interleaved(LEVELS, number):
            cluster.run_sql(vacuum, dbname=method)
            m = run(cluster, method, scripts(level), clients=clients, seconds=seconds)
            rows.append(
                {**case, "method": method, "system": level, "round": number + 1, "tps": m.tps, "failures": m.failures}
            )
    return rows


def shares(rows: Sequence[Row], **where: object) -> list[float]:
    """SERIALIZABLE, per cent of REPEATABLE READ, round by round."""
    return [100 * value for value in ratios(rows, "tps", SSI, SI, **where)]


def tell_compared(
    rows: Sequence[Row], column: str, header: str, case: Callable[[int], str], paper: Callable[[int], str],
    paper_failures: str | None = None,
) -> str:  # fmt: skip
    """A line for each case, by that column of the rows, and table, with what the paper has."""
    lines = []
    for value in sorted({row[column] for row in rows}):
        for method in METHODS:
            where = {column: value, "method": method}
            lines.append(
                [case(value), method, *(spread(rows, "tps", system=level, **where) for level in LEVELS),
                 f"{quartiles(shares(rows, **where), '.0f')} %", paper(value),
                 *(f"{median(rows, 'failures', system=level, **where):.2%}" for level in LEVELS),
                 *([paper_failures] if paper_failures else [])]
            )  # fmt: skip
    names = [header, "tables", f"{SI}, tps", f"{SSI}, tps", "of that", "paper", f"failures, {SI}", f"failures, {SSI}"]
    return markdown([*names, *(["paper"] if paper_failures else [])], lines)
