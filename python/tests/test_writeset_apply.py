"""Writesets applied to a copy of their database leave it as the transactions left theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
import pytest
from conftest import Clusters
from random_tables import SETUP, Table

pytestmark = pytest.mark.integration

Conn = psycopg.Connection[Any]
LEAVES = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'odd'::regnamespace"


@pytest.fixture
def databases(clusters: Clusters) -> Iterator[list[str]]:
    """Connection strings of two: what is made in the first the second gets, too."""
    store = clusters["store"]
    names = ["ws_here", "ws_there"]
    for name in names:
        store.run_sql(f"CREATE DATABASE {name}")
        store.run_sql("CREATE EXTENSION pg_mip", dbname=name)
    yield [store.conninfo(name) for name in names]
    for name in names:
        store.run_sql(f"DROP DATABASE {name} WITH (FORCE)")


def contents(conn: Conn) -> dict[str, list[str]]:
    """All rows of all tables, as text."""
    return {
        table: sorted(str(row) for (row,) in conn.execute(f"SELECT t::text FROM ONLY {table} t").fetchall())
        for (table,) in conn.execute(LEAVES).fetchall()
    }


def run(conn: Conn, statement: str) -> None:
    """In a savepoint: what a random statement may not do leaves nothing."""
    refused = psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ObjectNotInPrerequisiteState
    with contextlib.suppress(*refused), conn.transaction():
        conn.execute(statement.replace("%", "%%"), [], prepare=False)


def change(conn: Conn, tables: list[Table], random: Random) -> list[bytes]:
    """A random transaction; its writeset: as a whole, compacted, or in parts."""
    how = random.choice(["whole", "compact", "parts", "increments"])
    parts: list[bytes] = []
    last = 0
    with conn.transaction():
        conn.execute("SET LOCAL mip.capture_writeset = on")
        for _ in range(random.randint(1, 12)):
            if random.random() < 0.15:
                with conn.transaction(force_rollback=True):
                    run(conn, random.choice(tables).statement())
            run(conn, random.choice(tables).statement())
            if how == "increments":
                last = take(conn, parts, last, None)
        if how == "parts":
            before = -1
            while last != before:
                before, last = last, take(conn, parts, last, random.choice([300, 3000]))
        else:
            take(conn, parts, last, None)
        if how == "compact":
            compacted = conn.execute("SELECT mip.writeset_compact(%s)", parts).fetchone()
            assert compacted
            parts = [compacted[0]]
    return parts


def take(conn: Conn, parts: list[bytes], after: int, max_bytes: int | None) -> int:
    """One more part; the number of its last change."""
    row = conn.execute(
        "SELECT w, (mip.writeset_info(w)).last FROM mip.writeset(%s, %s) w", [after, max_bytes]
    ).fetchone()
    assert row
    parts.append(row[0])
    return int(row[1])


@pytest.mark.parametrize("seed", range(8))
def test_differential(databases: list[str], seed: int) -> None:
    random = Random(seed)
    with (
        psycopg.connect(databases[0], autocommit=True) as here,
        psycopg.connect(databases[1], autocommit=True) as there,
    ):
        tables = [Table(random, number, here.info.server_version >= 180000) for number in range(4)]
        for conn in (here, there):
            conn.execute(SETUP)
            for table in tables:
                conn.execute(table.ddl)
        if random.random() < 0.5:
            for (name,) in there.execute(LEAVES).fetchall():
                there.execute("SELECT mip.disable(%s::regclass)", [name])
        for _ in range(25):
            parts = change(here, tables, random)
            with there.transaction():
                for part in parts:
                    there.execute("SELECT mip.writeset_apply(%s)", [part])
            assert contents(there) == contents(here)
