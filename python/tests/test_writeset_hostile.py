"""Bytes that are no writesets, or not any more, through SQL: they are refused, and nothing else happens."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

SCHEMA = """
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TABLE every (id int PRIMARY KEY, a bool, b smallint, c bigint, d real, e float8, f numeric, g text, h bytea,
    i date, j time, k timetz, l timestamptz, m interval, n uuid, o jsonb, p int[], q mood, r inet, s int4range,
    t "char", u name, v money, w xml, x bit(3), y point, z regclass) USING mip;
CREATE TABLE loose (a text, b float8) USING mip;
"""
CHANGES = """
INSERT INTO every VALUES (1, true, 1, 1, 1, 1, 1.5, 'text', '\\x00ff', '2000-01-01', '10:00', '10:00+1',
    '2000-01-01 10:00+0', '1 day', '00000000-0000-0000-0000-000000000001', '{"a": 1}', '{1,NULL}', 'low', '10.0.0.1',
    '[1,2)', 'c', 'name', '1', NULL, B'101', '(1,2)', 'every');
INSERT INTO every VALUES (2);
UPDATE every SET g = 'changed', c = NULL, i = 'infinity' WHERE id = 1;
UPDATE every SET id = 3 WHERE id = 2;
DELETE FROM every WHERE id = 3;
INSERT INTO loose VALUES ('a', 1), (NULL, NULL);
DELETE FROM loose WHERE a = 'a'
"""
HEADER, TRAILER = 72, 4
TABLE = [0] * 256
for n in range(256):
    crc = n
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    TABLE[n] = crc


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def fnv(data: bytes) -> int:
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def with_fingerprints(data: bytearray) -> None:
    """Writes the right ones, as far as there are relations to be found."""
    (keys, relations) = struct.unpack_from("<II", data, 56)
    at = HEADER + 9 * keys
    for _ in range(relations):
        start = at = at + 4

        def string(at: int) -> int:
            length, at = varint(data, at)
            return at + length

        at = string(string(at + 1))
        columns, at = varint(data, at)
        for _ in range(columns):
            at = string(string(at + 1))
        struct.pack_into("<Q", data, at, fnv(data[start:at]))
        at += 8


def made_whole(data: bytearray) -> bytes:
    """With the right length and checksum, so that the rest is looked at."""
    if len(data) < HEADER + TRAILER:
        return bytes(data)
    with contextlib.suppress(IndexError, struct.error):
        with_fingerprints(data)
    data[0:6] = b"MIPW\x01\x00"
    struct.pack_into("<Q", data, 16, len(data))
    struct.pack_into("<I", data, len(data) - TRAILER, crc32c(data[:-TRAILER]))
    return bytes(data)


def to_varint(value: int) -> bytes:
    more = b""
    while value >= 0x80:
        more += bytes([value & 0x7F | 0x80])
        value >>= 7
    return more + bytes([value])


def joined(*writesets: bytes) -> bytes:
    """Their changes, each with its own relations, without keys: as somebody may put them together."""
    counts, relations, changes, r, c = [0] * 4, 0, 0, b"", b""
    for w in writesets:
        keys, here, length_r, length_c = struct.unpack_from("<4I", w, 56)
        counts = [a + b for a, b in zip(counts, struct.unpack_from("<4I", w, 40), strict=True)]
        at = HEADER + 9 * keys
        r += w[at : at + length_r]
        at += length_r
        end = at + length_c
        while at < end:
            op, at = w[at], at + 1
            if op & 0x80:
                _, at = varint(w, at)
            relation, at = varint(w, at)
            length, at = varint(w, at)
            c += bytes([op & 0x7F]) + to_varint(relation + relations) + to_varint(length) + w[at : at + length]
            at, changes = at + length, changes + 1
        relations += here
    header = writesets[0][:24] + struct.pack("<QQ4I4I", 1, changes, *counts, 0, relations, len(r), len(c))
    return made_whole(bytearray(header + r + c + bytes(TRAILER)))


def mutated(draw: random.Random, writeset: bytes) -> bytes:
    data = bytearray(writeset)
    for _ in range(draw.randint(1, 4)):
        at, kind = draw.randrange(len(data)), draw.randrange(6)
        if kind < 2:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            data[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 3:
            length = draw.randint(1, 8)
            data[at : at + length] = data[draw.randrange(len(data)) :][:length]
        else:
            removed = data[at : at + draw.randint(1, 8)] if kind == 4 else b""
            del data[at : at + len(removed)]
            added = bytes(draw.randrange(256) for _ in range(draw.randint(1, 8))) if kind == 5 else b""
            data[at:at] = added
            part = draw.choice([64, 68, 68])  # R, C
            if len(data) > HEADER:
                (length,) = struct.unpack_from("<I", data, part)
                struct.pack_into("<I", data, part, (length + len(added) - len(removed)) % 2**32)
    return made_whole(data) if draw.random() < 0.95 else bytes(data)


@pytest.fixture(scope="module")
def conn() -> Iterator[psycopg.Connection[Any]]:
    cluster = Cluster("hostile", settings={"mip.site_name": "hostile", "jit": False})
    with cluster, psycopg.connect(cluster.conninfo(), autocommit=True) as conn:
        conn.execute("CREATE EXTENSION pg_mip")
        conn.execute(SCHEMA)
        yield conn


def captured(conn: psycopg.Connection[Any], sql: str) -> bytes:
    """The writeset of a transaction that is rolled back."""
    conn.execute("BEGIN; SET LOCAL mip.capture_writeset = on")
    conn.execute(sql)  # type: ignore[arg-type]
    row = conn.execute("SELECT mip.writeset()").fetchone()
    conn.execute("ROLLBACK")
    assert row
    return row[0]


@pytest.fixture(scope="module")
def writeset(conn: psycopg.Connection[Any]) -> bytes:
    return captured(conn, CHANGES)


READERS = [
    "SELECT mip.writeset_info(%(w)s)",
    "SELECT count(*) FROM mip.writeset_changes(%(w)s)",
    "SELECT mip.writeset_conflicts(%(w)s, %(good)s), mip.writeset_conflicts(%(good)s, %(w)s)",
    "SELECT mip.writeset_compact(%(good)s, %(w)s, %(w)s)",
]
APPLY = "SELECT mip.writeset_apply(%(w)s)"


def answer(conn: psycopg.Connection[Any], sql: str, w: bytes, good: bytes) -> str:
    """The SQLSTATE that it comes to; what is done is undone."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(sql, {"w": w, "good": good})  # type: ignore[arg-type]
    except psycopg.Error as error:
        return error.sqlstate or "no answer"
    return "00000"


def test_each_bit_counts(conn: psycopg.Connection[Any], writeset: bytes) -> None:
    count = conn.execute(
        """CREATE TEMPORARY TABLE found (state text);
        CREATE FUNCTION pg_temp.flip(w bytea, sql text) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            FOR i IN 0 .. length(w) * 8 - 1 LOOP
                BEGIN
                    EXECUTE sql USING set_bit(w, i, 1 - get_bit(w, i));
                    INSERT INTO found VALUES ('00000');
                EXCEPTION WHEN OTHERS THEN
                    INSERT INTO found VALUES (SQLSTATE);
                END;
            END LOOP;
        END $$"""
    )
    for sql in ("SELECT mip.writeset_info($1)", "SELECT mip.writeset_apply($1)"):
        conn.execute("SELECT pg_temp.flip(%s, %s)", (writeset, sql))
    count = conn.execute("SELECT state, count(*) FROM found GROUP BY state").fetchall()
    assert count == [("22P03", 2 * 8 * len(writeset))]


def test_each_length_counts(conn: psycopg.Connection[Any], writeset: bytes) -> None:
    for length in range(len(writeset)):
        assert answer(conn, READERS[0], writeset[:length], writeset) == "22P03"
    assert answer(conn, READERS[0], writeset + b"\0", writeset) == "22P03"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_damaged_on_purpose(conn: psycopg.Connection[Any], writeset: bytes, seed: int) -> None:
    draw = random.Random(seed)
    taken = 0
    for _ in range(400):
        w = mutated(draw, writeset)
        states = {answer(conn, sql, w, writeset) for sql in READERS}
        # one of another encoding is one, but goes with no other one
        assert states <= {"00000", "22P03", "0A000"}, (states, w.hex())
        state = answer(conn, APPLY, w, writeset)
        # of a writeset: rows, tables, columns or rights that are not there, lengths, keys and constraints; and a
        # regclass may name what is not there
        told = {"00000", "22P03", "22001", "22026", "MP020", "MP021", "3F000"}
        assert state in told or state[:2] in {"23", "42"}, (state, w.hex())
        assert state == "22P03" or "00000" in states
        taken += "00000" in states
    assert taken > 20  # most are refused; were all, nothing would be looked at


def test_one_table_as_two_relations(conn: psycopg.Connection[Any]) -> None:
    """What comes as one of them is there for the other; it is truncated once, as the one table that it is."""
    taken = {}
    conn.execute("CREATE TABLE two (id int PRIMARY KEY, k int NOT NULL UNIQUE, v text) USING mip")
    for name, identity, sql in (
        ("insert", "DEFAULT", "INSERT INTO two VALUES (1, 1, 'a'), (2, 2, 'b')"),
        ("update", "USING INDEX two_k_key", "INSERT INTO two VALUES (1, 1, 'a'); UPDATE two SET v = 'c' WHERE k = 1"),
        ("delete", "FULL", "INSERT INTO two VALUES (2, 2, 'b'); DELETE FROM two"),
        ("truncate", "NOTHING", "TRUNCATE two"),
    ):
        conn.execute(f"ALTER TABLE two REPLICA IDENTITY {identity}")  # type: ignore[arg-type]
        conn.execute("BEGIN; SET LOCAL mip.capture_writeset = on")
        statements = sql.split("; ")
        for statement in statements[:-1]:
            conn.execute(statement)  # type: ignore[arg-type]
        after = conn.execute("SELECT (mip.writeset_info(mip.writeset())).last").fetchone()
        conn.execute(statements[-1])  # type: ignore[arg-type]
        row = conn.execute("SELECT mip.writeset(%s)", after).fetchone()
        conn.execute("ROLLBACK")
        assert row
        taken[name] = row[0]
    insert, update, delete, truncate = taken.values()
    empty = joined(insert, truncate)
    for w, expected in (
        (joined(insert, update), [(1, "c"), (2, "b")]),
        (joined(insert, update, delete), [(1, "c")]),
        (joined(insert, truncate, insert, update), [(1, "c"), (2, "b")]),
        (joined(empty, insert, truncate), []),
        (joined(insert, update, truncate, empty, insert, delete), [(1, "a")]),
    ):
        with conn.transaction(force_rollback=True):
            conn.execute(APPLY, {"w": w})
            assert conn.execute("SELECT id, v FROM two ORDER BY id").fetchall() == expected
    conn.execute("DROP TABLE two")


def test_one_table_as_many_relations(conn: psycopg.Connection[Any]) -> None:
    """Bytes that take a hundred times as many of memory, and a square of time, are not applied; compacted it is one."""
    conn.execute("CREATE TABLE many (a int) USING mip")
    one = captured(conn, "INSERT INTO many VALUES (1)")
    assert answer(conn, APPLY, joined(*[one] * 100), one) == "00000"
    many = joined(*[one] * 101)
    assert answer(conn, APPLY, many, one) == "54000"
    assert conn.execute("SELECT mip.writeset_apply(mip.writeset_compact(%s))", (many,)).fetchall() == [(101,)]
    conn.execute("ALTER TABLE many ADD b int")
    other = captured(conn, "INSERT INTO many VALUES (2)")
    conn.execute("DROP TABLE many")
    w = joined(*[one, other] * 3)
    compact = "SELECT (mip.writeset_info(mip.writeset_compact(%s))).relations"
    assert conn.execute(compact, (w,)).fetchall() == [(2,)]


def test_many_relations(conn: psycopg.Connection[Any]) -> None:
    """Their names are not compared with each other's."""
    count = 50_000
    names = [b"r%d" % i for i in range(count)]
    r = b"".join(b"\x01\0\0\0w\x01s" + to_varint(len(name)) + name + b"\0" + bytes(8) for name in names)
    c = b"".join(b"T" + to_varint(i) + b"\0" for i in range(count))
    header = b"MIPW" + struct.pack("<HBBQQQQ4I4I", 1, 0, 6, 1, 0, 1, count, 0, 0, 0, count, 0, count, len(r), len(c))
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL statement_timeout = '5s'")
        w = made_whole(bytearray(header + r + c + bytes(TRAILER)))
        compact = "SELECT truncated, relations FROM mip.writeset_info(mip.writeset_compact(%s))"
        assert conn.execute(compact, (w,)).fetchall() == [(count, count)]


def test_encodings(conn: psycopg.Connection[Any], writeset: bytes) -> None:
    """Those that this database cannot convert from are refused like those that nobody knows."""
    found = {}
    for encoding in range(256):
        data = bytearray(writeset)
        data[7] = encoding
        w = made_whole(data)
        states = {answer(conn, sql, w, writeset) for sql in [*READERS[:2], APPLY]}
        assert len(states) == 1, encoding
        found[encoding] = states.pop()
    assert set(found.values()) == {"00000", "22P03"}
    assert (found[6], found[7], found[8], found[255]) == ("00000", "22P03", "00000", "22P03")  # 7: MULE_INTERNAL


def test_booleans(conn: psycopg.Connection[Any]) -> None:
    """A byte that is neither 0 nor 1 would be neither true nor false where it gets into a table."""
    conn.execute("CREATE TABLE flags (b bool, c smallint) USING mip")
    good = captured(conn, "INSERT INTO flags VALUES (true, 77)")
    at = good.rindex(b"\x01\x4d\x00")
    for byte in range(256):
        data = bytearray(good)
        data[at] = byte
        expected = {"00000"} if byte < 2 else {"22P03"}
        assert {answer(conn, sql, made_whole(data), good) for sql in [*READERS, APPLY]} == expected, byte
    conn.execute("DROP TABLE flags")


def test_many_rows_around_truncate(conn: psycopg.Connection[Any]) -> None:
    """So many are inserted at once that the page with room for the next ones is kept: it is gone with the others."""
    conn.execute("CREATE TABLE emptied (id int PRIMARY KEY) USING mip")
    insert = captured(conn, "INSERT INTO emptied SELECT generate_series(1, 5000)")
    truncate = captured(conn, "TRUNCATE emptied")
    conn.execute(APPLY, {"w": joined(insert, truncate, insert, truncate, insert)})
    for scan in ("on", "off"):
        conn.execute(f"SET enable_seqscan = {scan}")  # type: ignore[arg-type]
        assert conn.execute("SELECT count(*), sum(id) FROM emptied WHERE id > 0").fetchall() == [(5000, 12502500)]
    conn.execute("RESET enable_seqscan; DROP TABLE emptied")
