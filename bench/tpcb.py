"""pgbench's TPC-B script on heap and on mip tables, in interleaved rounds.

    python bench/tpcb.py [--rounds N] [--seconds N] [--clients N] [--scale N] [--out FOLDER]

Four cases, in two pairs: a plain COMMIT on heap and on mip tables (what a table pays for having opted in), and
PREPARE TRANSACTION + COMMIT PREPARED on heap beside mip.begin + mip.prepare + mip.commit on mip tables (what one
instance per family pays; it also remembers the request's result). Writes tpcb.csv, tpcb.md and tpcb.png.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from pgmip.testing import Cluster, find_bindir

WORK = """\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
\\set n random(1, 4000000000000000000)
BEGIN;
{begin}
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
{end}
"""
PLAIN = WORK.format(begin="", end="END;")
TWO_PHASE = WORK.format(begin="", end="PREPARE TRANSACTION 'b-:n';\nCOMMIT PREPARED 'b-:n';")
INSTANCE = WORK.format(
    begin="SELECT mip.begin('b-:n', 1);",
    end="SELECT * FROM mip.prepare('request', 'result');\nSELECT * FROM mip.commit('b-:n', 1);",
)
CASES = {  # name: (access method, script)
    "plain, heap": ("heap", PLAIN),
    "plain, mip": ("mip", PLAIN),
    "two-phase, heap": ("heap", TWO_PHASE),
    "instance, mip": ("mip", INSTANCE),
}
PAIRS = {"plain, mip": "plain, heap", "instance, mip": "two-phase, heap"}


def load(cluster: Cluster, scale: int) -> None:
    for method in ("heap", "mip"):
        cluster.create_database(method)
        cluster.run_sql("CREATE EXTENSION pg_mip", dbname=method)
        cluster.run_sql(f"ALTER DATABASE {method} SET default_table_access_method = {method}")
        pgbench(cluster, method, "-i", "-q", "-s", str(scale))


def pgbench(cluster: Cluster, dbname: str, *options: str) -> str:
    command = [str(find_bindir() / "pgbench"), *options, cluster.conninfo(dbname)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or "aborted" in done.stderr:
        sys.exit(f"pgbench failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def measure(cluster: Cluster, case: str, args: argparse.Namespace, folder: Path) -> float:
    method, script = CASES[case]
    file = folder / "script.sql"
    file.write_text(script)
    cluster.run_sql("CHECKPOINT")
    output = pgbench(
        cluster, method, "-n", "-c", str(args.clients), "-j", "2", "-T", str(args.seconds),
        "-D", f"scale={args.scale}", "-f", str(file),
    )  # fmt: skip
    found = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    if found is None:
        sys.exit(f"pgbench printed no rate:\n{output}")
    return float(found[1])


def summary(rates: dict[str, list[float]]) -> list[str]:
    lines = ["| case | tps, median | spread | ratio to its heap twin (median of rounds) |", "|---|---|---|---|"]
    for case, rounds in rates.items():
        ratio = ""
        if case in PAIRS:
            ratios = [a / b for a, b in zip(rounds, rates[PAIRS[case]], strict=True)]
            ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        spread = f"{min(rounds):.0f} to {max(rounds):.0f}"
        lines.append(f"| {case} | {statistics.median(rounds):.0f} | {spread} | {ratio} |")
    return lines


def machine(version: str) -> str:
    return f"{version.split(',')[0]}, {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"


def plot(rates: dict[str, list[float]], file: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.boxplot(list(rates.values()))
    axes.set_xticks(range(1, len(rates) + 1), list(rates))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("transactions per second")
    axes.set_title("TPC-B, interleaved rounds")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    rates: dict[str, list[float]] = {case: [] for case in CASES}
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}
    with Cluster("bench", settings=settings, fsync=True) as cluster:
        load(cluster, args.scale)
        version = str(cluster.run_sql("SELECT version()")[0][0])
        for number in range(args.rounds):
            # the other way round every second time, so that drift cancels out
            for case in list(CASES) if number % 2 == 0 else reversed(CASES):
                rates[case].append(measure(cluster, case, args, args.out))
                print(f"round {number + 1} of {args.rounds}: {case}: {rates[case][-1]:.0f} tps", flush=True)
    (args.out / "script.sql").unlink()

    with (args.out / "tpcb.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", *rates])
        writer.writerows([number + 1, *values] for number, values in enumerate(zip(*rates.values(), strict=True)))
    what = f"{args.rounds} interleaved rounds of {args.seconds} s, {args.clients} clients, scale {args.scale}"
    text = [f"# TPC-B\n\n{what}; {machine(version)}.\n", *summary(rates), "\n![rates](tpcb.png)"]
    (args.out / "tpcb.md").write_text("\n".join(text) + "\n")
    plot(rates, args.out / "tpcb.png")
    print("\n".join(text))


if __name__ == "__main__":
    main()
