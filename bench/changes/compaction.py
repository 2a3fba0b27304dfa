"""Several writesets become one, by the paper's rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from pgmip.testing import Cluster

from ..rounds import counted_from_one
from ..rows import Row, markdown, median, spread
from .items import captured, change, fill
from .session import Session

__all__ = ["measure", "tell"]

LIFE, HOT = "inserted, updated twice, half of them deleted", "a hundredth of them updated a hundred times"


def measure(cluster: Cluster, *, rounds: int, rows: int) -> list[Row]:
    """What is compacted changes the database `copy` as its parts have changed `source`."""
    found: list[Row] = []
    with ExitStack() as stack:
        source, copy = (stack.enter_context(Session(cluster, name)) for name in ("source", "copy"))
        for name, make in (LIFE, _life), (HOT, _hot):
            writesets = make(source, copy, rows)
            _check(source, copy, writesets)
            before = _sum_up(copy, writesets)
            after = _sum_up(copy, [_compact(copy, writesets)])
            for turn in counted_from_one(rounds):
                took = copy.timed("SELECT length(mip.writeset_compact(VARIADIC %b::bytea[]))", writesets)
                row = {"case": name, "round": turn, "ms": took.ms, "cpu_ms": took.cpu_ms, "writesets": len(writesets)}
                found += [row | _named("before", before) | _named("after", after)] if turn else []
    return found


def _life(source: Session, copy: Session, rows: int) -> list[bytes]:
    fill(source, 0)
    fill(copy, 0)
    steps = [change("I", 1, rows), change("U", 1, rows), change("U", 1, rows), change("D", 1, rows // 2)]
    return [captured(source, step) for step in steps]


def _hot(source: Session, copy: Session, rows: int) -> list[bytes]:
    fill(source, rows // 100)
    fill(copy, rows // 100)
    return [captured(source, change("U", 1, rows // 100)) for _ in range(100)]


def _compact(session: Session, writesets: list[bytes]) -> bytes:
    ((made,),) = session.run("SELECT mip.writeset_compact(VARIADIC %b::bytea[])", writesets)
    compacted: bytes = made
    return compacted


def _check(source: Session, copy: Session, writesets: list[bytes]) -> None:
    copy.run("SELECT mip.writeset_apply(%b)", _compact(copy, writesets))
    checksums = {session.run("SELECT mip.relation_checksum('item')")[0][0] for session in (source, copy)}
    assert len(checksums) == 1, checksums


def _sum_up(session: Session, writesets: list[bytes]) -> tuple[int, int]:
    """Changes and bytes."""
    sql = "SELECT sum(i.changes)::bigint FROM unnest(%b::bytea[]) w, mip.writeset_info(w) i"
    return session.run(sql, writesets)[0][0], sum(map(len, writesets))


def _named(when: str, of: tuple[int, int]) -> Row:
    return {f"changes_{when}": of[0], f"bytes_{when}": of[1]}


def tell(rows: Sequence[Row]) -> str:
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        counts = [
            f"{median(rows, f'{what}_{when}', case=case):,.0f}"
            for what in ("changes", "bytes") for when in ("before", "after")
        ]  # fmt: skip
        lines.append([case, f"{median(rows, 'writesets', case=case):.0f}", spread(rows, "cpu_ms", case=case), *counts])
    names = ["writesets", "ms", "changes before", "after", "bytes before", "after"]
    return markdown(["rows", *names], lines)
