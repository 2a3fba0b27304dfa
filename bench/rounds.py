"""What the benches share: pgbench, interleaved rounds, and results as a table, a CSV file and a plot."""

from __future__ import annotations

import argparse
import csv
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from pgmip.testing import Cluster, find_bindir

Rates = dict[str, list[float]]  # of each case, one a round
METHODS = ("heap", "mip")  # access methods; a database of this name has tables of each
# Of a server's settings: no checkpoint and no vacuum comes in between.
UNDISTURBED = {"shared_buffers": "2GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "autovacuum": "off"}
T = TypeVar("T")


def arguments(doc: str, *, rounds: int, seconds: int) -> argparse.Namespace:
    """The options that all benches have, with these defaults; makes the folder for the results."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=int, default=seconds)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def create_database(cluster: Cluster, method: str, name: str | None = None) -> None:
    """A database whose tables are of this access method; named after it, unless told."""
    name = name or method
    cluster.create_database(name)
    cluster.run_sql("CREATE EXTENSION pg_mip", dbname=name)
    cluster.run_sql(f"ALTER DATABASE {name} SET default_table_access_method = {method}")


def load(cluster: Cluster, scale: int) -> None:
    for method in METHODS:
        create_database(cluster, method)
        pgbench(cluster, method, "-i", "-q", "-s", str(scale))


def pgbench(cluster: Cluster, dbname: str, *options: str, **parameters: Any) -> str:
    """What it printed. `parameters` are libpq's."""
    command = [str(find_bindir() / "pgbench"), *options, cluster.conninfo(dbname, **parameters)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or "aborted" in done.stderr:
        sys.exit(f"pgbench failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def rate(output: str) -> float:
    """Transactions per second, from what pgbench printed."""
    found = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    if found is None:
        sys.exit(f"pgbench printed no rate:\n{output}")
    return float(found[1])


def flushes(cluster: Cluster) -> float:
    """Of its WAL, since the server started."""
    cluster.run_sql("SELECT pg_stat_force_next_flush()")
    version = int(cluster.run_sql("SHOW server_version_num")[0][0])
    counted = "sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'" if version >= 180000 else "wal_sync FROM pg_stat_wal"
    return float(cluster.run_sql(f"SELECT {counted}")[0][0])


def names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """For an option: reads a list of these."""

    def read(text: str) -> tuple[str, ...]:
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(known)}")
        return tuple(text.split(","))

    return read


def interleaved(cases: Sequence[T], number: int) -> Iterable[T]:
    """The cases of this round: the other way round every second time, so that drift cancels out."""
    return cases if number % 2 == 0 else reversed(cases)


def counted_from_one(rounds: int) -> range:
    """The numbers of the rounds. In 0 everybody learns what there is to learn; where there is one only, it counts."""
    return range(0 if rounds > 1 else 1, rounds + 1)


def percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else float("nan")


def run_rounds(cases: Iterable[str], rounds: int, measure: Callable[[str], float], unit: str) -> Rates:
    """Measures every case once a round."""
    cases = list(cases)
    rates: Rates = {case: [] for case in cases}
    for number in range(rounds):
        for case in interleaved(cases, number):
            rates[case].append(measure(case))
            print(f"round {number + 1} of {rounds}: {case}: {rates[case][-1]:.4g} {unit}", flush=True)
    return rates


def ratios(rates: Rates, case: str, base: str) -> list[float]:
    return [a / b for a, b in zip(rates[case], rates[base], strict=True)]


def table(rates: Rates, bases: Mapping[str, str], unit: str) -> list[str]:
    """Markdown; `bases` names the case that another one is compared with, round by round."""
    lines = [f"| case | {unit}, median | spread | ratio to its base (median of rounds) |", "|---|---|---|---|"]
    for case, values in rates.items():
        ratio = ""
        if case in bases:
            each = ratios(rates, case, bases[case])
            ratio = f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"
        spread = f"{min(values):.4g} to {max(values):.4g}"
        lines.append(f"| {case} | {statistics.median(values):.4g} | {spread} | {ratio} |")
    return lines


def machine() -> str:
    told = subprocess.run([find_bindir() / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    version = told.strip().removeprefix("postgres (PostgreSQL) ")
    return f"PostgreSQL {version}, {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"


def write(out: Path, name: str, title: str, what: str, rates: Rates, bases: Mapping[str, str], unit: str) -> None:
    """Writes NAME.csv, NAME.md and NAME.png, and prints the table."""
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", *rates])
        writer.writerows([number + 1, *values] for number, values in enumerate(zip(*rates.values(), strict=True)))
    text = [f"# {title}\n\n{what}.\n", *table(rates, bases, unit), f"\n![ratios]({name}.png)"]
    (out / f"{name}.md").write_text("\n".join(text) + "\n")
    plot_ratios(rates, bases, title, out / f"{name}.png")
    print("\n".join(text))


def plot_ratios(rates: Rates, bases: Mapping[str, str], title: str, file: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 0.7 + 0.6 * len(bases)))
    axes.boxplot([ratios(rates, case, base) for case, base in bases.items()], vert=False)
    axes.set_yticks(range(1, len(bases) + 1), [f"{case}\nto {base}" for case, base in bases.items()])
    axes.axvline(1, linewidth=0.8, color="gray")
    axes.set_xlim(left=0)
    axes.set_xlabel("ratio, one value a round")
    axes.set_title(title)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
