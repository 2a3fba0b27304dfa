"""What a transaction over two sites costs with each of some coordinators, and what happens when one of them dies.

    python -m bench.coordinators [--rounds N] [--seconds N] [--sessions N,N,...] [--kills N] [--watch N] [--out FOLDER]
                                 [--processes N] [--quick]

The same transfer between two sites, by nodes (app servers, see nodes/) of pgmip, of plain two-phase commit with a
forced log of decisions, of Narayana and of Atomikos through JDBC's XA; all but pgmip with a row for an idempotency key,
else nobody could send a request again. pgmip unflushed has mip.synchronous_commit_prepared = off, which is as durable;
pgmip early answers before the second phase (`wait_for_commit=False`), pgmip threads has the App of pgmip.sync. Measured
in rounds, one after another: rate, latencies, flushes, round trips, and the processor time of the client.

Then a node is killed with 32 transactions under way, beside another one that stays well. A third one is sent the same
requests at once, and a new node of the dead one's name starts ten seconds later, to recover as it does by default.
Measured for each request: until it is answered, and until the rows that it touches can be locked again; and what the
healthy node gets done meanwhile. Writes coordinators.md, coordinators.csv and coordinators.png.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from .places import EARLY, PYTHON, SITES, THREADS, UNFLUSHED, Places, Rows, relayed
from .processes import NODES, Node
from .rounds import interleaved, machine, percentile

CONTENDERS = ("pgmip", UNFLUSHED, EARLY, THREADS, "plain", "narayana", "atomikos")
IN_FLIGHT, HEALTHY = 32, 8  # sessions of the node that dies, and of the one that does not
BEFORE, RESTART = 5.0, 10.0  # seconds of load before the death, and from there to the new node of that name
NEVER = float("inf")
Row = tuple[str, str, str, str, float]  # phase, contender, case, metric, value


# -- measuring ---------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, places: Places, folder: Path, args: argparse.Namespace) -> None:
        self.places = places
        self.folder = folder
        self.args = args
        self.classpath = self._build()
        self.rows: list[Row] = []
        self.timelines: dict[str, list[float]] = {}

    def _build(self) -> str:
        """The Java nodes, from their sources and Maven's central repository."""
        made = self.folder / "java"
        shutil.copytree(NODES, made)
        goals = ["package", "dependency:copy-dependencies"]
        done = subprocess.run(["mvn", "-q", "-B", "-ntp", *goals], cwd=made, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"Maven failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return f"{made}/target/nodes-1.jar:{made}/target/dependency/*"

    def _node(self, *arguments: Any, **options: Any) -> Node:
        return Node(self.places, self.folder, self.classpath, *arguments, **options)

    def note(self, phase: str, contender: str, case: str, **metrics: float) -> None:
        self.rows += [(phase, contender, case, metric, value) for metric, value in metrics.items()]

    def rate(self, contender: str, sessions: int) -> None:
        self.places.load(contender)
        number = min(self.args.processes, sessions) if contender in PYTHON else 1
        nodes = [self._node(contender, f"rate{i}", sessions // number, f"rate{i}") for i in range(number)]
        for node in nodes:
            node.wait_until_ready()
        for node in nodes:
            node.go()
        time.sleep(self.args.warmup)
        flushes, cpu, began = self.places.flushes(), sum(node.cpu() for node in nodes), time.monotonic_ns()
        time.sleep(self.args.seconds)
        ended, cpu, flushes = (
            time.monotonic_ns(),
            sum(node.cpu() for node in nodes) - cpu,
            self.places.flushes() - flushes,
        )
        for node in nodes:
            node.end()
        took = sorted(
            (end - begin) / 1e6
            for node in nodes
            for begin, end in node.journal().ended.values()
            if began <= end < ended
        )  # fmt: skip
        self.places.check(contender)
        seconds = (ended - began) / 1e9
        self.note(
            "rate", contender, str(sessions), tps=len(took) / seconds, p50_ms=percentile(took, 50),
            p95_ms=percentile(took, 95), p99_ms=percentile(took, 99), flushes=flushes / len(took) / len(SITES),
            client_cores=cpu / seconds,
        )  # fmt: skip
        print(f"{contender}, {sessions} sessions: {len(took) / seconds:.0f} tps", flush=True)

    def trips(self, contender: str) -> None:
        self.places.load(contender)
        with relayed(self.places) as relays:
            node = self._node(contender, "trips", 1, "trips", ports=[relay.port for relay in relays])
            node.wait_until_ready()
            node.go()
            time.sleep(self.args.warmup)
            before, done = sum(relay.count for relay in relays), len(node.journal().ended)
            time.sleep(1)
            after, done = sum(relay.count for relay in relays), len(node.journal().ended) - done
            node.end()
        self.note("trips", contender, "1", round_trips=(after - before) / max(done, 1))

    def kill(self, contender: str) -> None:
        """A node dies."""
        self.places.load(contender)
        requests = self.folder / "requests"
        doomed = self._node(contender, "doomed", IN_FLIGHT, "doomed")
        healthy = self._node(contender, "healthy", HEALTHY, "healthy")
        third = self._node(contender, "third", IN_FLIGHT, "third", requests=requests)
        for node in (doomed, healthy, third):
            node.wait_until_ready()
        doomed.go()
        healthy.go()
        time.sleep(BEFORE)
        doomed.journal()  # so that little is left to be read when it is dead
        (now,) = self.places.clusters["left"].run_sql("SELECT clock_timestamp()")[0]
        died = time.monotonic_ns()
        doomed.kill()
        under_way = doomed.journal().under_way
        requests.write_text("".join(f"{key} {a} {b}\n" for key, (a, b) in under_way.items()))
        third.go()
        rows = [
            Rows(self.places, contender, site, {accounts[i] for accounts in under_way.values()}, died)
            for i, site in enumerate(SITES)
        ]
        in_doubt = self.places.in_doubt(contender, now)
        gone = self._watch(contender, died, now, lambda: len(third.journal().ended) == len(under_way), rows)
        for node in (third, healthy):
            node.end()
        for row in rows:
            row.stop()
        answers = {key: (end - died) / 1e9 for key, (_, end) in third.journal().ended.items()}
        answered = sorted(answers.get(key, NEVER) for key in under_way)
        usable = sorted(
            max(row.free.get(account, NEVER) for row, account in zip(rows, accounts, strict=True))
            for accounts in under_way.values()
        )
        if max(gone, *answered) < NEVER:
            self.places.check(contender)
        ends = [(end - died) / 1e9 for _, end in healthy.journal().ended.values()]
        line = [float(sum(second <= end < second + 1 for end in ends)) for second in range(-3, int(2 * RESTART))]
        self.timelines[contender] = line
        self.note(
            "kill", contender, "", requests=len(under_way), in_doubt=in_doubt,
            answer_p50_s=percentile(answered, 50), answer_last_s=answered[-1],
            rows_p50_s=percentile(usable, 50), rows_last_s=usable[-1], in_doubt_gone_s=gone,
            healthy_before=statistics.mean(line[:3]), healthy_after=statistics.mean(line[3 : 3 + int(RESTART)]),
            healthy_worst=min(line[3:]),
        )  # fmt: skip
        told = f"{len(answers)} of {len(under_way)} answered, the last after {answered[-1]:.1f} s"
        print(f"{contender}: {told}", flush=True)

    def _watch(
        self, contender: str, died: int, since: str, answered: Callable[[], bool], rows: Sequence[Rows]
    ) -> float:
        """Until all is well, or for long enough; meanwhile a new node of the dead one's name starts. When nothing was
        in doubt any more, in seconds.
        """
        gone, restarted = NEVER, None
        while (elapsed := (time.monotonic_ns() - died) / 1e9) < self.args.watch:
            if restarted is None and elapsed > RESTART:
                restarted = self._node(contender, "doomed", 1, "restarted")
            if gone == NEVER and self.places.in_doubt(contender, since) == 0:
                gone = elapsed
            well = gone < NEVER and answered() and not any(row.remaining for row in rows)
            if well and elapsed > 2 * RESTART:
                break
            time.sleep(0.1)
        if restarted is not None:
            restarted.end()
        return gone


# -- results -----------------------------------------------------------------------------------------------------


def median(rows: Sequence[Row], phase: str, contender: str, metric: str, case: str | None = None) -> float:
    values = [row[4] for row in rows if row[:2] == (phase, contender) and row[3] == metric and case in (None, row[2])]
    return statistics.median(values) if values else float("nan")


def spread(rows: Sequence[Row], contender: str, case: str) -> str:
    values = [row[4] for row in rows if row[:4] == ("rate", contender, case, "tps")]
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def rate_table(rows: Sequence[Row], sessions: Sequence[int]) -> list[str]:
    lines = [
        "| sessions | coordinator | tps (spread) | p50 ms | p95 ms | p99 ms | WAL flushes, per site | client, cores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in map(str, sessions):
        for contender in CONTENDERS:
            numbers = [f"{median(rows, 'rate', contender, f'p{p}_ms', case):.2f}" for p in (50, 95, 99)]
            flushes = f"{median(rows, 'rate', contender, 'flushes', case):.2f}"
            cores = f"{median(rows, 'rate', contender, 'client_cores', case):.2f}"
            lines.append(
                f"| {case} | {contender} | {spread(rows, contender, case)} | {' | '.join([*numbers, flushes, cores])} |"
            )
    return lines


def trip_table(rows: Sequence[Row]) -> list[str]:
    lines = ["| coordinator | round trips per transaction, both sites |", "|---|---|"]
    return lines + [f"| {name} | {median(rows, 'trips', name, 'round_trips'):.1f} |" for name in CONTENDERS]


def kill_table(rows: Sequence[Row], watch: float) -> list[str]:
    columns = {
        "requests": "under way", "in_doubt": "branches in doubt", "answer_p50_s": "answered elsewhere after, p50 s",
        "answer_last_s": "the last, s", "rows_p50_s": "rows usable after, p50 s", "rows_last_s": "the last, s",
        "in_doubt_gone_s": "nothing in doubt after, s", "healthy_before": "healthy node before, tps",
        "healthy_after": "10 s after the death, tps", "healthy_worst": "its worst second, tps",
    }  # fmt: skip
    lines = ["| coordinator | " + " | ".join(columns.values()) + " |", "|" + "---|" * (len(columns) + 1)]
    for contender in CONTENDERS:
        values = []
        for metric in columns:
            value = median(rows, "kill", contender, metric)
            seconds = metric.endswith("_s")
            values.append(f"> {watch:.0f}" if value == NEVER else f"{value:.2f}" if seconds else f"{value:.0f}")
        lines.append(f"| {contender} | " + " | ".join(values) + " |")
    return lines


def write(out: Path, what: str, bench: Bench, args: argparse.Namespace) -> None:
    with (out / "coordinators.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["phase", "coordinator", "case", "metric", "value"])
        writer.writerows((*row[:4], f"{row[4]:.3f}") for row in bench.rows)
    parts = [
        "# Two sites, by coordinator",
        what,
        "## Rate, medians of rounds",
        "\n".join(rate_table(bench.rows, args.sessions)),
        "All but pgmip flush a log of their own besides.",
        "\n".join(trip_table(bench.rows)),
        "## A node dies",
        f"Medians of {args.kills}; watched for {args.watch:.0f} s at most. A new node of the dead one's name starts "
        f"after {RESTART:.0f} s; pgmip has no need of it. The worst second is one of the {2 * RESTART:.0f} after the "
        "death. The plot's right side is the last death.",
        "\n".join(kill_table(bench.rows, args.watch)),
        "![rates, and a healthy node beside one that dies](coordinators.png)",
    ]
    (out / "coordinators.md").write_text("\n\n".join(parts) + "\n")
    plot(bench, args.sessions, out / "coordinators.png")
    print("\n\n".join(parts))


def plot(bench: Bench, sessions: Sequence[int], file: Path) -> None:
    figure, (rates, healthy) = plt.subplots(1, 2, figsize=(11, 4))
    for contender in CONTENDERS:
        rates.plot(
            list(map(str, sessions)), [median(bench.rows, "rate", contender, "tps", str(n)) for n in sessions],
            marker="o", label=contender,
        )  # fmt: skip
        line = bench.timelines[contender]
        healthy.plot([i - 3 for i in range(len(line))], line, label=contender)
    rates.set_xlabel("sessions")
    rates.set_ylabel("transactions a second")
    rates.set_ylim(bottom=0)
    rates.legend()
    healthy.axvline(0, color="gray", linewidth=0.8)
    healthy.set_xlabel("seconds from the death of another node")
    healthy.set_ylabel("transactions a second of the healthy node")
    healthy.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds, before each measurement")
    parser.add_argument("--sessions", type=lambda text: tuple(map(int, text.split(","))), default=(1, 8, 32))
    parser.add_argument("--processes", type=int, default=2, help="of a Python client with several sessions")
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--watch", type=float, default=330.0, help="seconds, after a death, at most")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="little of everything: does it run?")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.warmup, args.sessions, args.watch = 1, 1.0, 1.0, (1, 8), 2 * RESTART + 5
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def java_version() -> str:
    told = subprocess.run(["java", "--version"], capture_output=True, text=True, check=True).stdout
    return told.split()[1]


def main() -> None:
    args = arguments()
    with ExitStack() as stack:
        places = Places(stack)
        folder = places.clusters["left"].directory / "nodes"
        folder.mkdir()
        bench = Bench(places, folder, args)
        for contender in CONTENDERS:
            bench.trips(contender)
        for number in range(args.rounds):
            for sessions in args.sessions:
                for contender in interleaved(CONTENDERS, number):
                    bench.rate(contender, sessions)
        for _ in range(args.kills):
            for contender in CONTENDERS:
                bench.kill(contender)
        what = f"{args.rounds} interleaved rounds of {args.seconds:g} s a case; {machine()}, Java {java_version()}."
    write(args.out, what, bench, args)


if __name__ == "__main__":
    main()
