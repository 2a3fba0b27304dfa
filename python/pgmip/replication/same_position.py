"""What several replicas have at one and the same position of the log, while they are in use.

A snapshot of a replica is always at some position: each is written to mip.applied by the transaction that makes its
changes. But positions pass, and no two servers take their snapshots at the same moment. So at each replica a session
exports a snapshot at every position that it sees from a certain one on, until two things have come together: a position
that all have got a snapshot of. Another session takes that one over. Nobody is kept from anything.

What has been truncated, or defined anew, since a snapshot was taken does not look there as it was. So the tables are
locked before, in the weakest mode. Who applies such a change ends who has the lock, and then it is all done again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import sql

from .. import _sql
from .._connection import Connection, cut_after
from .session import session

__all__ = ["Coincidence", "Unreached", "at_same_position"]

T = TypeVar("T")
Look = Callable[[Connection, Sequence[str]], Coroutine[Any, Any, T]]

_FIRST_LOOK = 0.1  # seconds that snapshots are exported, and then twice as long each time
_LONGEST_LOOK = 1.0
_PAUSE = 0.1  # seconds between two attempts
_PATIENCE = 10.0  # seconds that a server may take for what is done at once
_NAME = "pgmip diff"
_MOST = 100  # positions


class Unreached(Exception):
    """No position was found in time that all replicas have a snapshot of."""


class _Again(Exception):
    """This time it has not worked, which says nothing of the next time."""


@dataclass(frozen=True, slots=True)
class Coincidence(Generic[T]):
    """What was seen at one position. In the order of the replicas."""

    position: int
    histories: Sequence[int]
    """Of the log up to there, as each replica has it."""
    seen: Sequence[T]


@dataclass(frozen=True, slots=True)
class _Exporter:
    """A session that has the tables locked, and has exported snapshots."""

    conn: Connection
    tables: Sequence[str]
    snapshots: Mapping[int, str]
    """By position."""


async def at_same_position(databases: Sequence[str], look: Look[T], *, patience: float) -> Coincidence[T]:
    """What `look(conn, tables)` returns at each of the replicas (connection strings): in a transaction that sees all
    replicated tables, whose names it is given, as they are at one position.

    Raises Unreached where there is no such position within `patience` seconds, psycopg.Error where a replica cannot be
    asked.
    """
    end = asyncio.get_running_loop().time() + patience
    seconds = _FIRST_LOOK
    while True:
        try:
            return await _attempt(databases, look, seconds, end)
        except (_Again, psycopg.errors.UndefinedTable, psycopg.OperationalError) as error:
            if asyncio.get_running_loop().time() > end:
                if isinstance(error, psycopg.Error):
                    raise
                raise Unreached from None
        await asyncio.sleep(_PAUSE)
        seconds = min(2 * seconds, _LONGEST_LOOK)


async def _attempt(databases: Sequence[str], look: Look[T], seconds: float, end: float) -> Coincidence[T]:
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout_at(end):
                exporters = await _exported(stack, databases, seconds)
                position = _common(exporter.snapshots for exporter in exporters)
                conns = await _sessions(stack, databases)
                work = zip(conns, exporters, strict=True)
                histories = await _all(_take_over(conn, it, position) for conn, it in work)
        except TimeoutError:
            raise Unreached from None
        work = zip(conns, exporters, strict=True)
        seen = await _all(look(conn, it.tables) for conn, it in work)
        await _all(_check(it.conn) for it in exporters)
    return Coincidence(position, histories, seen)


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What they return, at the same time. Where one fails none of the others goes on: connections are to be closed."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sessions(stack: AsyncExitStack, databases: Sequence[str]) -> list[Connection]:
    return [await stack.enter_async_context(session(database, _NAME, _PATIENCE)) for database in databases]


def _common(snapshots: Iterable[Mapping[int, str]]) -> int:
    """The last position that is in all of them."""
    first, *others = snapshots
    both = set(first).intersection(*others)
    if not both:
        raise _Again
    return max(both)


async def _exported(stack: AsyncExitStack, databases: Sequence[str], seconds: float) -> list[_Exporter]:
    conns = await _sessions(stack, databases)
    tables = await _all(map(_lock_tables, conns))
    first = max(await _all(map(_applied, conns)))
    snapshots = await _all(_export(conn, first, seconds) for conn in conns)
    return [_Exporter(*it) for it in zip(conns, tables, snapshots, strict=True)]


async def _check(conn: Connection) -> None:
    """Raise psycopg.OperationalError where it has lost its locks."""
    with cut_after(conn, _PATIENCE):
        await conn.execute(b"SELECT")


async def _lock_tables(conn: Connection) -> Sequence[str]:
    await conn.execute(b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY")
    await conn.execute(b"SET LOCAL idle_in_transaction_session_timeout = 0")
    tables = await _tables(conn)
    if tables:
        await conn.execute(f"LOCK TABLE ONLY {', ONLY '.join(tables)} IN ACCESS SHARE MODE".encode())
    return tables


async def _export(conn: Connection, first: int, seconds: float) -> Mapping[int, str]:
    """The names of snapshots at position `first`, and at those behind it, by position."""
    await conn.execute(_sql.REPLICA_WAIT_FOR, (first,))
    await conn.execute(_sql.REPLICA_EXPORT.format(seconds=seconds, upto=first + _MOST).encode())
    ((taken,),) = await _rows(conn, b"SELECT current_setting('pgmip.taken')")
    return {int(position): name for position, name in json.loads(taken).items()}


async def _take_over(conn: Connection, exporter: _Exporter, position: int) -> int:
    """Begin a transaction with the snapshot at that position, and return the history there."""
    await conn.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    await conn.execute(b"SET LOCAL idle_in_transaction_session_timeout = 0")
    try:
        await conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exporter.snapshots[position])))
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
        raise _Again from None  # the exporter has been ended
    ((seen, history),) = await _rows(conn, _sql.REPLICA_LAST)
    assert seen == position
    if await _tables(conn) != exporter.tables:
        raise _Again  # some have come, or gone, before they were locked
    return int(history)


async def _applied(conn: Connection) -> int:
    ((position, _),) = await _rows(conn, _sql.REPLICA_LAST)
    return int(position)


async def _tables(conn: Connection) -> Sequence[str]:
    return [name for (name,) in await _rows(conn, _sql.REPLICA_TABLES)]


async def _rows(conn: Connection, statement: bytes) -> list[Any]:
    return await (await conn.execute(statement)).fetchall()
