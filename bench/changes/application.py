"""The changes of a transaction, made in a copy: Table 4, line 6, beside what else makes them there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pgmip.testing import Cluster

from ..rounds import counted_from_one, interleaved, pgbench, rate
from ..rows import Row, markdown, median, plotted, quartiles, ratios, spread
from ..targets import Target
from . import paper
from .items import OPS, WHAT, captured, change, fill
from .session import Session

__all__ = ["measure", "plot", "targets", "tell"]

BY_SQL, OF_COPY = 10.0, 0.5  # times as fast
OURS, BY_ROW, PIPELINED = "mip.writeset_apply", "SQL by row from a client", "the same, a hundred in a pipeline"
LOOP, COPY = "a loop in PL/pgSQL", "COPY"
BY_ROW_SQL = {
    "I": f"INSERT INTO item VALUES ({{i}}, {{i}}, '{WHAT}')",
    "U": "UPDATE item SET n = {i} + 1 WHERE id = {i}",
    "D": "DELETE FROM item WHERE id = {i}",
}


class Copy:
    """A database `copy`, and what comes there from `source`."""

    def __init__(self, cluster: Cluster, stack: ExitStack, rows: int) -> None:
        self.cluster = cluster
        self.rows = rows
        self.session = stack.enter_context(Session(cluster, "copy"))
        source = stack.enter_context(Session(cluster, "source"))
        self.writesets, self.checksums = {}, {}
        for op in OPS:
            fill(source, 0 if op == "I" else rows)
            self.writesets[op] = captured(source, change(op, 1, rows))
            self.checksums[op] = source.run("SELECT mip.relation_checksum('item')")
        self.text = "".join(f"{i}\t{i}\t{WHAT}\n" for i in range(1, rows + 1)).encode()
        for op, sql in BY_ROW_SQL.items():
            self.session.run(
                f"CREATE PROCEDURE loop_{op}(rows int) LANGUAGE plpgsql AS $$"
                f" BEGIN FOR i IN 1..rows LOOP {sql.format(i='i')}; END LOOP; END $$"
            )

    def apply(self, op: str) -> float:
        return self.session.timed("SELECT mip.writeset_apply(%b)", self.writesets[op]).ms

    def loop(self, op: str) -> float:
        return self.session.timed(f"CALL loop_{op}({self.rows})").ms

    def load(self, _: str) -> float:
        began = time.perf_counter()
        with self.session.conn.cursor().copy("COPY item FROM STDIN") as copy:
            copy.write(self.text)
        return 1000 * (time.perf_counter() - began)

    def by_row(self, op: str) -> float:
        return self._pgbench(op, "simple", 1)

    def pipelined(self, op: str) -> float:
        return self._pgbench(op, "extended", 100)

    def _pgbench(self, op: str, protocol: str, at_once: int) -> float:
        file: Path = self.cluster.directory / "rows.sql"
        file.write_text(script(op, self.rows, at_once))
        return 1000 / rate(pgbench(self.cluster, "copy", "-n", "-M", protocol, "-t", "1", "-f", str(file)))


WAYS: dict[str, tuple[Callable[[Copy, str], float], str]] = {
    OURS: (Copy.apply, "IUD"),
    BY_ROW: (Copy.by_row, "IUD"),
    PIPELINED: (Copy.pipelined, "IUD"),
    LOOP: (Copy.loop, "IUD"),
    COPY: (Copy.load, "I"),
}


def script(op: str, rows: int, at_once: int) -> str:
    """For pgbench, in one transaction: a prepared statement is executed for each row, so many in a pipeline."""
    lines = [f"PREPARE change (int) AS {BY_ROW_SQL[op]};".replace("{i}", "$1"), "BEGIN;"]
    for first in range(1, rows + 1, at_once):
        executed = [f"EXECUTE change({i});" for i in range(first, min(first + at_once, rows + 1))]
        lines += executed if at_once == 1 else ["\\startpipeline", *executed, "\\endpipeline"]
    return "\n".join([*lines, "COMMIT;\n"])


def measure(cluster: Cluster, *, rounds: int, rows: int) -> list[Row]:
    found: list[Row] = []
    with ExitStack() as stack:
        copy = Copy(cluster, stack, rows)
        for turn in counted_from_one(rounds):
            for op in OPS:
                ways = [name for name, (_, ops) in WAYS.items() if op in ops]
                for name in interleaved(ways, turn):
                    fill(copy.session, 0 if op == "I" else rows)
                    ms = WAYS[name][0](copy, op)
                    assert copy.session.run("SELECT mip.relation_checksum('item')") == copy.checksums[op], (name, op)
                    found += [{"op": op, "system": name, "round": turn, "rows": rows, "ms": ms}] if turn else []
            print(f"application: round {turn} of {rounds}", flush=True)
    return found


def faster(rows: Sequence[Row], than: str, op: str) -> list[float]:
    """How many times as fast as that `mip.writeset_apply` is, round by round."""
    return ratios(rows, "ms", than, OURS, op=op)


def targets(rows: Sequence[Row]) -> list[Target]:
    by_row = [
        Target(f"application: {op}, as fast as SQL by row", statistics.median(faster(rows, BY_ROW, op)), least=BY_SQL)
        for op in OPS
    ]
    copied = statistics.median(faster(rows, COPY, "I"))
    return [*by_row, Target("application: I, as fast as COPY", copied, least=OF_COPY)]


def tell(rows: list[Row]) -> str:
    lines = []
    for name, (_, ops) in WAYS.items():
        times = [spread(rows, "ms", system=name, op=op) if op in ops else "" for op in OPS]
        compared = [quartiles(faster(rows, name, op)) if op in ops and name != OURS else "" for op in OPS]
        lines.append([name, *times, *compared])
    lines += [[f"paper: {layer}", f"{ms:,}", "", "", "", "", ""] for layer, ms in paper.APPLIED_MS.items()]
    return markdown(["", *(f"{op}, ms" for op in OPS), *(f"{op}: ours is as fast, times" for op in OPS)], lines)


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, list(OPS), "", "rows a second") as axes:
        for axis, op in zip(axes, OPS, strict=True):
            for place, (name, (_, ops)) in enumerate(WAYS.items()):
                if op in ops:
                    axis.bar(place, 1000 * rows[0]["rows"] / median(rows, "ms", system=name, op=op), label=name)
            axis.set_xticks([])
