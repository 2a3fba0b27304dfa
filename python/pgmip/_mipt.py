"""The SQL functions of pg_mip that need no open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _sql
from ._connection import ObedientConnection, cut_after
from ._direct import ask
from .decision import Entry

__all__ = ["acknowledge", "commit", "has_expired", "instances", "is_orphaned", "refuse", "rollback", "waits"]


async def instances(conn: ObedientConnection, timeout: float, xid: str) -> tuple[Entry, ...]:
    """Read a family's MIPT."""
    return await _call(conn, timeout, _sql.INSTANCES, (xid,))


async def commit(conn: ObedientConnection, timeout: float, xid: str, xinst: int) -> None:
    """Commit the winner here, and thereby abort its siblings. May be repeated."""
    with cut_after(conn, timeout):
        await ask(conn, _sql.COMMIT, xid, xinst)


async def rollback(conn: ObedientConnection, timeout: float, xid: str, xinst: int) -> tuple[Entry, ...]:
    """Roll a prepared instance back: only after a site has definitely refused it, to its coordinator, by `refuse`, or
    because it refuses even an empty instance as expired.
    """
    return await _call(conn, timeout, _sql.ROLLBACK, (xid, xinst))


async def refuse(conn: ObedientConnection, timeout: float, xid: str, xinst: int, sites: Sequence[str]) -> bool:
    """See to it that an instance is never prepared here; False where it has been. May be repeated."""
    return await _ask(conn, timeout, _sql.REFUSE, (xid, xinst, list(sites)))


async def waits(conn: ObedientConnection, timeout: float, xid: str, xinst: int) -> bool:
    """Whether an instance waits for a lock here."""
    return await _ask(conn, timeout, _sql.WAITING, (xid, xinst))


async def has_expired(conn: ObedientConnection, timeout: float, xid: str) -> bool | None:
    """Whether the site may have forgotten the request, which it does not let run any more; None if it has it committed.
    """
    answer = await _answer(conn, timeout, _sql.HAS_EXPIRED, (xid, xid))
    return None if answer is None else _sql.checked(answer, bool)


async def is_orphaned(conn: ObedientConnection, timeout: float, xid: str) -> bool:
    """Whether no instance that may have an effect here has an owner any more."""
    return await _ask(conn, timeout, _sql.ORPHANED, (xid,))


async def acknowledge(conn: ObedientConnection, timeout: float, xid: str) -> None:
    """Say that the family is committed at every site and its result will not be asked for again. May be repeated."""
    with cut_after(conn, timeout):
        await conn.execute(_sql.ACKNOWLEDGE, (xid,), prepare=True)


async def _ask(conn: ObedientConnection, timeout: float, sql: bytes, params: Sequence[Any]) -> bool:
    return _sql.checked(await _answer(conn, timeout, sql, params), bool)


async def _answer(conn: ObedientConnection, timeout: float, sql: bytes, params: Sequence[Any]) -> Any:
    with cut_after(conn, timeout):
        ((answer,),) = await (await conn.execute(sql, params, prepare=True)).fetchall()
        return answer


async def _call(conn: ObedientConnection, timeout: float, sql: bytes, params: Sequence[Any]) -> tuple[Entry, ...]:
    with cut_after(conn, timeout):
        cursor = await conn.execute(sql, params, prepare=True)
        return _sql.entries(await cursor.fetchall())
