"""Conflicts between random writesets, against keys worked out in Python from what row triggers saw."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

# Not every server knows collations by which "a" = "A"; then names are ordinary ones.
COLLATION = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
ORDINARY = 'CREATE COLLATION ci FROM "C"'
SCHEMA = """
CREATE TABLE parent (id bigint PRIMARY KEY, code numeric UNIQUE, name text COLLATE ci UNIQUE, v int) USING mip;
CREATE TABLE child (id int PRIMARY KEY, p smallint REFERENCES parent ON DELETE CASCADE,
    code int REFERENCES parent (code) ON DELETE CASCADE ON UPDATE CASCADE, v int) USING mip;
CREATE TABLE part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (MINVALUE) TO (4) USING mip;
CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (4) TO (MAXVALUE) USING mip;
CREATE TABLE part_ref (id int PRIMARY KEY, part bigint REFERENCES part, low int REFERENCES part_low) USING mip;
CREATE TABLE nulls (id int PRIMARY KEY, a int, b float8, UNIQUE NULLS NOT DISTINCT (a, b)) USING mip;
CREATE TABLE partial (id int PRIMARY KEY, owner int, live boolean, name text) USING mip;
CREATE UNIQUE INDEX ON partial (owner) WHERE live;
CREATE UNIQUE INDEX ON partial (lower(name));
CREATE TABLE loose (a float8, b json) USING mip;
CREATE TABLE ranges (id int4range PRIMARY KEY, at int, EXCLUDE USING btree (at WITH =)) USING mip;
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TABLE moods (m mood PRIMARY KEY, v int) USING mip;
CREATE TABLE mooded (id int PRIMARY KEY, m mood REFERENCES moods) USING mip;
CREATE TABLE pair (p point, b box, v int, EXCLUDE USING gist (b WITH &&)) USING mip;
CREATE TABLE seen (n bigint GENERATED ALWAYS AS IDENTITY, tab text, op text, old jsonb, new jsonb) USING heap;
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO seen (tab, op, old, new) VALUES (TG_TABLE_NAME, left(TG_OP, 1),
        CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN to_jsonb(OLD) END,
        CASE WHEN TG_OP IN ('UPDATE', 'INSERT') THEN to_jsonb(NEW) END);
    RETURN NULL;
END $$;
DO $$
DECLARE t regclass;
BEGIN
    FOR t IN SELECT oid FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'seen'
    LOOP
        EXECUTE format('CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON %s
            FOR EACH ROW EXECUTE FUNCTION see()', t);
        EXECUTE format('CREATE TRIGGER b AFTER TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION see()', t);
    END LOOP;
END $$;
INSERT INTO parent SELECT i, i, 'n' || i FROM generate_series(1, 6) i;
INSERT INTO child SELECT i, i, i FROM generate_series(1, 4) i;
INSERT INTO part SELECT i FROM generate_series(1, 6) i;
INSERT INTO part_ref SELECT i, i, i FROM generate_series(1, 3) i;
INSERT INTO nulls VALUES (1, 1, 1), (2, 2, NULL), (3, NULL, 0);
INSERT INTO partial VALUES (1, 1, true, 'A'), (2, 1, false, 'b'), (3, 2, true, NULL);
INSERT INTO loose VALUES (1, '{"a": 1}'), (1, '{"a": 1}'), (0, NULL);
INSERT INTO ranges VALUES ('[1,2)', 1), ('[2,3)', 2);
INSERT INTO moods VALUES ('low'), ('high');
INSERT INTO mooded VALUES (1, 'low');
TRUNCATE seen
"""

PARENTS = {"part_low": "part", "part_high": "part"}

# Unique keys: table, columns, those that are null-safe, predicate, expression. The identity is the first one.
UNIQUE: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "parent": [("parent", ("id",)), ("parent", ("code",)), ("parent", ("name",))],
    "child": [("child", ("id",))],
    "part_low": [("part", ("id",))],
    "part_high": [("part", ("id",))],
    "part_ref": [("part_ref", ("id",))],
    "nulls": [("nulls", ("id",)), ("nulls", ("a", "b"))],
    "partial": [("partial", ("id",)), ("partial", ("owner",)), ("partial", ("lower",))],
    "ranges": [("ranges", ("id",))],
    "moods": [("moods", ("m",))],
    "mooded": [("mooded", ("id",))],
    "loose": [],
    "pair": [],
}
FOREIGN = {
    "child": [("p", ("parent", ("id",))), ("code", ("parent", ("code",)))],
    "part_ref": [("part", ("part", ("id",))), ("low", ("part", ("id",)))],
    "mooded": [("m", ("moods", ("m",)))],
}
EXCLUSION = {"ranges": ("at",), "pair": ("b",)}
CONFLICT = {("K", "K"), ("K", "N"), ("N", "K"), ("K", "R"), ("R", "K"), ("N", "N")}

Row = dict[str, Any]
Key = tuple[Any, ...]


NAMES: dict[str, Callable[[str], str]] = {"equal": str}


def normal(column: str, value: Any) -> Any:
    if column == "name" and value is not None:
        return NAMES["equal"](value)
    if isinstance(value, int | Decimal | float) and not isinstance(value, bool):
        return Decimal(value).normalize() + 0
    return value


def value_of(table: str, columns: tuple[str, ...], row: Row) -> tuple[Any, ...] | None:
    """The key that a row has; None: it has none."""
    if columns == ("lower",):
        values: tuple[Any, ...] = (row["name"] and row["name"].lower(),)
    else:
        values = tuple(normal(column if table == "parent" else "", row[column]) for column in columns)
    if columns == ("owner",) and not row["live"]:
        return None
    if columns != ("a", "b") and None in values:
        return None
    return values


def claims(changes: list[tuple[str, str, Row | None, Row | None]]) -> set[tuple[Key, str]]:
    """The keys of changes, with their modes."""
    found: set[tuple[Key, str]] = set()
    for table, op, old, new in changes:
        found.add(((table,), "K" if op == "T" else "R"))
        if table in PARENTS:
            found.add(((PARENTS[table],), "R"))
        if op == "T":
            continue
        for i, (owner, columns) in enumerate(UNIQUE[table]):
            before = value_of(owner, columns, old) if old else None
            after = value_of(owner, columns, new) if new else None
            if op == "U" and before == after:
                if i == 0:
                    found.add(((owner, columns, before), "N"))
                continue
            found |= {((owner, columns, value), "K") for value in (before, after) if value is not None}
        for column, (owner, columns) in FOREIGN.get(table, []):
            if new and new[column] is not None and (old is None or old[column] != new[column]):
                found.add(((owner, columns, (normal("", new[column]),)), "R"))
        for column in EXCLUSION.get(table, ()):
            before, after = old and old[column], new and new[column]
            if before != after:
                found.add(((table,), "K"))
        if not UNIQUE[table] and old:
            found.add(((table, "row", json.dumps(old, default=str)), "K"))
    return found


def conflict(a: set[tuple[Key, str]], b: set[tuple[Key, str]]) -> bool:
    return any(key == other and (mode, theirs) in CONFLICT for (key, mode), (other, theirs) in itertools.product(a, b))


def statement(draw: random.Random) -> str:
    i, j, v = draw.randint(1, 7), draw.randint(1, 9), draw.randint(1, 99)
    k = draw.randint(1, 5)
    return draw.choice(
        [
            f"UPDATE parent SET v = {v} WHERE id = {i}",
            f"UPDATE parent SET code = {j}.{draw.choice(['0', '00', '5'])} WHERE id = {i}",
            f"UPDATE parent SET name = '{draw.choice('nN')}{j}' WHERE id = {i}",
            f"DELETE FROM parent WHERE id = {i}",
            f"INSERT INTO parent VALUES ({j}, {j + draw.choice([0, 10])}, '{draw.choice('nN')}{j}')",
            f"UPDATE child SET v = {v} WHERE id = {k}",
            f"UPDATE child SET p = {i} WHERE id = {k}",
            f"INSERT INTO child VALUES ({j}, {i}, {draw.choice(['NULL', i])})",
            f"DELETE FROM child WHERE id = {k}",
            f"UPDATE part SET id = {j} WHERE id = {i}",
            f"UPDATE part SET v = {v} WHERE id = {i}",
            f"INSERT INTO part VALUES ({j})",
            f"DELETE FROM part WHERE id = {i}",
            f"INSERT INTO part_ref VALUES ({j}, {i}, {draw.choice(['NULL', '1'])})",
            f"UPDATE nulls SET a = {draw.choice(['NULL', '1', '2'])} WHERE id = {k}",
            f"UPDATE nulls SET b = {draw.choice(['NULL', '0', '-0.0', '1'])} WHERE id = {k}",
            f"INSERT INTO nulls VALUES ({j}, {draw.choice(['NULL', '1'])}, {draw.choice(['NULL', '-0.0'])})",
            f"UPDATE partial SET live = NOT live WHERE id = {k}",
            f"UPDATE partial SET owner = {k} WHERE id = {draw.randint(1, 3)}",
            f"INSERT INTO partial VALUES ({j}, {k}, {draw.choice(['true', 'false'])}, '{draw.choice('aAbB')}')",
            f"UPDATE partial SET name = '{draw.choice('abAB')}' WHERE id = {k}",
            f"INSERT INTO loose VALUES ({k}, '{{}}')",
            "DELETE FROM loose WHERE ctid = (SELECT ctid FROM loose LIMIT 1)",
            f"UPDATE loose SET a = {k} WHERE a = {draw.choice([0, 1])}",
            f"UPDATE ranges SET at = {j} WHERE id = '[{draw.randint(1, 2)},3)' OR id = '[1,2)'",
            f"INSERT INTO ranges VALUES ('[{j},{j + 1})', {v})",
            f"DELETE FROM ranges WHERE at = {k}",
            f"UPDATE moods SET v = {v} WHERE m = '{draw.choice(['low', 'high'])}'",
            "DELETE FROM moods WHERE m = 'high'",
            f"INSERT INTO mooded VALUES ({j}, '{draw.choice(['low', 'high'])}')",
            f"INSERT INTO pair VALUES ('({i},1)', '(({i},{i}),({i},{j}))')",
            "TRUNCATE child",
            "TRUNCATE loose",
        ]
    )


def run(conn: psycopg.Connection[Any], draw: random.Random) -> tuple[bytes, set[tuple[Key, str]]]:
    """A random transaction: its writeset, and its keys as worked out here."""
    conn.execute("BEGIN; SET LOCAL mip.capture_writeset = on")
    for _ in range(draw.randint(1, 3)):
        conn.execute("SAVEPOINT s")
        try:
            conn.execute(statement(draw))  # type: ignore[arg-type]
        except psycopg.errors.IntegrityError:
            conn.execute("ROLLBACK TO s")
    writeset = conn.execute("SELECT mip.writeset()").fetchone()
    assert writeset
    seen = conn.execute("SELECT tab, op, old::text, new::text FROM seen ORDER BY n").fetchall()
    conn.execute("ROLLBACK")

    def row(text: str | None) -> Row | None:
        return text and json.loads(text, parse_float=Decimal)

    return writeset[0], claims([(tab, op, row(old), row(new)) for tab, op, old, new in seen])


@pytest.fixture(scope="module")
def conn() -> Iterator[psycopg.Connection[Any]]:
    cluster = Cluster("writesets", settings={"mip.site_name": "writesets", "jit": False})
    with cluster, psycopg.connect(cluster.conninfo(), autocommit=True) as conn:
        conn.execute("CREATE EXTENSION pg_mip")
        try:
            conn.execute(COLLATION)
            NAMES["equal"] = str.lower
        except psycopg.errors.FeatureNotSupported:
            conn.execute(ORDINARY)
        conn.execute(SCHEMA)
        yield conn


@pytest.mark.parametrize("seed", range(8))
def test_conflicts_as_worked_out(conn: psycopg.Connection[Any], seed: int) -> None:
    draw = random.Random(seed)
    runs = [run(conn, draw) for _ in range(16)]
    for (w, keys), (other, theirs) in itertools.combinations_with_replacement(runs, 2):
        answer = conn.execute("SELECT mip.writeset_conflicts(%s, %s)", (w, other)).fetchone()
        assert answer == (conflict(keys, theirs),), (sorted(map(str, keys)), sorted(map(str, theirs)))


@pytest.mark.parametrize("seed", range(2))
def test_a_compacted_one_conflicts_with_what_its_parts_do(conn: psycopg.Connection[Any], seed: int) -> None:
    draw = random.Random(seed + 1000)
    runs = [run(conn, draw)[0] for _ in range(12)]
    for a, b, c in itertools.combinations(runs, 3):
        row = conn.execute(
            """SELECT mip.writeset_conflicts(mip.writeset_compact(%(a)s, %(b)s), %(c)s),
                mip.writeset_conflicts(%(c)s, mip.writeset_compact(%(a)s, %(b)s)),
                mip.writeset_conflicts(%(a)s, %(c)s) OR mip.writeset_conflicts(%(b)s, %(c)s)""",
            {"a": a, "b": b, "c": c},
        ).fetchone()
        assert row in ((True, True, True), (False, False, False))
