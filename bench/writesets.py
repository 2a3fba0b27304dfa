"""Writesets: what it costs to capture what a transaction changes, to extract, to compact and to apply it.

    python -m bench.writesets [--rounds N] [--rows N] [--only PART,...] [--out FOLDER] [--quick]

Repeats Tables 4 and 5 of the paper on writeset extraction, beside triggers, logical decoding, SQL and COPY, and goes
on to a million rows. `--quick` runs a little of everything, to see that it runs and that the data are right; its
figures say nothing. Writes writesets.md with plots, and a CSV file for each part, and prints the tables that
docs/performance.md has.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import date

from pgmip.testing import Cluster

from .changes import application, capture, compaction, extraction, growth, instructions, items
from .changes.paper import V1, V2
from .parts import Bench, Part, measure_parts, options
from .rounds import UNDISTURBED, machine
from .targets import Target, tell_targets

PARTS = ("capture", "extraction", "instructions", "compaction", "application", "growth")
SETTINGS = UNDISTURBED | {"shared_buffers": "512MB"}

HEAD = f"""# Writesets

What *A Triggerless Approach to Writeset Extraction in Multiversioned Databases* measured (Tables 4 and 5) of PostgreSQL
8.2, on this server, and what it did not measure. `{V1}` there has triggers in SQL, `{V2}` is what the paper proposes.

{{ran}} `./run bench writesets` writes this page; it took {{minutes}} minutes.

Everything is in memory, without flushes (`fsync = off`), so that the processors are what everybody waits for. The table
has an integer key, an integer and a text of 20 characters, and has opted in. I, U and D: {{rows:,}} rows are inserted,
updated (not their key), deleted. Medians of the rounds, with least and most; ratios are taken round by round: their
median, in brackets with quartiles."""

REPORT = {
    "capture": Part(capture.tell, capture.plot, """## Capture (Table 4: 1 to 3)

Processor time of the server's process, as a ratio to that without capture. A procedure runs a statement for each
transaction, so no client takes time in between. *Captured, extracted*: `mip.writeset()` at the end of each transaction.
The trigger in SQL writes old and new row as text into a table; the one in C keeps the tuples in memory, and does
nothing else. `wal_level = logical`: what logical decoding asks of everybody, before anything is decoded."""),
    "extraction": Part(extraction.tell, extraction.plot, """## Extraction, and its size (Table 4: 4 and 5, Table 5)

One transaction with all rows; the processor time of the server's process until its changes are there as bytes.
`PREPARE`: of the statement that prepares the transaction, where the changes are asked for then: `mip.prepare`, or
`PREPARE TRANSACTION` on a server with `wal_level = logical`, with a two-phase slot that has read all that was before. A
writeset has the hashes of its keys with it, by which writesets are compared. What triggers have captured is only read
here: it has been written before (see above)."""),
    "instructions": Part(instructions.tell, None, """## Instructions

Of the server's process, a row, counted by callgrind: unlike times they are the same on any machine and beside any load.
Transactions as above, with what COMMIT takes."""),
    "compaction": Part(compaction.tell, None, """## Compaction

Writesets that the client sends; processor time of the server's process until their compacted one is there."""),
    "application": Part(application.tell, application.plot, """## Application (Table 4: 6)

In a copy of the database, as one transaction; the time that the client waits. Writesets, and what COPY is given, it has
at hand; its SQL are prepared statements, which pgbench executes."""),
    "growth": Part(growth.tell, growth.plot, """## Growth

One transaction that inserts so many rows, in a process of its own: processor time, and the most memory that the process
has had until then (`VmHWM`, without shared memory)."""),
}
TARGETS = {
    "capture": capture.targets,
    "extraction": extraction.targets,
    "instructions": instructions.targets,
    "application": application.targets,
    "growth": growth.targets,
}


class Writesets(Bench):
    parts = REPORT
    report = "writesets.md"
    prefix = "writesets-"

    def run(self) -> None:
        if self.wants("instructions"):
            self._instructions()
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster("writesets", settings=SETTINGS))
            for dbname in ("source", "copy"):
                items.create(cluster, dbname)
            if self.wants("capture", "extraction"):
                self._beside_logical(cluster, stack)
            self._others(cluster)

    def _instructions(self) -> None:
        sizes = self._up_to(capture.SIZES)[:1 if self.args.quick else None]
        with Cluster("instructions", settings=SETTINGS) as cluster:
            self.measure("instructions", lambda: instructions.measure(cluster, rows=self.args.rows, sizes=sizes))

    def _beside_logical(self, cluster: Cluster, stack: ExitStack) -> None:
        rounds, rows = self.args.rounds, self.args.rows
        logical = stack.enter_context(Cluster("logical", settings=SETTINGS | {"wal_level": "logical"}))
        items.create(logical, "source")
        self.measure("capture", lambda: capture.measure(
            cluster, logical, rounds=rounds, rows=rows, sizes=self._up_to(capture.SIZES)))
        # The slots come now: what they keep of WAL and catalogs is not part of the other measurement.
        if self.wants("extraction"):
            extraction.create(logical, "source")
        self.measure("extraction", lambda: extraction.measure(cluster, logical, rounds=rounds, rows=rows))

    def _others(self, cluster: Cluster) -> None:
        rounds, rows = self.args.rounds, self.args.rows
        self.measure("compaction", lambda: compaction.measure(cluster, rounds=rounds, rows=rows))
        self.measure("application", lambda: application.measure(cluster, rounds=rounds, rows=rows))
        sizes = growth.SIZES[:2] if self.args.quick else growth.SIZES
        self.measure("growth", lambda: growth.measure(cluster, rounds=min(3, rounds), sizes=sizes))

    def _up_to(self, sizes: tuple[int, ...]) -> list[int]:
        """No transaction has more than all rows."""
        return sorted({min(size, self.args.rows) for size in sizes})

    def head(self) -> list[str]:
        targets = self._targets()
        head = HEAD.format(ran=self._ran(), minutes=round(self.minutes), rows=self.args.rows)
        return [head, *([tell_targets(targets)] if targets else [])]

    def _targets(self) -> list[Target]:
        return [one for name, of in TARGETS.items() if name in self.rows for one in of(self.rows[name])]

    def _ran(self) -> str:
        rounds = self.args.rounds
        return (
            f"{date.today().isoformat()}, {machine()}. {rounds} interleaved rounds, after one that is not counted "
            f"(growth: {min(3, rounds)})."
        )

    def tables(self) -> str:
        """Those that docs/performance.md has, as it has them."""
        targets = self._targets()
        told = [self._ran(), *([tell_targets(targets)] if targets else [])]
        for name, part in self.parts.items():
            if name in self.rows:
                told += [part.text.partition("\n")[0].replace("## ", "### "), part.tell(self.rows[name])]
        return "\n\n".join(told)


def main() -> None:
    parser = options(__doc__ or "", PARTS, rounds=11, seconds=0.0, out="results")
    parser.add_argument("--rows", type=int, default=10_000)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.rows = 1, 300
    bench = Writesets(args)
    measure_parts(bench)
    print(bench.tables())


if __name__ == "__main__":
    main()
