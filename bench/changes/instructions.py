"""What capturing and extracting cost in instructions of the server: figures that depend on no machine and no load.

The work of a session is counted as a whole, so each is counted once with what is measured and once without.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
from pgmip.testing import Cluster

from ..counting import Counting
from ..rows import Row, markdown, pick
from ..targets import Target
from .items import OPS, PLAIN, change, create, fill, transactions
from .session import Session

__all__ = ["measure", "targets", "tell"]

MOST = 1.05
MOST_EXTRACTED = {"I": 800, "U": 1050, "D": 700}  # of a row, of 10,000
TIMES = {1: 300, 100: 30}  # so many transactions of so many rows; of more rows, one
NONE, CAPTURED, EXTRACTED = "none", "captured", "extracted"

Conn = psycopg.Connection[Any]


def measure(cluster: Cluster, *, rows: int, sizes: Sequence[int]) -> list[Row]:
    """Starts the cluster again."""
    create(cluster, "source")
    counting = Counting(cluster)
    with Session(cluster, "source") as filler:
        counting.count("source", partial(_change, system=NONE, ops="", rows=1, size=1))  # finds less prepared for it
        found = [row for size in sizes for row in _captured(counting, filler, size)]
        return found + [_extracted(counting, filler, op, rows) for op in OPS]


def _row(size: int, op: str, system: str, rows: int, count: int) -> Row:
    return {"size": size, "op": op, "system": system, "rows": rows, "instructions": count}


# -- capture ---------------------------------------------------------------------------------------------------------


def _captured(counting: Counting, filler: Session, size: int) -> list[Row]:
    rows = size * TIMES.get(size, 1)
    found = []
    for system in (NONE, CAPTURED):
        counts = []
        for ops in ("", "I", "IU", "IUD"):  # each does one thing more
            fill(filler, 0)
            counts.append(counting.count("source", partial(_change, system=system, ops=ops, rows=rows, size=size)))
        found += [_row(size, op, system, rows, counts[i + 1] - counts[i]) for i, op in enumerate(OPS)]
        print(f"instructions: {transactions(size)}, {system}", flush=True)
    return found


def _change(conn: Conn, system: str, ops: str, rows: int, size: int) -> None:
    if system == CAPTURED:
        conn.execute("SET mip.capture_writeset = on")
    for op in OPS:  # everything for the first time
        conn.execute(f"CALL change_{PLAIN}('{op}', {size}, {size}, false)".encode())
    for op in ops:
        conn.execute(f"CALL change_{PLAIN}('{op}', {rows}, {size}, false)".encode())


# -- extraction ------------------------------------------------------------------------------------------------------


def _extracted(counting: Counting, filler: Session, op: str, rows: int) -> Row:
    counts = []
    for times in (1, 2):
        fill(filler, 0 if op == "I" else rows)
        counts.append(counting.count("source", partial(_extract, op=op, rows=rows, times=times)))
    print(f"instructions: {rows:,} extracted, {op}", flush=True)
    return _row(rows, op, EXTRACTED, rows, counts[1] - counts[0])


def _extract(conn: Conn, op: str, rows: int, times: int) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL mip.capture_writeset = on")
        conn.execute(change(op, 1, rows).encode())
        ((changes,),) = conn.execute("SELECT changes FROM mip.writeset_info(mip.writeset())").fetchall()
        assert changes == rows, (op, changes)
        for _ in range(times):
            conn.execute("SELECT length(mip.writeset())")


# -- what it comes to ------------------------------------------------------------------------------------------------


def _per_row(rows: Sequence[Row], system: str, size: int, op: str) -> float | None:
    counted = pick(rows, "instructions", system=system, size=size, op=op)
    return counted[0] / pick(rows, "rows", system=system, size=size, op=op)[0] if counted else None


def _ratio(rows: Sequence[Row], size: int, op: str) -> float | None:
    none, captured = (_per_row(rows, system, size, op) for system in (NONE, CAPTURED))
    return captured / none if none and captured else None


def _sizes(rows: Sequence[Row]) -> list[int]:
    return sorted({row["size"] for row in rows})


def targets(rows: Sequence[Row]) -> list[Target]:
    """Of capture the worst case of each size."""
    told = []
    for size in _sizes(rows):
        if ratios := [ratio for op in OPS if (ratio := _ratio(rows, size, op)) is not None]:
            told.append(Target(f"capture / none, {transactions(size)}, instructions", max(ratios), most=MOST))
    for op, most in MOST_EXTRACTED.items():
        extracted = max(value for size in _sizes(rows) if (value := _per_row(rows, EXTRACTED, size, op)) is not None)
        told.append(Target(f"extraction: {op}, instructions a row", extracted, most=most))
    return told


def tell(rows: list[Row]) -> str:
    lines = []
    for size in _sizes(rows):
        for op in OPS:
            counted = [_per_row(rows, system, size, op) for system in (NONE, CAPTURED, EXTRACTED)]
            none, captured, extracted = ("" if value is None else f"{value:,.0f}" for value in counted)
            ratio = _ratio(rows, size, op)
            lines.append([f"{size:,}", op, none, captured, "" if ratio is None else f"{ratio:.3f}", extracted])
    return markdown(["rows of a transaction", "", "none", "captured", "ratio", "extraction"], lines)
