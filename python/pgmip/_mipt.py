"""The SQL functions of pg_mip that need no open transaction, and how their rows become entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ._pool import Connection, cut_after
from .decision import Entry, State

__all__ = ["COLUMNS", "commit", "entries", "instances", "rollback"]

COLUMNS = "xinst, state::text, request, result, sites"

_INSTANCES = f"SELECT {COLUMNS} FROM mip.instances(%s)".encode()
_COMMIT = f"SELECT {COLUMNS} FROM mip.commit(%s, %s)".encode()
_ROLLBACK = f"SELECT {COLUMNS} FROM mip.rollback(%s, %s)".encode()


def entries(rows: Iterable[Sequence[Any]]) -> tuple[Entry, ...]:
    """The MIPT that was returned as these rows of COLUMNS."""
    return tuple(
        Entry(int(xinst), State(state), request, result, tuple(sites or ()))
        for xinst, state, request, result, sites in rows
    )


async def instances(conn: Connection, timeout: float, xid: str) -> tuple[Entry, ...]:
    """Read a family's MIPT."""
    return await _call(conn, timeout, _INSTANCES, (xid,))


async def commit(conn: Connection, timeout: float, xid: str, xinst: int) -> tuple[Entry, ...]:
    """Commit the winner here, and thereby abort its siblings. May be repeated."""
    return await _call(conn, timeout, _COMMIT, (xid, xinst))


async def rollback(conn: Connection, timeout: float, xid: str, xinst: int) -> tuple[Entry, ...]:
    """Roll a prepared instance back: only for its own coordinator, and only after a site definitely refused it."""
    return await _call(conn, timeout, _ROLLBACK, (xid, xinst))


async def _call(conn: Connection, timeout: float, sql: bytes, params: Sequence[Any]) -> tuple[Entry, ...]:
    with cut_after(conn, timeout):
        cursor = await conn.execute(sql, params, prepare=True)
        return entries(await cursor.fetchall())
