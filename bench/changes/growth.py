"""Do time and memory grow with the rows, and no faster? And how much memory is it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pgmip.testing import Cluster

from ..rounds import interleaved
from ..rows import Row, markdown, median, number, plotted
from ..targets import Target
from .items import change, fill
from .session import Session

__all__ = ["SIZES", "measure", "plot", "targets", "tell"]

SIZES = (1_000, 10_000, 100_000, 1_000_000)  # rows inserted by one transaction
PART = 1 << 20  # bytes
NONE, CAPTURED = "inserted, not captured", "inserted, captured"
PARTS, WHOLE = "extracted, in parts of 1 MB", "extracted as a whole"
APPLIED, APPLIED_WHOLE = "applied, in parts", "applied as a whole"
SYSTEMS = (NONE, CAPTURED, PARTS, WHOLE, APPLIED, APPLIED_WHOLE)
BOUNDED = (CAPTURED, PARTS, APPLIED)
LINEAR = 1.5  # times as long for a row of the most as for one of 10,000
MEGABYTES = 8.0  # more than without capture, with work_mem = 4MB: places that are not spilled would take 24


def measure(cluster: Cluster, *, rounds: int, sizes: Sequence[int]) -> list[Row]:
    found: list[Row] = []
    for turn in range(1, rounds + 1):
        for size in interleaved(sizes, turn):
            for name, cpu_ms, megabytes in _measure(cluster, size):
                found.append({
                    "inserted": size, "system": name, "round": turn, "cpu_ms": cpu_ms, "megabytes": megabytes,
                })  # fmt: skip
        print(f"growth: round {turn} of {rounds}", flush=True)
    return found


Told = Iterator[tuple[str, float, float]]  # of a system: processor time in ms, memory in MB


def _measure(cluster: Cluster, rows: int) -> Told:
    with _begun(cluster, "source") as session, _telling(session, NONE) as told:
        session.run("BEGIN")
        session.run(change("I", 1, rows))
    yield from told
    with _begun(cluster, "source", "-c mip.capture_writeset=on") as session:
        with _telling(session, CAPTURED) as told:
            session.run("BEGIN")
            session.run(change("I", 1, rows))
        yield from told
        with _telling(session, PARTS) as told:
            parts = _parts(session)
        yield from told
        with _telling(session, WHOLE) as told:
            session.run("SELECT length(mip.writeset())")
        yield from told
        ((whole, checksum),) = session.run("SELECT mip.writeset(), mip.relation_checksum('item') WHERE %b", True)
    yield from _apply(cluster, APPLIED, parts, checksum)
    yield from _apply(cluster, APPLIED_WHOLE, [whole], checksum)


def _apply(cluster: Cluster, name: str, parts: list[bytes], checksum: str) -> Told:
    with _begun(cluster, "copy") as session:
        with _telling(session, name) as told:
            session.run("BEGIN")
            for part in parts:
                session.run("SELECT mip.writeset_apply(%b)", part)
        yield from told
        assert session.run("SELECT mip.relation_checksum('item')") == [(checksum,)], name


def _parts(session: Session) -> list[bytes]:
    parts, last, changes = [], 0, 1
    while changes:
        ((part, changes, last),) = session.run(
            "SELECT w, changes, last FROM mip.writeset(%b::bigint, %b::bigint) w, mip.writeset_info(w)", last, PART
        )
        parts.append(part)
    return parts[:-1]


def _begun(cluster: Cluster, dbname: str, settings: str = "") -> Session:
    """A process of its own, to which nothing is new; the table is empty."""
    session = Session(cluster, dbname, settings)
    fill(session, 10)
    session.run("BEGIN; UPDATE item SET n = n")
    if settings:
        _parts(session)
    session.run("ROLLBACK; SELECT mip.writeset_apply(mip.relation_writeset('item')) WHERE false")
    fill(session, 0)
    return session


@contextmanager
def _telling(session: Session, name: str) -> Iterator[list[tuple[str, float, float]]]:
    """What the block takes, once it has ended."""
    began = session.cpu_ms
    told: list[tuple[str, float, float]] = []
    yield told
    told.append((name, session.cpu_ms - began, session.megabytes))


def per_row(rows: Sequence[Row], system: str, size: int) -> float:
    """Microseconds."""
    return 1000 * median(rows, "cpu_ms", system=system, inserted=size) / size


def targets(rows: Sequence[Row]) -> list[Target]:
    sizes = sorted({row["inserted"] for row in rows})
    most, least = sizes[-1], min(10_000, sizes[-2])
    slower = max(per_row(rows, name, most) / per_row(rows, name, least) for name in SYSTEMS[1:])
    memory = max(_more_memory(rows, name, most) for name in BOUNDED)
    return [
        Target(f"time for one of {most:,} rows / of {least:,}, the worst of all", slower, most=LINEAR),
        Target(f"memory for {most:,} rows, above that without capture, MB", memory, most=MEGABYTES),
    ]


def _more_memory(rows: Sequence[Row], name: str, size: int) -> float:
    of = (median(rows, "megabytes", system=system, inserted=size) for system in (name, NONE))
    return next(of) - next(of)


def tell(rows: list[Row]) -> str:
    sizes = sorted({row["inserted"] for row in rows})
    lines = []
    for name in SYSTEMS:
        times = [number(per_row(rows, name, size)) for size in sizes]
        memory = [number(median(rows, "megabytes", system=name, inserted=size)) for size in sizes]
        lines.append([name, *times, *memory])
    names = [*(f"{size:,} rows: µs a row" for size in sizes), *(f"{size:,}: MB" for size in sizes)]
    return markdown(["", *names], lines)


def plot(rows: list[Row], file: Path) -> None:
    sizes = sorted({row["inserted"] for row in rows})
    with plotted(file, ["processor time", "memory of the process"], "rows", "") as (time, memory):
        for name in SYSTEMS:
            time.plot(sizes, [per_row(rows, name, size) for size in sizes], marker="o", label=name)
            megabytes = [median(rows, "megabytes", system=name, inserted=size) for size in sizes]
            memory.plot(sizes, megabytes, marker="o", label=name)
        for axis, unit in ((time, "µs a row"), (memory, "MB")):
            axis.set_xscale("log")
            axis.set_ylabel(unit)
            axis.set_ylim(bottom=0)
