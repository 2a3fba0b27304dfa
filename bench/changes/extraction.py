"""How long it takes to have the changes of a transaction as bytes, and how many these are: Table 4, lines 4 and 5, and
Table 5.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pgmip.testing import Cluster
from pgmip.xinst import new_xid

from ..rounds import counted_from_one, interleaved
from ..rows import Row, markdown, median, number, plotted, spread
from ..targets import Target
from . import paper
from .items import OPS, PLAIN, SQL, C, change, fill
from .session import Session

__all__ = ["create", "measure", "plot", "targets", "tell"]

MOST_MS = 2.0  # of 10,000 rows
OURS, PREPARED = "mip.writeset()", "mip.writeset(xid, xinst), of a prepared instance"
IN_SQL, IN_C = "what a trigger in SQL has written", "what a trigger in C has kept"
# Options, and what tells that a message is a change
PLUGINS = {
    "test_decoding": ("'skip-empty-xacts', '1'", "convert_from(data, 'UTF8') LIKE 'table %'"),
    "pgoutput": (
        "'proto_version', '3', 'publication_names', 'items', 'binary', 'true'", "get_byte(data, 0) IN (68, 73, 85)",
    ),
}  # fmt: skip
Measured = Callable[[Session, Session, str], Row]


def create(logical: Cluster, dbname: str) -> None:
    """Slots that decode at PREPARE, on a server with wal_level = logical."""
    logical.run_sql(f"CREATE PUBLICATION items FOR TABLE {PLAIN}", dbname=dbname)
    for plugin in PLUGINS:
        logical.run_sql(
            f"SELECT pg_create_logical_replication_slot('{plugin}', '{plugin}', twophase => true)", dbname=dbname
        )


def measure(cluster: Cluster, logical: Cluster, *, rounds: int, rows: int) -> list[Row]:
    found: list[Row] = []
    with ExitStack() as stack:
        here, other, there, decoder = (
            stack.enter_context(Session(of, "source")) for of in (cluster, cluster, logical, logical)
        )
        for turn in counted_from_one(rounds):
            for op in OPS:
                for name in interleaved(tuple(SYSTEMS), turn):
                    sessions = (there, decoder) if name in PLUGINS else (here, other)
                    row = SYSTEMS[name](*sessions, _prepare(sessions[0], name, op, rows))
                    assert row.pop("changes") == rows, (name, op, row)
                    found += [{"op": op, "system": name, "round": turn, **row}] if turn else []
            print(f"extraction: round {turn} of {rounds}", flush=True)
    return found


def _prepare(session: Session, name: str, op: str, rows: int) -> str:
    """The table is as it should be; returns what is to be done."""
    table = {IN_SQL: SQL, IN_C: C}.get(name, PLAIN)
    fill(session, 0 if op == "I" else rows, table)
    return change(op, 1, rows, table)


# -- each of them: what is timed, and then looked at ------------------------------------------------------------------


def _row(session: Session, sql: str, counted: str) -> Row:
    """`counted`: the changes, and the bytes."""
    took = session.timed(sql)
    ((changes, size),) = session.run(counted)
    return {"ms": took.ms, "cpu_ms": took.cpu_ms, "prepare_cpu_ms": math.nan, "bytes": int(size), "changes": changes}


def _row_of(session: Session, call: str) -> Row:
    return _row(session, f"SELECT length({call})", f"SELECT changes, length(w) FROM {call} w, mip.writeset_info(w)")


@contextmanager
def _changed(session: Session, statement: str, first: str = "") -> Iterator[None]:
    """In a transaction that has done so, and is then rolled back."""
    session.run(f"BEGIN; {first}")
    session.run(statement)
    yield
    session.run("ROLLBACK")


def _in_transaction(session: Session, _: Session, statement: str) -> Row:
    with _changed(session, statement, "SET LOCAL mip.capture_writeset = on"):
        return _row_of(session, "mip.writeset()")


def _of_prepared(session: Session, other: Session, statement: str) -> Row:
    xid = new_xid()
    session.run(f"BEGIN; SET LOCAL mip.capture_writeset = on; SELECT mip.begin('{xid}', 1)")
    session.run(statement)
    prepared = session.timed("SELECT * FROM mip.prepare('changes', 'done')")
    row = _row_of(other, f"mip.writeset('{xid}', 1)")
    session.run(f"SELECT * FROM mip.rollback('{xid}', 1)")
    return row | {"prepare_cpu_ms": prepared.cpu_ms}


def _written(session: Session, _: Session, statement: str) -> Row:
    read = "SELECT count(*), sum(coalesce(length(old), 0) + coalesce(length(new), 0)) FROM changed"
    with _changed(session, statement):
        return _row(session, read, read)


def _kept(session: Session, _: Session, statement: str) -> Row:
    read = "SELECT remembered_changes(), remembered_bytes()"
    with _changed(session, statement):
        return _row(session, read, read)


def _decoded(plugin: str, session: Session, decoder: Session, statement: str) -> Row:
    for slot in PLUGINS:
        decoder.run(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_insert_lsn())")
    session.run("BEGIN")
    session.run(statement)
    prepared = session.timed("PREPARE TRANSACTION 'decoded'")
    options, is_change = PLUGINS[plugin]
    read = (
        f"SELECT count(*) FILTER (WHERE {is_change}), sum(length(data))"
        f" FROM pg_logical_slot_peek_binary_changes('{plugin}', NULL, NULL, {options})"
    )
    row = _row(decoder, read, read)
    session.run("ROLLBACK PREPARED 'decoded'")
    return row | {"prepare_cpu_ms": prepared.cpu_ms}


SYSTEMS: dict[str, Measured] = {
    OURS: _in_transaction,
    PREPARED: _of_prepared,
    IN_SQL: _written,
    IN_C: _kept,
    **{plugin: partial(_decoded, plugin) for plugin in PLUGINS},
}


# -- what it comes to ------------------------------------------------------------------------------------------------


def targets(rows: Sequence[Row]) -> list[Target]:
    worst = max(median(rows, "cpu_ms", system=OURS, op=op) for op in OPS)
    return [Target("extraction of all rows, ms", worst, most=MOST_MS)]


def tell(rows: list[Row]) -> str:
    lines = []
    for name in SYSTEMS:
        of = [[row for row in rows if row["system"] == name and row["op"] == op] for op in OPS]
        prepared = number(statistics.median(median(each, "prepare_cpu_ms") for each in of))
        sizes = [f"{median(each, 'bytes'):,.0f}" for each in of]
        lines.append([name, *(spread(each, "cpu_ms") for each in of), prepared.replace("nan", ""), *sizes])
    for layer in (paper.V1, paper.V2):
        times = [f"{paper.EXTRACTED_MS[layer][op]:,}" if op in paper.EXTRACTED_MS[layer] else "" for op in OPS]
        lines.append([f"paper: {layer}", *times, "", f"{paper.SIZES[layer]:,}", "", ""])
    names = [*(f"{op}, ms" for op in OPS), "PREPARE, ms", *(f"{op}, bytes" for op in OPS)]
    return markdown(["", *names], lines)


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, ["processor time, ms", "bytes"], "", "") as axes:
        for axis, metric in zip(axes, ("cpu_ms", "bytes"), strict=True):
            for place, name in enumerate(SYSTEMS):
                medians = [median(rows, metric, system=name, op=op) for op in OPS]
                axis.bar([x + 0.14 * (place - 2.5) for x in range(len(OPS))], medians, 0.14, label=name)
            axis.set_xticks(range(len(OPS)), OPS)
