"""Loads the population into a database, in parallel:

    python -m workload.load CONNINFO [--size tiny|small|large] [--items N] [--browsers N] [--seed N] [--workers N]

The database has to be empty; or it is one whose loading was interrupted, which then goes on. Every part is one
transaction that also notes in `loaded_part` that it is there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg
from psycopg import sql
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .population import SIZES, Part, Size, parts, rows

HERE = Path(__file__).parent
PAYMENT_TABLES = ("country", "cc_xacts")
NOTES = """
    CREATE TABLE IF NOT EXISTS loaded_from (items int, browsers int, seed int);
    CREATE TABLE IF NOT EXISTS loaded_part (part text PRIMARY KEY);
"""


def load(conninfo: str, size: Size, *, seed: int = 1, workers: int | None = None, quiet: bool = False) -> None:
    """Everything, from the tables to their keys and statistics.

    Exits with a message where the database has something else in it.
    """
    with psycopg.connect(conninfo, autocommit=True) as conn:
        if not _begin(conn, size, seed):
            return
        there = {name for (name,) in conn.execute("SELECT part FROM loaded_part").fetchall()}
        missing = [part for part in parts(size) if part.name not in there]
        with multiprocessing.get_context("spawn").Pool(workers or os.cpu_count()) as pool, _progress(quiet) as progress:
            done = progress.add_task(size.name, total=len(missing))
            for _ in pool.imap_unordered(partial(_load_part, conninfo, size, seed), missing):
                progress.advance(done)
        _finish(conn)


def load_payment(conninfo: str, store: str) -> None:
    """The payment site's tables, from those of a store that has been loaded. The store's stay where they are."""
    with psycopg.connect(conninfo, autocommit=True) as target, psycopg.connect(store) as source:
        for table in PAYMENT_TABLES:
            target.execute(_create(table))
            name = sql.Identifier(table)
            with (
                source.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(name)) as rows_from,
                target.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(name)) as rows_to,
            ):
                for data in rows_from:
                    rows_to.write(data)
        target.execute("ALTER TABLE country ADD PRIMARY KEY (co_id)")
        target.execute("ALTER TABLE cc_xacts ADD PRIMARY KEY (cx_o_id), ADD FOREIGN KEY (cx_co_id) REFERENCES country")
        target.execute("VACUUM ANALYZE")


def _create(table: str) -> bytes:
    """The statement of schema.sql that makes it."""
    schema = (HERE / "schema.sql").read_text()
    start = schema.index(f"CREATE TABLE {table} (")
    return schema[start : schema.index(";", start)].encode()


def _begin(conn: psycopg.Connection[tuple[object, ...]], size: Size, seed: int) -> bool:
    """Makes the tables, unless they are there. Whether anything is still to do."""
    with conn.transaction():
        conn.execute(NOTES)
        conn.execute("LOCK loaded_from")
        found = conn.execute("SELECT items, browsers, seed FROM loaded_from").fetchone()
        if found is None:
            conn.execute((HERE / "schema.sql").read_bytes())
            conn.execute("INSERT INTO loaded_from VALUES (%s, %s, %s)", (size.items, size.browsers, seed))
        elif found != (size.items, size.browsers, seed):
            sys.exit(f"the database holds another population (items, browsers, seed): {found}")
    return conn.execute("SELECT FROM pg_constraint WHERE conrelid = 'orders'::regclass").fetchone() is None


def _load_part(conninfo: str, size: Size, seed: int, part: Part) -> None:
    made = rows(size, seed, part)
    with psycopg.connect(conninfo) as conn:
        conn.execute("SET synchronous_commit = off")  # what a crash undoes is loaded again
        for table, lines in made.items():
            with conn.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))) as copy:
                copy.write("".join(lines))
        conn.execute("INSERT INTO loaded_part VALUES (%s)", (part.name,))


def _finish(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    with conn.transaction():
        conn.execute("SET LOCAL maintenance_work_mem = '512MB'")
        conn.execute((HERE / "keys.sql").read_bytes())
    conn.execute("VACUUM ANALYZE")


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    columns = (
        TextColumn("loading {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, disable=quiet) as progress:
        yield progress


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workload.load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("conninfo")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--items", type=int, help="instead of the size's")
    parser.add_argument("--browsers", type=int, help="instead of the size's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, help="default: as many as there are cores")
    args = parser.parse_args()
    size = SIZES[args.size]
    size = replace(size, items=args.items or size.items, browsers=args.browsers or size.browsers)
    load(args.conninfo, size, seed=args.seed, workers=args.workers)


if __name__ == "__main__":
    main()
