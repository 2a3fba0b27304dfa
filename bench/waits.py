"""Where the time of a transaction goes: what its sessions wait for, sampled while the cases of bench/commit.py run.

    python -m bench.waits [--protocol NAME] [--rounds N] [--seconds N] [--clients N] [--out FOLDER]

The sessions' states are looked at some hundred times a second. "running" means on the processor, or waiting for one.
Writes waits.md, waits.csv and waits.png.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import threading
import time
from collections import Counter
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import psycopg
from matplotlib import pyplot as plt
from pgmip.testing import Cluster

from .cases import CASES
from .commit import APPLICATION, PROTOCOLS, Bench, Cell, bench_cluster, dbname
from .rounds import interleaved, machine

STATE = "600"
PAUSE = 0.005
SAMPLE = f"""
    SELECT coalesce(wait_event_type || ':' || wait_event, 'running'), count(*) FROM pg_stat_activity
    WHERE datname = %s AND application_name = '{APPLICATION}' GROUP BY 1
"""
# What is told apart; the first that fits.
KINDS = {
    "the client": ("Client:",),
    "WAL flush": ("IO:WALSync", "IO:WALWrite", "LWLock:WALWrite"),
    "row locks": ("Lock:",),
    "other locks": ("LWLock:", "BufferPin:"),
    "running": ("running",),
    "other": ("",),
}
Shares = dict[str, float]


def kind(event: str) -> str:
    return next(name for name, starts in KINDS.items() if event.startswith(starts))


class Sampler:
    """Looks at the sessions of a database, in a thread of its own."""

    def __init__(self, cluster: Cluster, database: str) -> None:
        self.seen: Counter[str] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(cluster.conninfo(), database))
        self._thread.start()

    def stop(self) -> Shares:
        self._over.set()
        self._thread.join()
        return {name: self.seen[name] / self.seen.total() for name in KINDS}

    def _look(self, conninfo: str, database: str) -> None:
        with psycopg.connect(conninfo, autocommit=True) as conn:
            while not self._over.is_set():
                for event, count in conn.execute(SAMPLE, (database,)).fetchall():
                    self.seen[kind(event)] += count
                time.sleep(PAUSE)


def measure(bench: Bench, case: str, cell: Cell) -> Shares:
    """Milliseconds a transaction, by what the session waited for."""
    sampler = Sampler(bench.cluster, dbname(case, cell.scale))
    measured = bench.measure(case, cell)
    shares = sampler.stop()
    took = 1000 * cell.clients / measured.tps
    return {name: share * took for name, share in shares.items()} | {"in all": took}


def table(results: dict[Cell, dict[str, list[Shares]]]) -> list[str]:
    columns = [*KINDS, "in all"]
    lines = ["| flush | scale | case | " + " | ".join(columns) + " |", "|" + "---|" * (3 + len(columns))]
    for cell, cases in results.items():
        for case, found in cases.items():
            medians = [f"{statistics.median(one[name] for one in found):.2f}" for name in columns]
            lines.append(f"| {cell.flush} | {cell.scale} | {case} | " + " | ".join(medians) + " |")
    return lines


def plot(results: dict[Cell, dict[str, list[Shares]]], file: Path) -> None:
    figure, axes = plt.subplots(1, len(results), figsize=(4 * len(results), 4), squeeze=False)
    for axis, (cell, cases) in zip(axes[0], results.items(), strict=True):
        below = [0.0] * len(cases)
        for name in KINDS:
            medians = [statistics.median(one[name] for one in found) for found in cases.values()]
            axis.bar(list(cases), medians, bottom=below, label=name)
            below = [a + b for a, b in zip(below, medians, strict=True)]
        axis.set_title(f"flush {cell.flush}, scale {cell.scale}", fontsize=9)
        axis.set_ylabel("ms a transaction")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--protocol", choices=PROTOCOLS, default="extended")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.protocols, args.scales, args.states = (args.protocol,), (1, 100), (STATE,)
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def main() -> None:
    args = arguments()
    results: dict[Cell, dict[str, list[Shares]]] = {}
    with bench_cluster() as cluster:
        bench = Bench(cluster, args)
        bench.load()
        for flush in ("as it is", "2 ms"):
            bench.restart(flush)
            for number in range(args.rounds):
                for scale in args.scales:
                    cell = Cell(args.protocol, flush, scale, STATE, args.clients)
                    cases = results.setdefault(cell, {case: [] for case in CASES})
                    for case in interleaved(CASES, number):
                        cases[case].append(measure(bench, case, cell))
                print(f"flush {flush}: round {number + 1} of {args.rounds}", flush=True)
        bench.check()
        what = (
            f"{PROTOCOLS[args.protocol]}. {args.clients} clients, {args.rounds} interleaved rounds of "
            f"{args.seconds} s a case; {machine()}. Milliseconds a transaction, medians of rounds; the cases are those "
            "of [commit](commit.md)."
        )
    write(args.out, what, results)


def write(out: Path, what: str, results: dict[Cell, dict[str, list[Shares]]]) -> None:
    with (out / "waits.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["protocol", "flush", "scale", "case", "round", *KINDS, "in all"])
        for cell, cases in results.items():
            for case, found in cases.items():
                for number, one in enumerate(found, 1):
                    row = [cell.protocol, cell.flush, cell.scale, case, number]
                    writer.writerow([*row, *(f"{one[name]:.4f}" for name in one)])
    parts = ["# What a transaction waits for", what, "\n".join(table(results)), "![waits](waits.png)"]
    (out / "waits.md").write_text("\n\n".join(parts) + "\n")
    plot(results, out / "waits.png")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
