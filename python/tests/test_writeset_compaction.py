"""Compacted writesets of random transactions do what the transactions have done, and no more than has to be."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

SCHEMA = """
CREATE TABLE ints (id int PRIMARY KEY, a int UNIQUE, b text, c int GENERATED ALWAYS AS (a + 1) STORED) USING mip;
CREATE TABLE texts (id text PRIMARY KEY, a int) USING mip;
CREATE TABLE numbers (id numeric PRIMARY KEY, a int) USING mip;
CREATE TABLE pairs (x int, y int, a int, PRIMARY KEY (x, y)) USING mip;
CREATE TABLE chosen (id int PRIMARY KEY, k int NOT NULL UNIQUE, a int) USING mip;
ALTER TABLE chosen REPLICA IDENTITY USING INDEX chosen_k_key;
CREATE TABLE loose (a int, b text) USING mip;
CREATE TABLE part (id int PRIMARY KEY, a int) PARTITION BY RANGE (id);
CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (MINVALUE) TO (3) USING mip;
CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (3) TO (MAXVALUE) USING mip;
"""
TABLES = ["ints", "texts", "numbers", "pairs", "chosen", "loose", "part"]
BASE = """
TRUNCATE ints, texts, numbers, pairs, chosen, loose, part;
INSERT INTO ints VALUES (1, 1, repeat('x', 3000)), (2, 2, NULL), (3, 3, 'c');
INSERT INTO texts VALUES ('1', 1), ('2', 2);
INSERT INTO numbers VALUES (1, 1), (2.0, 2);
INSERT INTO pairs VALUES (1, 1, 1), (1, 2, 2);
INSERT INTO chosen VALUES (1, 1, 1), (2, 2, 2);
INSERT INTO loose VALUES (1, 'a'), (1, 'a'), (2, NULL);
INSERT INTO part VALUES (1, 1), (4, 4);
"""


def statement(draw: random.Random, tables: list[str]) -> str:
    """Of one of these tables."""
    i, j, v = draw.randint(1, 4), draw.randint(1, 4), draw.randint(1, 99)
    zeros = draw.choice(["", ".0", ".00"])
    statements = [
        f"INSERT INTO ints VALUES ({i}, {v}, '{v}')",
        f"UPDATE ints SET id = {j} WHERE id = {i}",
        f"UPDATE ints SET b = '{v}' WHERE id = {i}",
        f"UPDATE ints SET a = {v} WHERE id = {i}",
        f"DELETE FROM ints WHERE id = {i}",
        f"INSERT INTO texts VALUES ('{i}', {v})",
        f"UPDATE texts SET id = '{j}' WHERE id = '{i}'",
        f"UPDATE texts SET a = {v} WHERE id = '{i}'",
        f"DELETE FROM texts WHERE id = '{i}'",
        f"INSERT INTO numbers VALUES ({i}{zeros}, {v})",
        f"UPDATE numbers SET id = {j}{zeros} WHERE id = {i}",
        f"UPDATE numbers SET a = {v} WHERE id = {i}",
        f"DELETE FROM numbers WHERE id = {i}",
        f"INSERT INTO pairs VALUES ({i % 2}, {j}, {v})",
        f"UPDATE pairs SET y = {j} WHERE y = {i}",
        f"UPDATE pairs SET x = 1 - x, a = {v} WHERE y = {i}",
        f"DELETE FROM pairs WHERE y = {i}",
        f"INSERT INTO chosen VALUES ({i}, {v}, {v})",
        f"UPDATE chosen SET id = {j} WHERE id = {i}",
        f"UPDATE chosen SET k = {j} WHERE id = {i}",
        f"DELETE FROM chosen WHERE k = {i}",
        f"INSERT INTO loose VALUES ({draw.randint(1, 2)}, 'a')",
        f"UPDATE loose SET a = {j} WHERE a = {i}",
        f"UPDATE loose SET b = NULL WHERE a = {i}",
        f"DELETE FROM loose WHERE ctid = (SELECT min(ctid) FROM loose WHERE a = {i})",
        f"UPDATE part SET id = {j} WHERE id = {i}",
        f"INSERT INTO part VALUES ({i}, {v})",
        f"UPDATE part SET a = {v} WHERE id = {i}",
        f"DELETE FROM part WHERE id = {i}",
        "UPDATE ints SET a = a + 100",
        # two rows take each other's place
        "UPDATE ints SET id = 9 WHERE id = 1; UPDATE ints SET id = 1 WHERE id = 2; UPDATE ints SET id = 2 WHERE id = 9",
        "UPDATE numbers SET id = 9 WHERE id = 1; UPDATE numbers SET id = 1.000 WHERE id = 2;"
        " UPDATE numbers SET id = 2 WHERE id = 9",
        "UPDATE chosen SET k = 9 WHERE k = 1; UPDATE chosen SET k = 1 WHERE k = 2; UPDATE chosen SET k = 2 WHERE k = 9",
        *[f"TRUNCATE {table}" for table in TABLES if draw.random() < 0.2],
    ]
    return draw.choice([s for s in statements if any(f" {table} " in f"{s} " for table in tables)])


class Database:
    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def value(self, sql: str, *arguments: Any) -> Any:
        row = self.conn.execute(sql, arguments or None).fetchone()  # type: ignore[arg-type]
        assert row
        return row[0]

    def rows(self) -> dict[str, list[Any]]:
        return {
            table: self.conn.execute(f"SELECT t::text FROM {table} t ORDER BY 1").fetchall()  # type: ignore[arg-type]
            for table in TABLES
        }

    def random_writes(self, draw: random.Random, tables: list[str]) -> None:
        for _ in range(draw.randint(1, 12)):
            self.conn.execute("SAVEPOINT s")
            try:
                self.conn.execute(statement(draw, tables))  # type: ignore[arg-type]
                if draw.random() < 0.1:
                    self.conn.execute("ROLLBACK TO s")
            except psycopg.errors.IntegrityError:
                self.conn.execute("ROLLBACK TO s")
            self.conn.execute("RELEASE s")

    def transactions(self, draw: random.Random) -> list[bytes]:
        """Writesets of some transactions, one after the other; of one, in increments."""
        self.conn.execute(BASE)
        found = []
        tables = draw.sample(TABLES, draw.randint(1, 3))
        for _ in range(draw.randint(1, 3)):
            last = 0
            self.conn.execute("BEGIN; SET LOCAL mip.capture_writeset = on")
            for _ in range(draw.randint(1, 2)):
                self.random_writes(draw, tables)
                found.append(self.value("SELECT mip.writeset(%s)", last))
                last = self.value("SELECT last FROM mip.writeset_info(%s)", found[-1])
            self.conn.execute("COMMIT")
        return found

    def applied(self, writesets: list[bytes]) -> dict[str, list[Any]]:
        self.conn.execute(BASE)
        with self.conn.transaction():
            for writeset in writesets:
                self.conn.execute("SELECT mip.writeset_apply(%s)", (writeset,))
        return self.rows()

    def changes(self, writeset: bytes) -> list[tuple[str, str, dict[str, str] | None, dict[str, str] | None]]:
        return self.conn.execute(
            "SELECT op::text, relation, identity, row FROM mip.writeset_changes(%s)", (writeset,)
        ).fetchall()


IDENTITY = {"ints": ["id"], "texts": ["id"], "numbers": ["id"], "pairs": ["x", "y"], "chosen": ["k"]}


def goes_on(changes: list[tuple[str, str, Any, Any]]) -> list[str]:
    """Changes of what another one here has left, but for updates that both change the identity: there must be none.
    Without a key who has left a row is anybody's guess."""
    left: dict[str, list[bool]] = {}  # was it left by an update that changed it?
    wrong = []
    for op, relation, identity, row in changes:
        if relation == "public.loose":
            continue
        columns = IDENTITY.get(relation.removeprefix("public."), list(identity or row or []))
        if relation.startswith("public.part"):
            columns = ["id"]
        after = {c: (row or {}).get(c, (identity or {}).get(c)) for c in columns}
        moves = op == "U" and after != identity
        if op in "UD":
            found = left.get(relation + json.dumps(identity, sort_keys=True), [])
            if found and not (moves and found[-1]):
                wrong.append(f"{op} {relation} {identity}")
            if found:
                found.pop()
        if op in "IU":
            left.setdefault(relation + json.dumps(after, sort_keys=True), []).append(moves)
    return wrong


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    cluster = Cluster("compaction", settings={"mip.site_name": "compaction", "jit": False})
    with cluster, psycopg.connect(cluster.conninfo(), autocommit=True) as conn:
        conn.execute("CREATE EXTENSION pg_mip")
        conn.execute(SCHEMA)
        yield Database(conn)


@pytest.mark.parametrize("seed", range(25))
def test_it_does_what_they_do(database: Database, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(5):
        writesets = database.transactions(draw)
        wanted = database.rows()
        compacted = database.value("SELECT mip.writeset_compact(VARIADIC %s)", writesets)
        changes = database.changes(compacted)
        told = [database.changes(w) for w in writesets], changes
        assert database.applied(writesets) == wanted, told
        assert database.applied([compacted]) == wanted, told
        assert goes_on(changes) == [], told
        again = database.value("SELECT mip.writeset_compact(%s)", compacted)
        assert len(database.changes(again)) <= len(changes)
        assert database.applied([again]) == wanted, told


def test_numbers_stay_where_they_ascend(database: Database) -> None:
    conn = database.conn
    conn.execute(BASE)
    conn.execute("BEGIN; SET LOCAL mip.capture_writeset = on")
    conn.execute("INSERT INTO texts VALUES ('n', 1); UPDATE texts SET a = 2 WHERE id = 'n'")
    conn.execute("DELETE FROM texts WHERE id = '1'")
    a = database.value("SELECT mip.writeset()")
    conn.execute("DELETE FROM texts WHERE id = 'n'")
    b = database.value("SELECT mip.writeset(3)")
    conn.execute("ROLLBACK")

    def numbers(*writesets: bytes) -> list[Any]:
        return conn.execute(
            """SELECT first, last, changes, array(SELECT number FROM mip.writeset_changes(c))
            FROM mip.writeset_compact(VARIADIC %s) c, mip.writeset_info(c)""",
            (list(writesets),),
        ).fetchall()

    assert numbers(a, b) == [(1, 4, 1, [3])]
    assert numbers(b, a) == [(1, 3, 3, [1, 2, 3])]
    assert numbers() == [(1, 0, 0, [])]


@pytest.mark.parametrize(
    ("table", "key", "steps", "left"),
    [
        ("ints", "id", [("1", "9"), ("9", "8")], 1),
        ("ints", "id", [("1", "9"), ("2", "1"), ("9", "2")], 3),
        ("ints", "id", [("1", "9"), ("9", "1")], 1),
        ("texts", "id", [("'1'", "'9'"), ("'9'", "'8'")], 1),
        # "1" and "1.0" are one identity, and two images: who knows who has taken it
        ("numbers", "id", [("1", "9"), ("9", "8")], 2),
        ("numbers", "id", [("1", "9"), ("2", "1.0"), ("9", "2")], 3),
        ("loose", "a", [("2", "9"), ("9", "8")], 1),
    ],
)
def test_moved_twice(database: Database, table: str, key: str, steps: list[tuple[str, str]], left: int) -> None:
    database.conn.execute(BASE)
    database.conn.execute("BEGIN; SET LOCAL mip.capture_writeset = on")
    for before, after in steps:
        database.conn.execute(f"UPDATE {table} SET {key} = {after} WHERE {key} = {before}")  # type: ignore[arg-type]
    writeset = database.value("SELECT mip.writeset_compact(mip.writeset())")
    database.conn.execute("COMMIT")
    wanted = database.rows()
    assert [op for op, *_ in database.changes(writeset)] == left * ["U"]
    assert database.applied([writeset]) == wanted
