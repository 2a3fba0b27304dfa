"""A branch: the part of one instance that runs at one site."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.abc import Params
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row
from psycopg.sql import SQL, Composed

from . import _mipt
from ._connection import PooledConnection, cut_after, is_silent
from ._sqlstate import is_definite, is_protocol
from .decision import Entry, State

__all__ = ["Branch", "Instance", "Lost", "Prepared", "Refused", "Site", "Vote"]

Statement = LiteralString | bytes | SQL | Composed

_MIP_BEGIN = b"SELECT mip.begin(%s, %s, %s)"
_PREPARE = f"SELECT {_mipt.COLUMNS} FROM mip.prepare(%s, %s)".encode()
_COMMIT_ONE_PHASE = f"SELECT {_mipt.COLUMNS} FROM mip.commit_one_phase(%s, %s)".encode()
_NOT_YOURS = "a handler must not end its own transaction"


@dataclass(frozen=True, slots=True)
class Instance:
    """One attempt of a request, as every site is told of it."""

    xid: str
    xinst: int
    sites: tuple[str, ...]
    isolation: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The site prepared the instance (or committed it in one phase), and this is its MIPT as of that step."""

    mipt: tuple[Entry, ...]
    error: None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The site definitely did not prepare the instance, and never will."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Lost:
    """The site may have prepared the instance, or may still do so."""

    error: BaseException


Vote = Prepared | Refused | Lost


class Branch:
    """Runs the statements of one instance at one site. The transaction begins together with its first statement."""

    def __init__(
        self, site: str, conn: PooledConnection, instance: Instance, on_begun: Callable[[str], Awaitable[None]]
    ) -> None:
        self.site = site
        self.conn = conn
        self._instance = instance
        self._on_begun = on_begun
        self._begun = False
        self._over = False
        self._savepoints = 0
        self._last_error: psycopg.Error | None = None
        self._refusal: psycopg.Error | None = None
        self._turn = asyncio.Lock()

    @property
    def ended_by_handler(self) -> bool:
        """Whether a statement of the handler has ended the transaction: what follows would be outside of it."""
        ended = self.conn.pgconn.transaction_status == TransactionStatus.IDLE
        return self._begun and not self._over and ended

    @property
    def failure(self) -> psycopg.Error | None:
        """The error that makes it impossible to prepare this branch, even if the handler went on after it."""
        if self._refusal is not None:
            return self._refusal
        if self.conn.pgconn.transaction_status not in (TransactionStatus.INTRANS, TransactionStatus.IDLE):
            return self._last_error
        # Better known now than after the other sites have prepared: what is lost then may have been prepared.
        return None if is_silent(self.conn) else psycopg.OperationalError(f"site {self.site!r} ended the connection")

    async def run(self, sql: Statement, params: Params | None) -> psycopg.AsyncCursor[Any]:
        """Run one statement of the handler."""
        async with self._turn:
            if self._over:
                raise RuntimeError(f"the transaction at site {self.site!r} is over")
            if self.ended_by_handler:
                raise self._refusal or psycopg.ProgrammingError(_NOT_YOURS)
            try:
                cursor = await self._send(sql, params)
                if self.conn.pgconn.transaction_status != TransactionStatus.INTRANS:
                    raise psycopg.ProgrammingError(_NOT_YOURS)
            except psycopg.Error as error:
                self._note(error)
                raise
            return cursor

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        # Not by psycopg's transaction(): that would go on with the connection when it is somebody else's.
        self._savepoints += 1
        name = f"pgmip_{self._savepoints}"
        await self.run(f"SAVEPOINT {name}".encode(), None)
        try:
            yield
        except GeneratorExit:
            raise  # nobody waits for it any more
        except BaseException:
            if not self._over:
                with contextlib.suppress(psycopg.Error):  # known by now, or noted
                    await self.run(f"ROLLBACK TO {name}".encode(), None)
                    await self.run(f"RELEASE {name}".encode(), None)
            raise
        await self.run(f"RELEASE {name}".encode(), None)

    async def prepare(self, request: str | None, result: str | None, timeout: float) -> Vote:
        """Prepare. Never raises for what the site or the network does."""
        return await self._end(_PREPARE, State.PREPARED, request, result, timeout)

    async def commit_one_phase(self, request: str | None, result: str | None, timeout: float) -> Vote:
        """Commit where this is the only site. Never raises for what the site or the network does."""
        return await self._end(_COMMIT_ONE_PHASE, State.COMMITTED, request, result, timeout)

    def end(self) -> bool:
        """Take no more statements. Whether a transaction is still open, and to be rolled back."""
        self._over = True
        return not self.conn.closed and self.conn.pgconn.transaction_status != TransactionStatus.IDLE

    async def rollback(self, timeout: float) -> None:
        """End an open transaction without effect; where that fails the connection is closed, which does it too."""
        try:
            with cut_after(self.conn, timeout):
                # Prepared, so that psycopg forgets what else it has prepared: in a pipeline that fails it also takes
                # for prepared what never arrived.
                await self.conn.execute(b"ROLLBACK", prepare=True)
        except psycopg.Error:
            await self.conn.close()

    async def _end(self, sql: bytes, expected: State, request: str | None, result: str | None, timeout: float) -> Vote:
        self._over = True
        try:
            with cut_after(self.conn, timeout):
                cursor = await self._send(sql, (request, result))
                mipt = _mipt.entries(await cursor.fetchall())
        except psycopg.Error as error:
            return Refused(error) if is_definite(error, self.conn) else Lost(error)
        # The reply itself has to say so: a transaction that has failed before can end without an error.
        states = {entry.state for entry in mipt if entry.xinst == self._instance.xinst}
        if states != {expected} or self.conn.pgconn.transaction_status != TransactionStatus.IDLE:
            return Lost(psycopg.OperationalError(f"site {self.site!r} did not confirm: instance is {states or 'gone'}"))
        return Prepared(mipt)

    async def _send(self, sql: Statement, params: Params | None) -> psycopg.AsyncCursor[Any]:
        cursor = self.conn.cursor(row_factory=namedtuple_row)
        if self._begun:
            return await cursor.execute(sql, params)
        self._begun = True
        await self._begin_with(cursor, sql, params)
        await self._on_begun(self.site)
        return cursor

    async def _begin_with(self, cursor: psycopg.AsyncCursor[Any], sql: Statement, params: Params | None) -> None:
        """BEGIN, mip.begin and the first statement, in one round trip."""
        me = self._instance
        first: psycopg.Error | None = None
        try:
            async with self.conn.pipeline():
                try:
                    await self.conn.execute(f"BEGIN ISOLATION LEVEL {me.isolation}".encode())
                    await self.conn.execute(_MIP_BEGIN, (me.xid, me.xinst, list(me.sites)), prepare=True)
                    await cursor.execute(sql, params)
                except psycopg.Error as error:
                    first = error  # the later statements of the pipeline only report that it was aborted
        except psycopg.Error as error:
            first = first or error
        if first is not None:
            raise first

    def _note(self, error: psycopg.Error) -> None:
        self._last_error = error
        ended = self.conn.pgconn.transaction_status == TransactionStatus.IDLE
        if self._refusal is None and (is_protocol(error) or ended):
            self._refusal = error


class Site:
    """What a handler sees of a branch: `tx.store`. SQL is psycopg's, with `%s` or `%(name)s` for parameters.

    An error of PostgreSQL comes as its psycopg.Error. A handler that goes on after one without `savepoint` cannot
    make the transaction succeed any more: it has failed at this site, and so everywhere.
    """

    def __init__(self, branch: Branch) -> None:
        self._branch = branch

    async def execute(self, sql: Statement, params: Params | None = None) -> int:
        """Run a statement; the number of rows it touched, -1 where PostgreSQL tells none."""
        return (await self._branch.run(sql, params)).rowcount

    async def fetch_one(self, sql: Statement, params: Params | None = None) -> Any:
        """Run a statement; its first row, with an attribute per column (`row.o_id`), or None."""
        return await (await self._branch.run(sql, params)).fetchone()

    async def fetch_all(self, sql: Statement, params: Params | None = None) -> list[Any]:
        """Run a statement; all of its rows, as in `fetch_one`."""
        return await (await self._branch.run(sql, params)).fetchall()

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """`async with tx.store.savepoint():` undoes what the block did here if it raises, and nothing else."""
        return self._branch.savepoint()
