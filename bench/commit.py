"""What the end of a transaction costs at one site: plain, in two phases, and as an instance.

    python -m bench.commit [--protocol NAME,NAME] [--rounds N] [--seconds N] [--clients N,N,...] [--scales N,N]
                           [--states N,N] [--out FOLDER] [--quick]

The cases of `cases` do the same work: transactions of pgbench's tables, whose prepared state has about 600 bytes (or
712, with two more reads), in rounds, one after another, for every number of clients, scale and kind of flush. By two
protocols:

    extended  as drivers send them, by the client of `extended`, with the functions for drivers
    execute   by pgbench, as SQL's EXECUTE, with the functions for people

All send the same statements in the same messages (a, a+k and f four, or six with 712 bytes; the others one more for the
second phase), prepared before, so that neither parsing nor planning is compared. Compare within a protocol: the two
clients differ. `--quick` only checks that all do what they should. Writes commit.md, commit.csv and commit.png.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from pgmip.testing import Cluster

from .cases import CASES, READS, REQUEST, SETTINGS, Statement, Values, distinct, messages, method, values
from .disk import FLUSHES, set_flush
from .extended import Done, Load, run_apart
from .rounds import UNDISTURBED, create_database, flushes, interleaved, machine, names, pgbench, rate

PROTOCOLS = {
    "extended": "By the extended protocol, as drivers send it",
    "execute": "By SQL's EXECUTE, as pgbench sends it",
}
RATIOS = (("d", "c"), ("e", "c"), ("f", "a+k"), ("f", "a"))
NORMALISED = "def"
NO_FULL_PAGES = "as it is, no full-page images"
CLIENTS = (1, 5, 25, 100)
STATES = ("600",)
APPLICATION = "load"  # what the clients call themselves


@dataclass(frozen=True)
class Cell:
    protocol: str
    flush: str
    scale: int
    state: str
    clients: int

    def __str__(self) -> str:
        return f"{self.protocol}, flush {self.flush}, scale {self.scale}, {self.state} B, {self.clients} clients"


@dataclass(frozen=True)
class Measured:
    tps: float
    wal: float
    """bytes a transaction"""
    flushes: float
    """a transaction"""


def pgbench_values() -> Values:
    """The texts that pgbench puts its variables into."""
    of = values(":aid", ":bid", ":tid", ":delta", ":m", ":n")
    return of | {name: f"'{of[name]}'" for name in ("xid", "request", "result")}


def executed(statement: Statement, of: Values) -> str:
    if statement.parameters:
        return f"EXECUTE {statement.name}({', '.join(str(of[name]) for name in statement.parameters)})"
    return statement.text.replace("'{xid}'", of["xid"])


def script(case: str, state: str) -> str:
    """For pgbench: each message is one query, whose statements were prepared with the connection's first one."""
    of, told = pgbench_values(), messages(case, state)
    once = [SETTINGS[case]] if case in SETTINGS else []
    once += [f"PREPARE {one.name} AS {one.text}" for one in distinct(told) if one.parameters]
    lines = [
        "\\if :first", *(f"{line};" for line in once), "\\set first 0", "\\endif",
        "\\set aid random(1, 100000 * :scale)", "\\set bid random(1, :scale)", "\\set tid random(1, 10 * :scale)",
        "\\set delta random(-5000, 5000)", "\\set m random(100, 999)", "\\set n random(100000000000, 999999999999)",
        *("\\; ".join(executed(one, of) for one in message) + ";" for message in told),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


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
            self.measure(case, Cell(self.args.protocols[0], flush, scale, self.args.states[-1], 4))

    def measure(self, case: str, cell: Cell) -> Measured:
        self.cluster.run_sql("VACUUM pgbench_branches, pgbench_tellers", dbname=dbname(case, cell.scale))
        before = self._counters()
        done = self._extended(case, cell) if cell.protocol == "extended" else self._execute(case, cell)
        wal, flushes = (b - a for a, b in zip(before, self._counters(), strict=True))
        transactions = done.before + done.transactions
        return Measured(done.transactions / done.seconds, wal / transactions, flushes / transactions)

    def _extended(self, case: str, cell: Cell) -> Done:
        conninfo = self.cluster.conninfo(dbname(case, cell.scale), application_name=APPLICATION)
        sent = f"{case}b" if method(case) == "mip" else case
        return run_apart(Load(conninfo, sent, cell.state, cell.scale, cell.clients, self.args.seconds))

    def _execute(self, case: str, cell: Cell) -> Done:
        file = self.cluster.directory / f"{case}_{cell.state}.sql"
        file.write_text(script(case, cell.state))
        seconds = self.args.seconds + cell.clients // 60  # many take long to connect, which counts here
        output = pgbench(
            self.cluster, dbname(case, cell.scale), "-n", "-c", str(cell.clients), "-j", "1", "-T", str(seconds),
            "-D", f"scale={cell.scale}", "-D", "first=1", "-f", str(file), application_name=APPLICATION,
        )  # fmt: skip
        done = int(output.split("number of transactions actually processed: ")[1].split()[0].split("/")[0])
        return Done(done, done / rate(output))

    def _counters(self) -> tuple[float, float]:
        """Bytes of WAL, and flushes, since the server started."""
        (lsn,) = self.cluster.run_sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")[0]
        return float(lsn), flushes(self.cluster)

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


def cells(args: argparse.Namespace, flush: str) -> list[Cell]:
    return [
        Cell(protocol, flush, scale, state, clients)
        for scale, state, clients, protocol in itertools.product(args.scales, args.states, args.clients, args.protocols)
    ]


Results = dict[Cell, dict[str, list[Measured]]]  # of each case, one a round


def run_round(bench: Bench, args: argparse.Namespace, number: int, results: Results) -> None:
    for flush in FLUSHES:
        bench.restart(flush)
        for cell in cells(args, flush):
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
    for protocol, scale, state in itertools.product(args.protocols, args.scales, args.states):
        cell = Cell(protocol, NO_FULL_PAGES, scale, state, 1)
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
    columns = ["flush", "scale", "state", "clients", *(f"{case} tps" for case in CASES)]
    columns += [*(f"{case} / {base}" for case, base in RATIOS), *NORMALISED]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for cell, of in results.items():
        rates = [f"{statistics.median(m.tps for m in of[case]):.0f}" for case in CASES]
        compared = []
        for case, base in RATIOS:
            each = ratios(of, case, base)
            compared.append(f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")
        gains = [f"{normalised(of, case):.2f}".replace("nan", "-") for case in NORMALISED]
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


def target(case: str, base: str, cell: Cell) -> float | None:
    """What the ratio should be at least; None where we want nothing of it."""
    if case == "d":
        return 1.0
    if base == "a+k":
        return 0.95
    if base == "a":
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
    for (case, base), flush in itertools.product(RATIOS, FLUSHES):
        mine = {cell: each for cell, each in results.items() if cell.flush == flush}
        of = {cell: statistics.median(ratios(each, case, base)) for cell, each in mine.items()}
        targets = {cell: wanted for cell in of if (wanted := target(case, base, cell)) is not None}
        lines.append(summary_row(f"{case} / {base} | {flush}", of, targets))
    of = {cell: normalised(each, "e") for cell, each in results.items() if flush_dominates(cell)}
    if of:
        lines.append(summary_row("e, normalised | 2 ms, one client or one hot row", of, dict.fromkeys(of, 0.8)))
    return lines


def write(out: Path, what: str, costs: Results, results: Results) -> None:
    with (out / "commit.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        head = ["protocol", "flush", "scale", "state", "clients", "case", "round", "tps", "wal_bytes", "flushes"]
        writer.writerow(head)
        for cell, of in {**results, **costs}.items():
            for case, measured in of.items():
                for number, m in enumerate(measured, 1):
                    row = [cell.protocol, cell.flush, cell.scale, cell.state, cell.clients, case, number]
                    writer.writerow([*row, f"{m.tps:.1f}", f"{m.wal:.0f}", f"{m.flushes:.3f}"])
    told = [name for name in PROTOCOLS if name in {cell.protocol for cell in results}]
    parts = [
        "# The end of a transaction at one site", what,
        "a COMMIT · a+k a and an idempotency key · b PREPARE TRANSACTION, COMMIT PREPARED · c b and an idempotency key "
        "· d instance · e instance, second phase not flushed · f instance in one phase",
        "Rates are medians of rounds, ratios medians of the rounds' ratios, with their spread. The last three columns "
        "of the cells are the normalised rate: 0 for b, 1 for a; - where these are less than a tenth apart. WAL and "
        "flushes are those of one client, without full-page images (`full_page_writes = off`).",
        "![ratios](commit.png)",
    ]  # fmt: skip
    for protocol in told:
        parts += section(protocol, of_protocol(costs, protocol), of_protocol(results, protocol))
    (out / "commit.md").write_text("\n\n".join(parts) + "\n")
    plot(results, out / "commit.png")
    for protocol in told:
        print(f"\n{PROTOCOLS[protocol]}\n\n" + "\n".join(summary(of_protocol(results, protocol))), flush=True)


def of_protocol(results: Results, protocol: str) -> Results:
    return {cell: of for cell, of in results.items() if cell.protocol == protocol}


def section(protocol: str, costs: Results, results: Results) -> list[str]:
    return [
        f"## {PROTOCOLS[protocol]}",
        "### Ratios", "\n".join(summary(results)),
        "### Every cell", "\n".join(rate_table(results)),
        "### WAL and flushes of a transaction", "\n".join(cost_table(costs)),
    ]  # fmt: skip


def plot(results: Results, file: Path) -> None:
    shown = list(dict.fromkeys((cell.protocol, cell.scale, cell.state) for cell in results))
    shown.sort(key=lambda column: (list(PROTOCOLS).index(column[0]), *column[1:]))
    figure, axes = plt.subplots(
        len(FLUSHES), len(shown), figsize=(4 * len(shown), 3 * len(FLUSHES)), squeeze=False, sharex=True, sharey=True
    )
    for (row, flush), (column, which) in itertools.product(enumerate(FLUSHES), enumerate(shown)):
        axis = axes[row][column]
        mine = [cell for cell in results if cell.flush == flush and (cell.protocol, cell.scale, cell.state) == which]
        for case, base in RATIOS:
            medians = [statistics.median(ratios(results[cell], case, base)) for cell in mine]
            axis.plot([cell.clients for cell in mine], medians, marker="o", label=f"{case} / {base}")
        axis.axhline(1, color="gray", linewidth=0.8)
        protocol, scale, state = which
        axis.set_title(f"{protocol}, flush {flush}, scale {scale}, {state} B", fontsize=9)
        if row == len(FLUSHES) - 1:
            axis.set_xlabel("clients")
    axes[0][0].set_ylim(bottom=0)  # of all, and only now: it fixes the upper end
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--protocol", type=names(PROTOCOLS), default=tuple(PROTOCOLS), dest="protocols")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--clients", type=numbers, default=CLIENTS)
    parser.add_argument("--scales", type=numbers, default=(1, 100))
    parser.add_argument("--states", type=names(READS), default=STATES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="little of everything: is it right?")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.clients, args.scales, args.states = 1, (4,), (1,), tuple(READS)[-1:]  # has all statements
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def bench_cluster() -> Cluster:
    # Sessions last for a second: without this, many plan each statement five times, and do little else.
    settings = UNDISTURBED | {"plan_cache_mode": "force_generic_plan"}
    return Cluster("bench", settings=settings, fsync=True, max_connections=150, max_prepared_transactions=200)


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
                f"{number + 1} interleaved rounds of {args.seconds} s a case (by EXECUTE a second more from 60 "
                f"clients on, which connecting takes); {machine()}."
            )
            write(args.out, what, costs, results)  # after each round: all of them take most of an hour


if __name__ == "__main__":
    main()
