"""Parts of a transaction that rolls back savepoints and truncates, applied one after another, make what it has made."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
import pytest
from conftest import Clusters

pytestmark = pytest.mark.integration

Conn = psycopg.Connection[Any]
SETUP = """
CREATE TABLE f (id int PRIMARY KEY, v text) USING mip;
CREATE TABLE t (id int PRIMARY KEY, v text) USING mip;
CREATE TABLE k (id int, v text) USING mip;
INSERT INTO f SELECT i, 'f' FROM generate_series(1, 20) i;
INSERT INTO t SELECT i, 't' FROM generate_series(1, 20) i;
INSERT INTO k SELECT i % 5, 'k' FROM generate_series(1, 20) i
"""


@pytest.fixture
def conn(clusters: Clusters) -> Iterator[Conn]:
    """A database of its own."""
    store = clusters["store"]
    store.run_sql("CREATE DATABASE ws_parts")
    store.run_sql("CREATE EXTENSION pg_mip", dbname="ws_parts")
    with psycopg.connect(store.conninfo("ws_parts"), autocommit=True) as conn:
        conn.execute(SETUP)
        yield conn
    store.run_sql("DROP DATABASE ws_parts WITH (FORCE)")


def contents(conn: Conn) -> dict[str, list[str]]:
    """All rows of all tables."""
    return {table: sorted(map(str, conn.execute(f"TABLE {table}").fetchall())) for table in "ftk"}


class Chain:
    """Parts, each behind the one before, as a sender takes them; begun again where that is refused."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self.parts: list[bytes] = []
        self.last = 0
        self.refused = 0

    def take(self, most: int | None) -> int:
        """One more; how many changes it has."""
        try:
            with self.conn.transaction():
                row = self.conn.execute("SELECT mip.writeset(%s, %s)", [self.last, most]).fetchone()
        except psycopg.Error as error:
            if error.sqlstate != "MP023":
                raise
            self.parts, self.last, self.refused = [], 0, self.refused + 1
            return 1
        assert row
        info = self.conn.execute("SELECT changes, last FROM mip.writeset_info(%s)", row).fetchone()
        assert info
        changes, self.last = info
        self.parts.append(row[0])
        return int(changes)


def statement(random: Random) -> str:
    """One that succeeds."""
    table, i = random.choice("ftk"), random.randint(1, 40)
    if random.random() < 0.15:
        return "TRUNCATE " + random.choice(["f", "t", "k", "f, t"])
    if random.random() < 0.3:
        return f"DELETE FROM {table} WHERE id = {i}"
    if random.random() < 0.3:
        return f"UPDATE {table} SET v = v || '!' WHERE id % 3 = {i % 3}"
    return f"INSERT INTO {table} VALUES ({i}, 'new') ON CONFLICT DO NOTHING"


def change(conn: Conn, random: Random, chain: Chain) -> None:
    """Statements, savepoints and parts at random; then the parts that are left."""
    savepoints: list[str] = []
    for step in range(random.randint(5, 40)):
        what = random.random()
        if what < 0.15:
            savepoints.append(f"s{step}")
            conn.execute(f"SAVEPOINT s{step}")
        elif what < 0.3 and savepoints:
            back = random.randrange(len(savepoints))
            conn.execute(f"ROLLBACK TO {savepoints[back]}")
            savepoints = savepoints[: back + 1]
        elif what < 0.5:
            chain.take(random.choice([1, 1, 200, 400, None]))
        else:
            conn.execute(statement(random))
    while chain.take(random.choice([300, None])):
        pass


def applied(conn: Conn, writesets: list[bytes]) -> dict[str, list[str]]:
    """What they make of the tables, which stay as they are."""
    with conn.transaction(force_rollback=True):
        for writeset in writesets:
            conn.execute("SELECT mip.writeset_apply(%s)", [writeset])
        return contents(conn)


def test_parts_beside_savepoints_and_truncate(conn: Conn) -> None:
    """[trap 2]"""
    refused = 0
    for seed in range(250):
        chain = Chain(conn)
        with conn.transaction(force_rollback=True):
            conn.execute("SET LOCAL mip.capture_writeset = on; SET LOCAL work_mem = 64")
            change(conn, Random(seed), chain)
            made = contents(conn)
        assert applied(conn, chain.parts) == made, f"seed {seed}"
        compacted = conn.execute("SELECT mip.writeset_compact(VARIADIC %s)", [chain.parts]).fetchone()
        assert compacted
        assert applied(conn, [compacted[0]]) == made, f"seed {seed}, compacted"
        refused += chain.refused
    assert refused > 50
