"""Statements as SQL, and what they do to a table in memory: r (k int PRIMARY KEY, v int), r (v) has an index, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Table = dict[int, int]
Answer = list[tuple[Any, ...]]
KEYS = 4


class Violation(Exception):
    """Of the primary key."""


@dataclass(frozen=True)
class Statement:
    sql: str
    serially: Callable[[Table], Answer]  # changes the table


def _insert(table: Table, k: int, v: int) -> None:
    if k in table:
        raise Violation
    table[k] = v


def _read_key(rng: random.Random) -> Statement:
    k = rng.randrange(KEYS)
    lock = rng.choice(("", "", "", " FOR UPDATE", " FOR SHARE", " FOR KEY SHARE"))
    return Statement(
        f"SELECT v FROM r WHERE k = {k}{lock}", lambda table: [(table[k],)] if k in table else []
    )


def _read_range(rng: random.Random) -> Statement:
    low = rng.randrange(KEYS)
    high = low + rng.randrange(KEYS)
    return Statement(
        f"SELECT k, v FROM r WHERE k BETWEEN {low} AND {high} ORDER BY k",
        lambda table: sorted((k, v) for k, v in table.items() if low <= k <= high),
    )


def _read_keys(rng: random.Random) -> Statement:
    """An index has all that it needs."""
    low = rng.randrange(KEYS)
    return Statement(
        f"SELECT k FROM r WHERE k >= {low} ORDER BY k", lambda table: sorted((k,) for k in table if k >= low)
    )


def _read_value(rng: random.Random) -> Statement:
    x = rng.randrange(3)
    return Statement(
        f"SELECT k FROM r WHERE v = {x} ORDER BY k", lambda table: sorted((k,) for k, v in table.items() if v == x)
    )


def _count_value(rng: random.Random) -> Statement:
    x = rng.randrange(3)
    return Statement(
        f"SELECT count(*) FROM r WHERE v = {x}", lambda table: [(sum(v == x for v in table.values()),)]
    )


def _read_all(rng: random.Random) -> Statement:
    source = rng.choice(("r", "r", "r TABLESAMPLE SYSTEM (100)", "r TABLESAMPLE BERNOULLI (100)",
                         "r WHERE ctid >= '(0,0)'", "r WHERE ctid = ANY (ARRAY(SELECT ctid FROM r))"))  # fmt: skip
    return Statement(
        f"SELECT count(*), coalesce(sum(v), 0) FROM {source}", lambda table: [(len(table), sum(table.values()))]
    )


def _add(rng: random.Random) -> Statement:
    k, d = rng.randrange(KEYS), rng.randint(1, 2)

    def serially(table: Table) -> Answer:
        if k not in table:
            return []
        table[k] += d
        return [(table[k],)]

    return Statement(f"UPDATE r SET v = v + {d} WHERE k = {k} RETURNING v", serially)


def blind(rng: random.Random, k: int, x: int | None = None) -> Statement:
    """A new value that depends on nothing."""
    x = rng.randrange(3) if x is None else x

    def serially(table: Table) -> Answer:
        if k not in table:
            return []
        table[k] = x
        return [(k,)]

    return Statement(f"UPDATE r SET v = {x} WHERE k = {k} RETURNING k", serially)


def _set(rng: random.Random) -> Statement:
    return blind(rng, rng.randrange(KEYS))


def _set_sum(rng: random.Random) -> Statement:
    k = rng.randrange(KEYS)

    def serially(table: Table) -> Answer:
        if k not in table:
            return []
        table[k] = sum(table.values()) % 3
        return [(table[k],)]

    return Statement(f"UPDATE r SET v = (SELECT sum(v) FROM r) % 3 WHERE k = {k} RETURNING v", serially)


def _set_where(rng: random.Random) -> Statement:
    x, y = rng.randrange(3), rng.randrange(3)

    def serially(table: Table) -> Answer:
        keys = sorted(k for k, v in table.items() if v == x)
        table.update(dict.fromkeys(keys, y))
        return [(len(keys),)]

    return Statement(
        f"WITH u AS (UPDATE r SET v = {y} WHERE v = {x} RETURNING k) SELECT count(*) FROM u", serially
    )


def _move(rng: random.Random) -> Statement:
    k, to = rng.randrange(KEYS), rng.randrange(2 * KEYS)

    def serially(table: Table) -> Answer:
        if k not in table:
            return []
        v = table.pop(k)
        _insert(table, to, v)
        return [(v,)]

    return Statement(f"UPDATE r SET k = {to} WHERE k = {k} RETURNING v", serially)


def _insert_row(rng: random.Random) -> Statement:
    k, v = rng.randrange(2 * KEYS), rng.randrange(3)

    def serially(table: Table) -> Answer:
        _insert(table, k, v)
        return [(k,)]

    return Statement(f"INSERT INTO r VALUES ({k}, {v}) RETURNING k", serially)


def _insert_unless(rng: random.Random) -> Statement:
    k, x = rng.randrange(2 * KEYS), rng.randrange(3)

    def serially(table: Table) -> Answer:
        if x in table.values():
            return []
        _insert(table, k, x)
        return [(k,)]

    return Statement(
        f"INSERT INTO r SELECT {k}, {x} WHERE NOT EXISTS (SELECT FROM r WHERE v = {x}) RETURNING k", serially
    )


def _delete(rng: random.Random) -> Statement:
    k = rng.randrange(KEYS)
    return Statement(
        f"DELETE FROM r WHERE k = {k} RETURNING v", lambda table: [(table.pop(k),)] if k in table else []
    )


READS = (_read_key, _read_key, _read_range, _read_keys, _read_value, _count_value, _read_all)
WRITES = (_add, _set, _set, _set_sum, _set_where, _move, _insert_row, _insert_unless, _delete)


def read(rng: random.Random) -> Statement:
    return rng.choice(READS)(rng)


def wide(rng: random.Random) -> Statement:
    """A read of much."""
    return rng.choice((_read_key, _read_range, _read_value, _count_value, _read_all))(rng)


def write(rng: random.Random) -> Statement:
    return rng.choice(WRITES)(rng)
