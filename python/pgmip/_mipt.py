"""The SQL functions of pg_mip that need no open transaction, and how their rows become entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ._connection import Connection, cut_after
from .decision import Entry, State

__all__ = ["COLUMNS", "acknowledge", "commit", "entries", "instances", "rollback"]

COLUMNS = "xinst, state::text, request, result, sites, acknowledged"

_INSTANCES = f"SELECT {COLUMNS} FROM mip.instances(%s)".encode()
_COMMIT = f"SELECT {COLUMNS} FROM mip.commit(%s, %s)".encode()
_ROLLBACK = f"SELECT {COLUMNS} FROM mip.rollback(%s, %s)".encode()

_REFUSE = b"SELECT mip.refuse(%s, %s, %s)"
_WAITS = b"SELECT EXISTS (SELECT FROM mip.waits WHERE xid = %s AND xinst = %s)"
_ACKNOWLEDGE = b"SELECT mip.acknowledge(%s)"


def entries(rows: Iterable[Sequence[Any]]) -> tuple[Entry, ...]:
    """The MIPT that was returned as these rows of COLUMNS."""
    return tuple(
        Entry(int(xinst), State(state), request, result, tuple(sites or ()), acknowledged)
        for xinst, state, request, result, sites, acknowledged in rows
    )


async def instances(conn: Connection, timeout: float, xid: str) -> tuple[Entry, ...]:
    """Read a family's MIPT."""
    return await _call(conn, timeout, _INSTANCES, (xid,))


async def commit(conn: Connection, timeout: float, xid: str, xinst: int) -> tuple[Entry, ...]:
    """Commit the winner here, and thereby abort its siblings. May be repeated."""
    return await _call(conn, timeout, _COMMIT, (xid, xinst))


async def rollback(conn: Connection, timeout: float, xid: str, xinst: int) -> tuple[Entry, ...]:
    """Roll a prepared instance back: only after a site has definitely refused it, to its coordinator, by `refuse`, or
    because it refuses even an empty instance as expired.
    """
    return await _call(conn, timeout, _ROLLBACK, (xid, xinst))


async def refuse(conn: Connection, timeout: float, xid: str, xinst: int, sites: Sequence[str]) -> bool:
    """See to it that an instance is never prepared here; False where it has been. May be repeated."""
    return await _ask(conn, timeout, _REFUSE, (xid, xinst, list(sites)))


async def waits(conn: Connection, timeout: float, xid: str, xinst: int) -> bool:
    """Whether an instance waits for a lock here."""
    return await _ask(conn, timeout, _WAITS, (xid, xinst))


async def acknowledge(conn: Connection, timeout: float, xid: str) -> None:
    """Say that the family is committed at every site and its result will not be asked for again. May be repeated."""
    with cut_after(conn, timeout):
        await conn.execute(_ACKNOWLEDGE, (xid,), prepare=True)


async def _ask(conn: Connection, timeout: float, sql: bytes, params: Sequence[Any]) -> bool:
    with cut_after(conn, timeout):
        ((answer,),) = await (await conn.execute(sql, params, prepare=True)).fetchall()
        return bool(answer)


async def _call(conn: Connection, timeout: float, sql: bytes, params: Sequence[Any]) -> tuple[Entry, ...]:
    with cut_after(conn, timeout):
        cursor = await conn.execute(sql, params, prepare=True)
        return entries(await cursor.fetchall())
