"""Asking sites: all at the same time, each with a time limit, and a failure is an answer, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from .._connection import connected, cut_after

__all__ = ["Connection", "Failure", "Kind", "ask", "connect", "failure_of"]

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]


class Kind(StrEnum):
    """Why a site gives no answer."""

    UNREACHABLE = "unreachable"
    NOT_INSTALLED = "not-installed"
    PERMISSION = "permission"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Failure:
    """A site that gave no answer, and why."""

    kind: Kind
    message: str
    hint: str | None = None

    def document(self) -> dict[str, Any]:
        return {"kind": str(self.kind), "message": self.message, "hint": self.hint}


async def ask(
    sites: Mapping[str, str], work: Callable[[str, Connection], Awaitable[T]], *, timeout: float
) -> dict[str, T | Failure]:
    """What `work(site, connection)` returns at each of the sites, or why there is nothing. `timeout`: in seconds."""

    async def one(site: str, conninfo: str) -> T | Failure:
        try:
            async with connect(conninfo, timeout=timeout) as conn:
                with cut_after(conn, timeout):
                    return await work(site, conn)
        except (psycopg.Error, OSError) as error:
            return failure_of(error)

    answers = await asyncio.gather(*(one(site, conninfo) for site, conninfo in sites.items()))
    return dict(zip(sites, answers, strict=True))


@asynccontextmanager
async def connect(conninfo: str, *, timeout: float) -> AsyncIterator[Connection]:
    """A connection of our own, whose rows are dicts. Raises psycopg.Error."""
    attempt = psycopg.AsyncConnection.connect(
        make_conninfo(conninfo, fallback_application_name="pgmip", client_encoding="utf-8"),
        autocommit=True,
        prepare_threshold=None,  # some poolers lose prepared statements
        row_factory=dict_row,
    )
    conn = await connected(attempt, timeout)
    try:
        yield conn
    finally:
        await conn.close()


def failure_of(error: BaseException) -> Failure:
    """The same in words for an operator."""
    message = " ".join(str(error).split()) or type(error).__name__
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    hint = error.diag.message_hint if isinstance(error, psycopg.Error) else None
    if state is None:
        return Failure(Kind.UNREACHABLE, message)
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        message = error.diag.message_primary
    if state in ("3F000", "42P01", "42883", "42704"):
        return Failure(Kind.NOT_INSTALLED, message, "CREATE EXTENSION pg_mip, or update it, in this database")
    if state == "42501":
        return Failure(Kind.PERMISSION, message, hint or "connect as a role that the requests' owner is granted to")
    if state[:2] in ("57", "08"):
        return Failure(Kind.UNREACHABLE, message, hint)
    return Failure(Kind.ERROR, message, hint)
