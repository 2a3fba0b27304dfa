"""What the end of a transaction costs at one site: plain, in two phases, and as an instance.

    python -m bench.commit [--rounds N] [--seconds N] [--clients N,N,...] [--scales N,N] [--out FOLDER] [--quick]

Six cases do the same work (two transactions of pgbench's tables, with a state of about 600 and 712 bytes), in rounds,
one after another, for every number of clients, scale and kind of flush:

    a  COMMIT
    b  PREPARE TRANSACTION, COMMIT PREPARED
    c  b and a row with an idempotency key and the result, as people do it today
    d  mip.prepare, mip.commit
    e  d with mip.synchronous_commit_prepared = off
    f  mip.commit_one_phase

All send the same statements in the same messages (a and f four, or six with 712 bytes; the others one more for the
second phase), as SQL prepared statements, so that neither parsing nor planning is compared. `--quick` only checks that
they do what they should. Writes commit.md, commit.csv and commit.png.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from pgmip.testing import Cluster

from .disk import FLUSHES, set_flush
from .rounds import UNDISTURBED, create_database, interleaved, machine, pgbench, rate

CASES = "abcdef"
ON_MIP = "def"
BASE = {"d": "c", "e": "c", "f": "a"}
NO_FULL_PAGES = "as it is, no full-page images"
CLIENTS = (1, 2, 5, 10, 25, 35, 50, 60, 70, 80, 90, 100)

REQUEST = (
    "CREATE TABLE request (key text PRIMARY KEY, request text, result text,"
    " at timestamptz NOT NULL DEFAULT now()) USING heap"
)
STATEMENTS = {
    "account": "(int, int) AS UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2",
    "read_account": "(int) AS SELECT abalance FROM pgbench_accounts WHERE aid = $1",
    "read_branch": "(int) AS SELECT bbalance FROM pgbench_branches WHERE bid = $1",
    "read_teller": "(int) AS SELECT tbalance FROM pgbench_tellers WHERE tid = $1",
    "teller": "(int, int) AS UPDATE pgbench_tellers SET tbalance = tbalance + $1 WHERE tid = $2",
    "branch": "(int, int) AS UPDATE pgbench_branches SET bbalance = bbalance + $1 WHERE bid = $2",
    "key": "(text, text, text) AS INSERT INTO request (key, request, result) VALUES ($1, $2, $3)",
    "mip_begin": "(text, bigint) AS SELECT mip.begin($1, $2)",
    "mip_prepare": "(text, text) AS SELECT * FROM mip.prepare($1, $2)",
    "mip_commit": "(text, bigint) AS SELECT * FROM mip.commit($1, $2)",
    "mip_one_phase": "(text, text) AS SELECT * FROM mip.commit_one_phase($1, $2)",
}
FIRST, LAST = "EXECUTE account(:delta, :aid)", "EXECUTE branch(:delta, :bid)"
READS = {
    "600": ["EXECUTE read_account(:aid)"],
    "712": ["EXECUTE read_account(:aid)", "EXECUTE read_branch(:bid)", "EXECUTE read_teller(:tid)"],
}
NAME = "TIME-7:m-8:m-:n"  # a UUID of version 7: clients of pg_mip make such
TEXTS = '\'{"aid": :aid, "delta": :delta}\', \'{"done": true}\''
KEY = f"EXECUTE key('{NAME}', {TEXTS})"
MIP_BEGIN = f"EXECUTE mip_begin('{NAME}', 1)"
MIP_PREPARE = f"EXECUTE mip_prepare({TEXTS})"
PREPARE, COMMIT_PREPARED = f"PREPARE TRANSACTION '{NAME}'", f"COMMIT PREPARED '{NAME}'"
# of each case: with the first statement, with the last one, and afterwards
ENDS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "a": ([], ["COMMIT"], []),
    "b": ([], [PREPARE], [COMMIT_PREPARED]),
    "c": ([], [KEY, PREPARE], [COMMIT_PREPARED]),
    "d": ([MIP_BEGIN], [MIP_PREPARE], [f"EXECUTE mip_commit('{NAME}', 1)"]),
    "e": ([MIP_BEGIN], [MIP_PREPARE], [f"EXECUTE mip_commit('{NAME}', 1)"]),
    "f": ([MIP_BEGIN], [f"EXECUTE mip_one_phase({TEXTS})"], []),
}


@dataclass(frozen=True)
class Cell:
    flush: str
    scale: int
    state: str
    clients: int

    def __str__(self) -> str:
        return f"flush {self.flush}, scale {self.scale}, {self.state} B, {self.clients} clients"


@dataclass(frozen=True)
class Measured:
    tps: float
    wal: float
    """bytes a transaction"""
    flushes: float
    """a transaction"""


def message(*statements: str) -> str:
    return "\\; ".join(statements) + ";\n"


def script(case: str, state: str) -> str:
    before, after, then = ENDS[case]
    lines = ["\\if :first\n"]
    if case == "e":
        lines.append("SET mip.synchronous_commit_prepared = off;\n")
    lines += [f"PREPARE {name} {text};\n" for name, text in STATEMENTS.items()]
    lines += ["\\set first 0\n", "\\endif\n"]
    lines += [
        "\\set aid random(1, 100000 * :scale)\n",
        "\\set bid random(1, :scale)\n",
        "\\set tid random(1, 10 * :scale)\n",
        "\\set delta random(-5000, 5000)\n",
        "\\set m random(100, 999)\n",
        "\\set n random(100000000000, 999999999999)\n",
        message("BEGIN", *before, FIRST),
        *(message(read) for read in READS[state]),
        message("EXECUTE teller(:delta, :tid)"),
        message(LAST, *after),
        *(message(statement) for statement in then),
    ]
    now = f"{time.time_ns() // 1_000_000:012x}"
    return "".join(lines).replace("TIME", f"{now[:8]}-{now[8:]}")


def method(case: str) -> str:
    return "mip" if case in ON_MIP else "heap"


def dbname(case: str, scale: int) -> str:
    return f"{method(case)}_{scale}"


class Bench:
    """Databases of both access methods and all scales, and what the cases do there."""

    def __init__(self, cluster: Cluster, args: argparse.Namespace) -> None:
        self.cluster = cluster
        self.args = args

    def load(self) -> None:
        for scale, case in itertools.product(self.args.scales, "ad"):
            name = dbname(case, scale)
            print(f"loading {name}", flush=True)
            create_database(self.cluster, method(case), name)
            pgbench(self.cluster, name, "-i", "-q", "-s", str(scale))
            self.cluster.run_sql(REQUEST, dbname=name)

    def restart(self, flush: str) -> None:
        """With a disk that flushes so. The first transactions would pay for what is cold, and are not counted."""
        set_flush(self.cluster, flush)
        for scale, case in itertools.product(self.args.scales, "ce"):
            self.measure(case, Cell(flush, scale, self.args.states[-1], 4))

    def measure(self, case: str, cell: Cell) -> Measured:
        name = dbname(case, cell.scale)
        file = self.cluster.directory / f"{case}_{cell.state}.sql"
        file.write_text(script(case, cell.state))
        self.cluster.run_sql("VACUUM pgbench_branches, pgbench_tellers", dbname=name)
        before = self._counters()
        seconds = self.args.seconds + cell.clients // 60  # many take long to connect
        output = pgbench(
            self.cluster, name, "-n", "-c", str(cell.clients), "-j", "1", "-T", str(seconds),
            "-D", f"scale={cell.scale}", "-D", "first=1", "-f", str(file),
        )  # fmt: skip
        after = self._counters()
        done = int(output.split("number of transactions actually processed: ")[1].split()[0].split("/")[0])
        wal, flushes = (b - a for a, b in zip(before, after, strict=True))
        return Measured(rate(output), wal / done, flushes / done)

    def _counters(self) -> tuple[float, float]:
        """Bytes of WAL, and flushes, since the server started."""
        self.cluster.run_sql("SELECT pg_stat_force_next_flush()")
        version = int(self.cluster.run_sql("SHOW server_version_num")[0][0])
        flushes = "wal_sync FROM pg_stat_wal"
        if version >= 180000:
            flushes = "sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"
        (lsn,) = self.cluster.run_sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")[0]
        (count,) = self.cluster.run_sql(f"SELECT {flushes}")[0]
        return float(lsn), float(count)

    def check(self) -> None:
        """All money is where it should be, nothing is prepared, and each instance has an entry."""
        for scale, case in itertools.product(self.args.scales, "ad"):
            ((right,),) = self.cluster.run_sql(
                "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)"
                " AND (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(tbalance) FROM pgbench_tellers)"
                " AND NOT EXISTS (SELECT FROM pg_prepared_xacts)"
                " AND NOT EXISTS (SELECT FROM mip.in_doubt)"
                " AND (SELECT committed + committed_in_one_phase FROM mip.stats)"
                " <= (SELECT count(*) FROM mip.mipt WHERE NOT aborted)",
                dbname=dbname(case, scale),
            )
            if not right:
                sys.exit(f"the data of {dbname(case, scale)} are wrong")


def cells(args: argparse.Namespace) -> list[Cell]:
    return [
        Cell(flush, scale, state, clients)
        for flush, scale, state, clients in itertools.product(FLUSHES, args.scales, args.states, args.clients)
    ]


Results = dict[Cell, dict[str, list[Measured]]]  # of each case, one a round


def run_round(bench: Bench, args: argparse.Namespace, number: int, results: Results) -> None:
    for flush in FLUSHES:
        bench.restart(flush)
        for cell in (cell for cell in cells(args) if cell.flush == flush):
            for case in interleaved(CASES, number):
                results[cell][case].append(bench.measure(case, cell))
            rates = " ".join(f"{case} {results[cell][case][-1].tps:.0f}" for case in CASES)
            print(f"round {number + 1} of {args.rounds}: {cell}: {rates}", flush=True)
    bench.check()


def run_costs(bench: Bench, args: argparse.Namespace) -> Results:
    """WAL and flushes of one client's transactions. Without full-page images: after a restart there is hardly anything
    else, and who comes first has them.
    """
    bench.cluster.configure({"full_page_writes": "off"})
    bench.restart("as it is")
    results: Results = {}
    for scale, state in itertools.product(args.scales, args.states):
        cell = Cell(NO_FULL_PAGES, scale, state, 1)
        results[cell] = {case: [bench.measure(case, cell)] for case in CASES}
    bench.cluster.configure({"full_page_writes": "on"})
    return results


def ratios(of: dict[str, list[Measured]], case: str, base: str) -> list[float]:
    return [one.tps / other.tps for one, other in zip(of[case], of[base], strict=True)]


def normalised(of: dict[str, list[Measured]], case: str) -> float:
    """0: as slow as two phases; 1: as fast as a plain commit. Median of rounds; not a number where these two are less
    than a tenth apart.
    """
    a, b = (statistics.median(m.tps for m in of[base]) for base in "ab")
    if a < 1.1 * b:
        return math.nan
    gains = zip(of[case], of["b"], of["a"], strict=True)
    return statistics.median((x.tps - b.tps) / (a.tps - b.tps) if a.tps != b.tps else 0 for x, b, a in gains)


def rate_table(results: Results) -> list[str]:
    lines = [
        "| flush | scale | state | clients | " + " | ".join(f"{case} tps" for case in CASES)
        + " | d / c | e / c | f / a | d | e | f |",
        "|---|---|---|---|" + "---|" * (len(CASES) + 6),
    ]  # fmt: skip
    for cell, of in results.items():
        rates = [f"{statistics.median(m.tps for m in of[case]):.0f}" for case in CASES]
        compared = []
        for case, base in BASE.items():
            each = ratios(of, case, base)
            compared.append(f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")
        gains = [f"{normalised(of, case):.2f}".replace("nan", "-") for case in BASE]
        row = [cell.flush, str(cell.scale), cell.state, str(cell.clients), *rates, *compared, *gains]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def cost_table(costs: Results) -> list[str]:
    lines = ["| scale | state | case | WAL, bytes | flushes |", "|---|---|---|---|---|"]
    for cell, of in costs.items():
        for case, (measured,) in of.items():
            lines.append(f"| {cell.scale} | {cell.state} | {case} | {measured.wal:.0f} | {measured.flushes:.2f} |")
    return lines


def flush_dominates(cell: Cell) -> bool:
    """Whether everybody waits for flushes, one after another: those of one client, or of a hot row's owners."""
    return cell.flush == "2 ms" and (cell.clients == 1 or cell.scale == 1)


def target(case: str, cell: Cell) -> float | None:
    """What the ratio to its base should be at least; None where we want nothing of it."""
    if case == "d":
        return 1.0
    if case == "f":
        return 0.9 if flush_dominates(cell) else 0.85
    if cell.flush == "as it is":
        return 1.15
    return 1.6 if flush_dominates(cell) else None


def summary_row(name: str, values: Mapping[Cell, float], targets: Mapping[Cell, float]) -> str:
    below = []
    for wanted in sorted(set(targets.values())):
        mine = [values[cell] for cell, its in targets.items() if its == wanted]
        below.append(f"{sum(value < wanted for value in mine)} of {len(mine)} ({wanted:g})")
    spread = f"{min(values.values()):.2f} | {statistics.median(values.values()):.2f} | {max(values.values()):.2f}"
    return f"| {name} | {spread} | {', '.join(below)} |"


def summary(results: Results) -> list[str]:
    lines = ["| | flush | worst cell | median of cells | best cell | cells below their target |", "|" + "---|" * 6]
    for (case, base), flush in itertools.product(BASE.items(), FLUSHES):
        mine = {cell: each for cell, each in results.items() if cell.flush == flush}
        of = {cell: statistics.median(ratios(each, case, base)) for cell, each in mine.items()}
        targets = {cell: wanted for cell in of if (wanted := target(case, cell)) is not None}
        lines.append(summary_row(f"{case} / {base} | {flush}", of, targets))
    of = {cell: normalised(each, "e") for cell, each in results.items() if flush_dominates(cell)}
    if of:
        lines.append(summary_row("e, normalised | 2 ms, one client or one hot row", of, dict.fromkeys(of, 0.8)))
    return lines


def write(out: Path, what: str, costs: Results, results: Results) -> None:
    with (out / "commit.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["flush", "scale", "state", "clients", "case", "round", "tps", "wal_bytes", "flushes"])
        for cell, of in {**results, **costs}.items():
            for case, measured in of.items():
                for number, m in enumerate(measured, 1):
                    row = [cell.flush, cell.scale, cell.state, cell.clients, case, number]
                    writer.writerow([*row, f"{m.tps:.1f}", f"{m.wal:.0f}", f"{m.flushes:.3f}"])
    parts = [
        "# The end of a transaction at one site", what,
        "a COMMIT · b PREPARE TRANSACTION, COMMIT PREPARED · c b and an idempotency key · d instance · "
        "e instance, second phase not flushed · f instance in one phase", "## Ratios, medians of rounds",
        "\n".join(summary(results)), "![ratios](commit.png)", "## Every cell",
        "Rates are medians of rounds, ratios medians of the rounds' ratios, with their spread. "
        "The last three columns are the normalised rate: 0 for b, 1 for a; - where these are less than a tenth apart.",
        "\n".join(rate_table(results)), "## WAL and flushes of a transaction",
        "One client, and no full-page images (`full_page_writes = off`).", "\n".join(cost_table(costs)),
    ]  # fmt: skip
    (out / "commit.md").write_text("\n\n".join(parts) + "\n")
    plot(results, out / "commit.png")
    print("\n\n".join(parts[:5]))


def plot(results: Results, file: Path) -> None:
    shown = sorted({(cell.scale, cell.state) for cell in results})
    figure, axes = plt.subplots(
        len(FLUSHES), len(shown), figsize=(4 * len(shown), 3 * len(FLUSHES)), squeeze=False, sharex=True, sharey=True
    )
    for (row, flush), (column, (scale, state)) in itertools.product(enumerate(FLUSHES), enumerate(shown)):
        axis = axes[row][column]
        mine = [cell for cell in results if (cell.flush, cell.scale, cell.state) == (flush, scale, state)]
        for case, base in BASE.items():
            medians = [statistics.median(ratios(results[cell], case, base)) for cell in mine]
            axis.plot([cell.clients for cell in mine], medians, marker="o", label=f"{case} / {base}")
        axis.axhline(1, color="gray", linewidth=0.8)
        axis.set_title(f"flush {flush}, scale {scale}, {state} B", fontsize=9)
        if row == len(FLUSHES) - 1:
            axis.set_xlabel("clients")
    axes[0][0].set_ylim(bottom=0)  # of all, and only now: it fixes the upper end
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--clients", type=numbers, default=CLIENTS)
    parser.add_argument("--scales", type=numbers, default=(1, 100))
    parser.add_argument("--states", type=lambda text: text.split(","), default=list(READS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="little of everything: is it right?")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.clients, args.scales = 1, (4,), (1,)
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def bench_cluster() -> Cluster:
    return Cluster("bench", settings=UNDISTURBED, fsync=True, max_connections=150, max_prepared_transactions=200)


def main() -> None:
    args = arguments()
    results: Results = defaultdict(lambda: defaultdict(list))
    with bench_cluster() as cluster:
        bench = Bench(cluster, args)
        bench.load()
        costs = run_costs(bench, args)
        for number in range(args.rounds):
            run_round(bench, args, number, results)
            what = (
                f"{number + 1} interleaved rounds of {args.seconds} s a case (and a second more from 60 clients on); "
                f"{machine()}."
            )
            write(args.out, what, costs, results)  # after each round: all cells take hours


if __name__ == "__main__":
    main()
