"""What capturing costs the transaction itself: Table 4 of the paper, lines 1 to 3."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pgmip.testing import Cluster

from ..rounds import counted_from_one, interleaved
from ..rows import Row, markdown, median, number, plotted, quartiles, ratios
from ..targets import Target
from . import paper
from .items import OPS, PLAIN, SQL, C, fill, transactions
from .session import Session, Took

__all__ = ["SIZES", "measure", "plot", "targets", "tell"]

SIZES = (1, 100, 10_000)  # rows of a transaction
MOST = 1.05
TIMES = 12  # so many, as one takes a few milliseconds
CAPTURED = "-c mip.capture_writeset=on"
NONE, OURS, EXTRACTED = "none", "captured", "captured, extracted"
IN_SQL, IN_C, LOGICAL = "trigger in SQL", "trigger in C", "wal_level = logical"


@dataclass(frozen=True)
class System:
    """A way to capture changes: the table has its trigger, the session its settings."""

    table: str = PLAIN
    settings: str = ""
    extracted: bool = False
    logical: bool = False


SYSTEMS = {
    NONE: System(),
    OURS: System(settings=CAPTURED),
    EXTRACTED: System(settings=CAPTURED, extracted=True),
    IN_SQL: System(SQL),
    IN_C: System(C),
    LOGICAL: System(logical=True),
}


def measure(cluster: Cluster, logical: Cluster, *, rounds: int, rows: int, sizes: Sequence[int]) -> list[Row]:
    """Both have the tables, in a database `source`."""
    found: list[Row] = []
    with ExitStack() as stack:
        sessions = {
            name: stack.enter_context(Session(logical if system.logical else cluster, "source", system.settings))
            for name, system in SYSTEMS.items()
        }
        fillers = {of: stack.enter_context(Session(of, "source")) for of in (cluster, logical)}
        for turn in counted_from_one(rounds):
            for size in sizes:
                for name in interleaved(tuple(SYSTEMS), turn):
                    filler = fillers[logical if SYSTEMS[name].logical else cluster]
                    each = _changes(sessions[name], filler, SYSTEMS[name], rows, size)
                    found += [{"size": size, "system": name, "round": turn, **row} for row in each if turn]
            print(f"capture: round {turn} of {rounds}", flush=True)
    return found


def _changes(session: Session, filler: Session, system: System, rows: int, size: int) -> list[Row]:
    """All rows are inserted, updated and deleted, and where that is soon done again and again: then it is a median."""
    took: dict[str, list[Took]] = {op: [] for op in OPS}
    for _ in range(TIMES if size > 1 else 1):
        fill(filler, 0, system.table)
        for op in OPS:
            extracted = str(system.extracted).lower()
            took[op].append(session.timed(f"CALL change_{system.table}('{op}', {rows}, {size}, {extracted})"))
        _check(session, system, rows)
    return [
        {"op": op, "ms": statistics.median(t.ms for t in of), "cpu_ms": statistics.median(t.cpu_ms for t in of)}
        for op, of in took.items()
    ]


def _check(session: Session, system: System, rows: int) -> None:
    ((left,),) = session.run(f"SELECT count(*) FROM {system.table}")
    ((written,),) = session.run("SELECT count(*) FROM changed")
    assert (left, written) == (0, 3 * rows if system.table == SQL else 0), (left, written)


def targets(rows: Sequence[Row]) -> list[Target]:
    """The worst case of each size."""
    sizes = sorted({row["size"] for row in rows})
    worst = {size: max(statistics.median(_ratios(rows, OURS, size, op)) for op in OPS) for size in sizes}
    return [Target(f"capture / none, {transactions(size)}", value, most=MOST) for size, value in worst.items()]


def _ratios(rows: Sequence[Row], system: str, size: int, op: str) -> list[float]:
    return ratios(rows, "cpu_ms", system, NONE, size=size, op=op)


def tell(rows: list[Row]) -> str:
    sizes = sorted({row["size"] for row in rows})
    lines = []
    for size in sizes:
        for op in OPS:
            others = [f"{statistics.median(_ratios(rows, name, size, op)):.2f}" for name in list(SYSTEMS)[2:]]
            papers = [f"{paper.ratio(layer, op):.2f}" if size == sizes[-1] else "" for layer in (paper.V1, paper.V2)]
            none = number(median(rows, "cpu_ms", system=NONE, size=size, op=op))
            lines.append([f"{size:,}", op, none, quartiles(_ratios(rows, OURS, size, op)), *others, *papers])
    names = ["rows of a transaction", "", "none, ms", *list(SYSTEMS)[1:]]
    return markdown([*names, f"paper: {paper.V1}", paper.V2], lines)


def plot(rows: list[Row], file: Path) -> None:
    sizes = sorted({row["size"] for row in rows})
    with plotted(file, [transactions(size) for size in sizes], "", "processor time, of none") as axes:
        for axis, size in zip(axes, sizes, strict=True):
            for place, name in enumerate(list(SYSTEMS)[1:]):
                medians = [statistics.median(_ratios(rows, name, size, op)) for op in OPS]
                axis.bar([x + 0.16 * (place - 2) for x in range(len(OPS))], medians, 0.16, label=name)
            axis.axhline(1, linewidth=0.8, color="gray")
            axis.set_xticks(range(len(OPS)), OPS)
