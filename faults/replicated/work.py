"""What transactions do. Each says so in a few words, which it leaves in `effect`, and which the auditor goes by."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

__all__ = ["EFFECT", "WORKS", "Connection", "Detail", "Isolation", "Nothing", "Work", "read_lists", "rows"]

ACCOUNTS, COUNTERS, NAMES, SEATS, PARENTS, GROUPS, TALLIES, DOCUMENTS = 30, 8, 40, 20, 12, 6, 4, 10
LISTS, SECONDS_OF_A_LIST = 4, 10

EFFECT = "INSERT INTO effect VALUES (%s, %s)"

Connection = psycopg.AsyncConnection[Any]
Detail = dict[str, Any]
Isolation = Literal["READ COMMITTED", "REPEATABLE READ"]
READ_COMMITTED, REPEATABLE_READ = BOTH = ("READ COMMITTED", "REPEATABLE READ")


class Nothing(Exception):
    """It has found nothing to do, or that somebody else was faster: to be rolled back."""


@dataclass(frozen=True, slots=True)
class Work:
    do: Callable[[Connection, str, random.Random], Awaitable[Detail]]
    often: int
    isolations: Sequence[str] = BOTH
    alone: bool = False
    """It is one statement, which leaves its effect as well, and commits by itself."""
    truncates: bool = False
    """Which no request may."""


async def rows(conn: Connection, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    cursor = await conn.execute(sql.encode(), parameters)
    return await cursor.fetchall() if cursor.description else []


async def one(conn: Connection, sql: str, *parameters: Any) -> tuple[Any, ...]:
    """Raises Nothing where there is no row."""
    found = await rows(conn, sql, *parameters)
    if not found:
        raise Nothing
    return found[0]


# Transfers -------------------------------------------------------------------------------------------------------


def _transfer(rng: random.Random) -> tuple[int, int, int]:
    """Low numbers come up more often than high ones."""
    source, target = (min(rng.randint(1, ACCOUNTS), rng.randint(1, ACCOUNTS)) for _ in range(2))
    if source == target:
        target = source % ACCOUNTS + 1
    return source, target, rng.randint(1, 200)


async def transfer(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """In any order: two may wait for each other."""
    source, target, amount = _transfer(rng)
    update = "UPDATE account SET balance = balance + %s WHERE id = %s RETURNING balance"
    for account, change in rng.sample([(source, -amount), (target, amount)], 2):
        await one(conn, update, change, account)
    return {"from": source, "to": target, "amount": amount}


async def transfer_read(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """By what was read before; at READ COMMITTED with locks."""
    source, target, amount = _transfer(rng)
    for account, change in sorted([(source, -amount), (target, amount)]):
        (balance,) = await one(conn, f"SELECT balance FROM account WHERE id = %s{await _lock(conn)}", account)
        if balance + change < 0:
            raise Nothing
        await one(conn, "UPDATE account SET balance = %s WHERE id = %s RETURNING 1", balance + change, account)
    return {"from": source, "to": target, "amount": amount}


async def _lock(conn: Connection) -> str:
    return "" if await _has_one_snapshot(conn) else " FOR UPDATE"


async def _has_one_snapshot(conn: Connection) -> bool:
    ((isolation,),) = await rows(conn, "SHOW transaction_isolation")
    return bool(isolation == "repeatable read")


# Counters --------------------------------------------------------------------------------------------------------


async def count_read(conn: Connection, tx: str, rng: random.Random) -> Detail:
    counter = rng.randint(1, COUNTERS)
    (n,) = await one(conn, f"SELECT n FROM counter WHERE id = %s{await _lock(conn)}", counter)
    await one(conn, "UPDATE counter SET n = %s WHERE id = %s RETURNING 1", n + 1, counter)
    return {"counter": counter, "n": n + 1}


async def count_compare(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """Without a lock; but if it is still what was read."""
    counter = rng.randint(1, COUNTERS)
    (n,) = await one(conn, "SELECT n FROM counter WHERE id = %s", counter)
    await one(conn, "UPDATE counter SET n = %s WHERE id = %s AND n = %s RETURNING 1", n + 1, counter, n)
    return {"counter": counter, "n": n + 1}


async def count_alone(conn: Connection, tx: str, rng: random.Random) -> Detail:
    counter = rng.randint(1, COUNTERS)
    ((n,),) = await rows(
        conn,
        "WITH c AS (UPDATE counter SET n = n + 1 WHERE id = %s RETURNING id, n), e AS ("
        "INSERT INTO effect SELECT %s, jsonb_build_object('counter', id, 'n', n) FROM c) SELECT n FROM c",
        counter, tx,
    )  # fmt: skip
    return {"counter": counter, "n": n}


# Keys ------------------------------------------------------------------------------------------------------------


def _name(rng: random.Random) -> str:
    return f"name {rng.randint(1, NAMES)}"


async def claim(conn: Connection, tx: str, rng: random.Random) -> Detail:
    if rng.random() < 0.5:
        await rows(conn, "INSERT INTO name VALUES (%s, %s)", _name(rng), tx)
    else:
        await one(conn, "INSERT INTO name VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING 1", _name(rng), tx)
    return {"claimed": tx}


async def release(conn: Connection, tx: str, rng: random.Random) -> Detail:
    (owner,) = await one(conn, "DELETE FROM name WHERE name = %s RETURNING owner", _name(rng))
    return {"released": owner}


async def rename(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """A key is changed."""
    await one(conn, "UPDATE name SET name = %s WHERE name = %s RETURNING 1", _name(rng), _name(rng))
    return {}


async def book(conn: Connection, tx: str, rng: random.Random) -> Detail:
    low = rng.randint(0, 150)
    during = f"[{low},{low + rng.randint(1, 6)})"
    await rows(conn, "INSERT INTO booking VALUES (%s, %s)", tx, during)
    return {"booked": tx}


async def unbook(conn: Connection, tx: str, rng: random.Random) -> Detail:
    (owner,) = await one(conn, "DELETE FROM booking WHERE during @> %s::int RETURNING tx", rng.randint(0, 155))
    return {"unbooked": owner}


async def swap(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """By what was read before: the constraint is looked at in the end."""
    first, second = rng.sample(range(1, SEATS + 1), 2)
    places = dict(await rows(conn, "SELECT id, place FROM seat WHERE id IN (%s, %s)", first, second))
    for seat, other in rng.sample([(first, second), (second, first)], 2):
        await one(conn, "UPDATE seat SET place = %s WHERE id = %s RETURNING 1", places[other], seat)
    return {}


async def found(conn: Connection, tx: str, rng: random.Random) -> Detail:
    await rows(conn, "INSERT INTO parent VALUES (%s, %s)", rng.randint(1, PARENTS), tx)
    return {"founded": tx}


async def bear(conn: Connection, tx: str, rng: random.Random) -> Detail:
    await rows(conn, "INSERT INTO child VALUES (%s, %s)", tx, rng.randint(1, PARENTS))
    return {"born": tx}


async def follow(conn: Connection, tx: str, rng: random.Random) -> Detail:
    await rows(conn, "INSERT INTO follower VALUES (%s, %s)", tx, rng.randint(1, PARENTS))
    return {}


async def end(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """A parent goes: its children keep it, or go before."""
    parent = rng.randint(1, PARENTS)
    gone: list[str] = []
    if rng.random() < 0.7:
        gone = [child for (child,) in await rows(conn, "DELETE FROM child WHERE parent = %s RETURNING tx", parent)]
    (owner,) = await one(conn, "DELETE FROM parent WHERE id = %s RETURNING owner", parent)
    return {"ended": owner, "gone": sorted(gone)}


# Lists -----------------------------------------------------------------------------------------------------------


def _some_lists(rng: random.Random) -> list[str]:
    """After some seconds there are others, so that they do not get long."""
    now = int(time.time() / SECONDS_OF_A_LIST)
    return [f"{now}/{rng.randrange(LISTS)}" for _ in range(rng.randint(2, 4))]


async def _read_list(conn: Connection, of: str) -> list[Any]:
    found = await rows(conn, "SELECT elements FROM list WHERE id = %s", of)
    return ["read", of, found[0][0] if found else []]


async def read_lists(conn: Connection, rng: random.Random) -> Detail:
    """In a transaction that has one snapshot."""
    return {"steps": [await _read_list(conn, of) for of in _some_lists(rng)]}


async def append(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """Reads some lists, where there is one snapshot for all of them, and appends to some."""
    reads, steps = await _has_one_snapshot(conn), list[list[Any]]()
    for of in _some_lists(rng):
        if reads and rng.random() < 0.6:
            steps.append(await _read_list(conn, of))
            continue
        steps.append(["append", of, f"{tx}/{len(steps)}"])
        await rows(
            conn,
            "INSERT INTO list AS l VALUES (%s, ARRAY[%s])"
            " ON CONFLICT (id) DO UPDATE SET elements = l.elements || EXCLUDED.elements",
            *steps[-1][1:],
        )
    return {"steps": steps}


# Many rows, rows without a key, long values, no rows at all ------------------------------------------------------


async def sweep(conn: Connection, tx: str, rng: random.Random) -> Detail:
    group = rng.randrange(GROUPS)
    swept = await rows(conn, "UPDATE part SET version = version + 1 WHERE of = %s RETURNING version", group)
    return {"group": group, "versions": sorted({version for (version,) in swept}), "rows": len(swept)}


async def mark(conn: Connection, tx: str, rng: random.Random) -> Detail:
    tally = rng.randrange(TALLIES)
    (n,) = await one(conn, "UPDATE tally SET n = n + 1 WHERE of = %s RETURNING n", tally)
    return {"tally": tally, "n": n}


async def issue(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """So many that look the same."""
    kind, number = rng.randrange(TALLIES), rng.randint(1, 3)
    await rows(conn, "INSERT INTO ticket SELECT %s FROM generate_series(1, %s)", kind, number)
    return {"ticket": kind, "number": number}


async def use(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """One of those that look the same."""
    kind = rng.randrange(TALLIES)
    one_of_them = "SELECT ctid FROM ticket WHERE of = %s LIMIT 1 FOR UPDATE"
    await one(conn, f"DELETE FROM ticket WHERE ctid = ({one_of_them}) RETURNING 1", kind)
    return {"ticket": kind, "number": -1}


async def write(conn: Connection, tx: str, rng: random.Random) -> Detail:
    """One of the values, or both, are written anew; or none, and they stay where they are."""
    document = rng.randint(1, DOCUMENTS)
    text = "(SELECT string_agg(md5(%s || i), '') FROM generate_series(1, %s) i)"
    length = rng.choice((1, 100, 400, 1500))
    match rng.randrange(3):
        case 0:
            await one(
                conn, f"UPDATE document SET body = {text}, plain = {text} WHERE id = %s RETURNING 1",
                tx, length, tx, length + 1, document,
            )  # fmt: skip
        case 1:
            await one(conn, f"UPDATE document SET body = {text} WHERE id = %s RETURNING 1", tx, length, document)
    (revision,) = await one(
        conn,
        "UPDATE document SET revision = revision + 1, digest = md5(body || plain) WHERE id = %s RETURNING revision",
        document,
    )
    return {"document": document, "revision": revision}


async def note(conn: Connection, tx: str, rng: random.Random) -> Detail:
    await rows(conn, "INSERT INTO note VALUES (%s, false)", tx)
    return {"note": True}


async def empty(conn: Connection, tx: str, rng: random.Random) -> Detail:
    await rows(conn, "TRUNCATE note")
    await rows(conn, "INSERT INTO note VALUES (%s, true)", tx)
    return {"emptied": True}


WORKS = {
    "transfer": Work(transfer, 8),
    "transfer by what was read": Work(transfer_read, 8),
    "count by what was read": Work(count_read, 12),
    "count if it is the same": Work(count_compare, 6, (READ_COMMITTED,)),
    "count alone": Work(count_alone, 6, (READ_COMMITTED,), alone=True),
    "claim": Work(claim, 8),
    "release": Work(release, 5),
    "rename": Work(rename, 3),
    "book": Work(book, 6),
    "unbook": Work(unbook, 4),
    "swap": Work(swap, 5),
    "found": Work(found, 6),
    "bear": Work(bear, 8),
    "follow": Work(follow, 4),
    "end": Work(end, 6),
    "append": Work(append, 12),
    "sweep": Work(sweep, 6),
    "mark": Work(mark, 4),
    "issue": Work(issue, 4),
    "use": Work(use, 4),
    "write": Work(write, 6),
    "note": Work(note, 8),
    "empty": Work(empty, 1, truncates=True),
}
