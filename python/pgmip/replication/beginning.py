"""How a log and its replicas come together.

It begins with the settings that all of them have in common, and each replica, or the one that it is a copy of, has
begun with that very message, of which there are no two alike. So it is known which log a replica follows, before
anything else is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

from .. import _sql
from .._connection import Connection, ObedientConnection, cut_after
from .._direct import ask
from .engine import Engine, Message, Refused, WentBack
from .session import session

__all__ = ["beginning", "check_end", "follow", "has_begun"]

_NAME = "pgmip replica"
_NAMESPACE = UUID("e2a1e8f0-54d5-4c0b-9f6b-3a0c6d4b7c21")


async def beginning(database: str, window: int, *, patience: float = 30.0) -> Message:
    """The first message of a log for this database (a connection string): what the database says, under an id that is
    the same wherever it is asked for with the same `window` (a number of positions), at any copy of its cluster.

    `patience`: how many seconds to wait for an answer. Raises psycopg.Error.
    """
    async with session(database, _NAME, patience) as conn:
        with cut_after(conn, patience):
            ((settings, system, name),) = await _rows(conn, _sql.REPLICA_SETTINGS, (window,))
    return Message(uuid5(_NAMESPACE, f"{system} {name} {window}"), settings)


async def has_begun(database: str, *, patience: float = 30.0) -> bool:
    """Whether the replica follows a log. Raises psycopg.Error."""
    async with session(database, _NAME, patience) as conn:
        with cut_after(conn, patience):
            return await _rows(conn, _sql.REPLICA_APPLIED) != [(0,)]


async def follow(database: str, log: Engine, *, patience: float = 30.0) -> None:
    """Let a replica that follows no log begin with this one; or see that it is the one it follows.

    Raises LogError, and psycopg.Error: MP030 where it follows another one, ObjectInUse where its agent is at work.
    """
    async with session(database, _NAME, patience) as conn:
        with cut_after(conn, 2 * patience):  # the log has as long
            ((_, applied, after),) = await _rows(conn, _sql.REPLICA_START)
            if applied == 0:
                await _begin(conn, log)
            else:
                await _compare(conn, log, applied, after)


async def _begin(conn: ObedientConnection, log: Engine) -> None:
    """What it says must not be lost again: who does not know of his log any more is let into no other one."""
    end = await log.end()
    if end > 1:
        raise Refused(
            f"this replica follows no log yet, and this one has gone on to position {end} without it",
            hint="make the replica anew, as a copy of one that follows the log; "
            "or, where it is to be the first one, give a new database for the log",
        )
    (first,) = await log.read(0, 1, wait=0)
    await ask(conn, _sql.REPLICA_RECEIVE, 1, first.content)
    await _rows(conn, _sql.REPLICA_FLUSH)


async def _compare(conn: Connection, log: Engine, applied: int, after: int) -> None:
    """One message is enough: together with the history before it, it tells of all of them."""
    check_end(await log.end(), applied)
    (first, *_) = await log.read(after, 1, wait=0)
    await _rows(conn, _sql.REPLICA_LOAD, (after + 1, [first.content]))


def check_end(end: int, applied: int) -> None:
    """Raise WentBack where a replica has applied what is not in the log."""
    if end < applied:
        raise WentBack(f"the log ends at position {end}, and {applied} is applied: it has lost messages")


async def _rows(conn: Connection, statement: bytes, parameters: Sequence[Any] = ()) -> list[Any]:
    return await (await conn.execute(statement, parameters)).fetchall()
