"""What a table pays for having opted in, while nobody uses instances: workloads on heap and on mip tables.

    python -m bench.tables [--rounds N] [--seconds N] [--clients N] [--scale N] [--out FOLDER]

Each workload runs on a heap and on a mip copy of pgbench's tables, in turn, within every round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pgmip.testing import Cluster

from .rounds import METHODS, arguments, load, machine, pgbench, rate, run_rounds, write

ROWS = 400_000  # of a bulk load


def bulk_file(cluster: Cluster) -> Path:
    return cluster.data_directory / "rows.copy"


def load_rows(cluster: Cluster) -> None:
    for method in METHODS:
        cluster.run_sql("CREATE TABLE rows (id int PRIMARY KEY, n int, t text)", dbname=method)
        cluster.run_sql("VACUUM ANALYZE", dbname=method)
    rows = f"SELECT i, i, repeat('x', 60) FROM generate_series(1, {ROWS}) i"
    cluster.run_sql(f"COPY ({rows}) TO '{bulk_file(cluster)}'")


def script_rate(cluster: Cluster, method: str, args: argparse.Namespace, name: str) -> float:
    """Transactions per second of one of pgbench's own scripts."""
    cluster.run_sql("CHECKPOINT")
    options = ("-n", "-j", "2", "-M", "prepared", "-c", str(args.clients), "-T", str(args.seconds), "-b", name)
    return rate(pgbench(cluster, method, *options))


def statement_rate(cluster: Cluster, method: str, statement: str, before: tuple[str, ...] = ()) -> float:
    """Statements per second, `before` not counted."""
    for preparation in before:
        cluster.run_sql(preparation, dbname=method)
    cluster.run_sql("CHECKPOINT")
    began = time.perf_counter()
    cluster.run_sql(statement, dbname=method)
    return 1 / (time.perf_counter() - began)


def workloads(cluster: Cluster, args: argparse.Namespace) -> dict[str, Callable[[str], float]]:
    def script(name: str) -> Callable[[str], float]:
        return lambda method: script_rate(cluster, method, args, name)

    def statement(sql: str, *before: str) -> Callable[[str], float]:
        return lambda method: statement_rate(cluster, method, sql, before)

    copy = f"COPY rows FROM '{bulk_file(cluster)}'"
    return {
        "TPC-B": script("tpcb-like"),
        "read-only by key": script("select-only"),
        "sum over a whole table": statement("SELECT sum(abalance) FROM pgbench_accounts"),
        "COPY into an indexed table": statement(copy, "TRUNCATE rows"),
        "update of every row": statement("UPDATE rows SET n = n + 1", "TRUNCATE rows", copy, "VACUUM rows"),
    }


def main() -> None:
    args = arguments(__doc__, rounds=7, seconds=4)
    settings = {"shared_buffers": "1GB", "max_wal_size": "8GB", "autovacuum": "off"}
    with Cluster("bench", settings=settings, fsync=True) as cluster:
        load(cluster, args.scale)
        load_rows(cluster)
        works = workloads(cluster, args)
        cases = {f"{work}, {method}": partial(run, method) for work, run in works.items() for method in METHODS}
        rates = run_rounds(cases, args.rounds, lambda case: cases[case](), "a second")
        what = (
            f"{args.rounds} interleaved rounds; pgbench: {args.seconds} s, {args.clients} clients, scale {args.scale}, "
            f"prepared statements; loads of {ROWS} rows; {machine()}"
        )
    bases = {f"{work}, mip": f"{work}, heap" for work in works}
    write(args.out, "tables", "Tables that have opted in", what, rates, bases, "per second")


if __name__ == "__main__":
    main()
