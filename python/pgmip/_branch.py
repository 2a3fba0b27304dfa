"""A branch: the part of one instance that runs at one site."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import secrets
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.abc import Params
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import namedtuple_row
from psycopg.sql import SQL, Composed

from . import _sql
from ._connection import PooledConnection, cut, cut_after, is_silent
from ._copy import Copy
from ._direct import Answers, Query, converted, numbers, show, text_array, together
from ._handler import check_can_await
from ._process import Process
from ._sqlstate import NOT_USABLE, SessionEnded, is_definite, is_protocol, said
from .decision import Entry, State

__all__ = [
    "Branch",
    "Instance",
    "Interrupted",
    "Lost",
    "NotPrepared",
    "Prepared",
    "Site",
    "Statement",
    "Vote",
    "read_all",
    "read_count",
    "read_one",
]

T = TypeVar("T")
Statement = LiteralString | bytes | SQL | Composed
Awaited = Coroutine[Any, Any, T]

_NOT_YOURS = "a handler must not end its own transaction"
_USE_COPY = "COPY from or to the client needs copy()"
_USUAL = "read committed"
"""The isolation level of transactions that are begun by mip.start: PostgreSQL's default."""
_OtherIsolation = psycopg.errors.InappropriateIsolationLevelForBranchTransaction


@dataclass(frozen=True, slots=True)
class Instance:
    """One attempt of a request, as every site is told of it."""

    xid: str
    xinst: int
    sites: tuple[str, ...]
    isolation: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The site prepared the instance (or committed it in one phase), and this is its MIPT as of that step, or later."""

    mipt: tuple[Entry, ...]
    error: None = None


@dataclass(frozen=True, slots=True)
class NotPrepared:
    """The site definitely did not prepare the instance, and never will."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Lost:
    """The site may have prepared the instance, or may still do so. `retry`: whether a new instance may do better."""

    error: BaseException
    retry: bool = True


Vote = Prepared | NotPrepared | Lost


class Interrupted(psycopg.errors.QueryCanceled):
    """A statement has been interrupted on this side: it may have been done, or not."""

    def __init__(self, which: str, site: str) -> None:
        super().__init__(f"{which} statement at site {site!r} was cancelled")


class Branch:
    """Runs the statements of one instance at one site. The transaction begins together with its first statement."""

    def __init__(
        self, site: str, conn: PooledConnection, instance: Instance, *,
        on_begun: Callable[[str], Awaitable[None]], on_beside: Callable[[Sequence[int]], None],
        read: Callable[[], Awaitable[Sequence[Entry] | None]],
    ) -> None:  # fmt: skip
        """`on_begun`: awaited once the site knows of the instance. `on_beside`: called before, with those that are
        prepared there, if any are; also where the statement that has come with the begin has failed. `read`: the site's
        MIPT, None where it cannot be read.
        """
        self.site = site
        self.conn = conn
        self._instance = instance
        self._on_begun = on_begun
        self._on_beside = on_beside
        self._read = read
        self._key = secrets.token_hex(8)  # so that no statement of the handler prepares, or commits
        self.everywhere = False
        """Whether the instance is to be serializable across its sites; a site of another setting refuses it."""
        self.begun = False
        """Whether the site has been told of the instance, or is being told."""
        self._returned = False
        self._returning = threading.Lock()  # a sync App's handler may leave threads behind that finish meanwhile
        self._over = False
        self._ended = False  # by a statement of the handler
        self._savepoints = 0
        self._statements = 0
        self._failed: tuple[int, BaseException] | None = None  # the first statement that did, and why
        self._last: tuple[Statement, Params | None] | None = None
        self._asked = False  # whether what prepares may have been sent
        self._refusal: psycopg.Error | None = None
        self._raised = weakref.WeakSet[BaseException]()
        self._turn = asyncio.Lock()
        self._copying = False  # meanwhile the connection takes no statements
        self._process = Process("this transaction")
        self._process.check()

    @property
    def ended_by_handler(self) -> bool:
        """Whether a statement of the handler has ended the transaction: what follows would be outside of it."""
        ended = self.conn.pgconn.transaction_status == TransactionStatus.IDLE
        return self._ended or (self.begun and not self._over and ended)

    @property
    def has_last(self) -> bool:
        """Whether a statement of the handler is still to be run, together with the one that prepares."""
        return self._last is not None

    @property
    def failure(self) -> psycopg.Error | None:
        """The error that makes it impossible to prepare this branch, even if the handler went on after it."""
        if self._refusal is not None:
            return self._refusal
        if self._failed is not None:
            why = self._failed[1]
            return why if isinstance(why, psycopg.Error) else Interrupted("a", self.site)
        if self._turn.locked() or self._copying:
            return self.left_running()
        # Better known now than after the other sites have prepared: what is lost then may have been prepared.
        if is_silent(self.conn):
            return None
        waits = self.conn.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
        kind = SessionEnded if waits and not self.conn.is_cut.is_set() else psycopg.OperationalError
        return kind(f"site {self.site!r} ended the connection")

    def left_running(self) -> psycopg.Error:
        """The failure of a branch where a statement of the handler's still runs, when that has returned."""
        return psycopg.ProgrammingError(f"the handler has left a statement running at site {self.site!r}")

    @property
    def serializable(self) -> str | None:
        """What the site has said of `mip.serializable` when the connection was made."""
        return self.conn.info.parameter_status("mip.serializable")

    async def begin(self) -> None:
        """Begin now, and not only with the handler's first statement: from here on the site knows of the instance."""
        if self.begun:
            return  # by a statement that may run for long, for which nobody has to wait
        async with self._turn:
            self._process.check()
            if not (self.begun or self._over):
                with self._noting():
                    await self._together()

    async def run(
        self, sql: Statement, params: Params | None, read: Callable[[psycopg.AsyncCursor[Any]], Awaitable[T]]
    ) -> T:
        """Run one statement of the handler, and `read` what it returns."""
        async with self._turn:
            self._check_usable()
            with self._noting(), self._telling_of_copy():
                cursor = self.conn.cursor(row_factory=namedtuple_row)
                if self.begun:
                    await cursor.execute(sql, params)
                else:
                    (result,) = await self._together(converted(self.conn, sql, params))
                    show(cursor, result)
                self._check_not_ended()
                return await read(cursor)

    async def run_many(self, sql: Statement, params_seq: Iterable[Params]) -> int:
        """Run one statement of the handler for each of these; the number of rows that they touched."""
        async with self._turn:
            self._check_usable()
            with self._noting(), self._telling_of_copy():
                await self._in_transaction()
                cursor = self.conn.cursor()
                await cursor.executemany(sql, params_seq)
                self._check_not_ended()
                return cursor.rowcount

    @contextlib.asynccontextmanager
    async def copy(self, sql: Statement, params: Params | None) -> AsyncIterator[Copy]:
        """Run a COPY of the handler, which writes or reads its rows in the block."""
        with self._noting():
            copying = self.conn.cursor().copy(sql, params)
            async with self._turn:
                self._check_usable()
                await self._in_transaction()  # libpq does not copy in a pipeline
                self._copying = True
                try:
                    rows = await copying.__aenter__()
                except BaseException:
                    self._copying = self.conn.lock.locked()  # where it has begun all the same
                    raise
            try:
                yield Copy(rows, self._in_copy)
            except GeneratorExit:
                raise  # nobody waits for it any more, and the attempt has failed
            except BaseException as error:
                await self._end_copy(copying, type(error), error, error.__traceback__)
                raise
            await self._end_copy(copying, None, None, None)
            if self.conn.pgconn.transaction_status != TransactionStatus.INTRANS:
                raise psycopg.ProgrammingError("a COPY has to be read to its end")

    @contextlib.asynccontextmanager
    async def _in_copy(self) -> AsyncIterator[None]:
        """For what a handler does in the block of a COPY."""
        async with self._turn:
            self._check_open()
            if not self._copying:
                raise RuntimeError("the COPY is over")
            yield

    async def _end_copy(self, copying: AbstractAsyncContextManager[Any], *failure: Any) -> None:
        async with self._turn:
            try:
                await copying.__aexit__(*failure)
            finally:
                self._copying = self.conn.lock.locked()  # where it has not been ended

    def finish_with(self, sql: Statement, params: Params | None) -> None:
        """Keep the handler's last statement, to be run together with the one that prepares. From any thread."""
        last = sql, copy.copy(params)
        self._process.check()  # one that was forked has the lock as it was then
        with self._returning:
            self._check_open()
            self._last = last

    def has_raised(self, error: BaseException) -> bool:
        """Whether this very error came from a statement here, also from one that a savepoint has undone."""
        return any(raised is error for raised in self._raised)  # whatever it compares like

    def handler_returned(self) -> None:
        """Take no more statements of the handler's; what it has left behind is too late."""
        with self._returning:
            self._returned = True

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        # Not by psycopg's transaction(): that would go on with the connection when it is somebody else's.
        self._savepoints += 1
        name = f"pgmip_{self._savepoints}"
        await self.run(f"SAVEPOINT {name}".encode(), None, _nothing)
        before = self._statements
        try:
            yield
        except GeneratorExit as error:
            self.leave(error)
            raise
        except BaseException:
            if not (self._returned or self._over):
                with contextlib.suppress(psycopg.Error), self._noting():
                    await self.run(f"ROLLBACK TO {name}".encode(), None, _nothing)
                    if self._failed is not None and self._failed[0] > before:
                        self._failed = None
                    await self.run(f"RELEASE {name}".encode(), None, _nothing)
            raise
        with self._noting():
            await self.run(f"RELEASE {name}".encode(), None, _nothing)

    def leave(self, why: GeneratorExit) -> None:
        """Of a savepoint that is left for good: maybe there is no event loop any more in which to undo it."""
        self._statements += 1
        self._note(why)

    async def prepare(self, request: str | None, result: str | None, timeout: float) -> Vote:
        """Prepare. Never raises for what the site or the network does."""
        return await self._end(_sql.PREPARE, State.PREPARED, request, result, timeout)

    async def commit_one_phase(self, request: str | None, result: str | None, timeout: float) -> Vote:
        """Commit where this is the only site. Never raises for what the site or the network does."""
        return await self._end(_sql.COMMIT_ONE_PHASE, State.COMMITTED, request, result, timeout)

    def interrupted(self) -> NotPrepared | Lost:
        """The vote of a branch that was interrupted while it prepared."""
        error = Interrupted("the last", self.site)
        status = self.conn.pgconn.transaction_status
        sure = not self._asked or status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
        return NotPrepared(error) if sure else Lost(error)

    def end(self) -> bool:
        """Take no more statements. Whether a transaction is still open, or about to be, and to be rolled back."""
        self._over = True
        idle = self.conn.pgconn.transaction_status == TransactionStatus.IDLE and not self._turn.locked()
        return not self.conn.closed and not idle

    async def rollback(self, timeout: float) -> None:
        """End an open transaction without effect; where that fails the connection is closed, which does it too."""
        try:
            with cut_after(self.conn, timeout):
                await self._interrupt(timeout)
                # Prepared, so that psycopg forgets what else it has prepared: in a pipeline that fails it also takes
                # for prepared what never arrived.
                async with self._turn:
                    if self._copying:  # in a block that may never end
                        await self.conn.close()
                    else:
                        await self.conn.execute(b"ROLLBACK", prepare=True)
        except psycopg.Error:
            await self._disconnect()

    async def close(self, timeout: float) -> None:
        """Close the connection, which ends an open transaction without effect. What still runs there fails."""
        try:
            with contextlib.suppress(psycopg.Error), cut_after(self.conn, timeout):
                await self._interrupt(timeout)
                async with self._turn:  # else the statement may go on, and finds nobody to answer to
                    pass
        finally:
            await self._disconnect()

    async def _interrupt(self, timeout: float) -> None:
        """Have the server end a statement that the handler has left running."""
        if self._turn.locked():
            await self.conn.cancel_safe(timeout=timeout)

    async def _disconnect(self) -> None:
        if self._turn.locked():
            cut(self.conn)
        async with self._turn:  # no socket is closed while somebody waits for it: its number is another one's at once
            await self.conn.close()

    async def _without(self, error: psycopg.Error) -> NotPrepared | Lost:
        """The vote after an error."""
        if not self._asked:
            return NotPrepared(error)
        if self._ended_by_last(error):
            # psycopg forgets what is prepared, and tells the server only behind what it prepares next
            await self.conn.close()
            return Lost(psycopg.ProgrammingError(_NOT_YOURS), retry=False)  # it may even have prepared
        if self._copies_still(error):
            return Lost(error, retry=False)
        return NotPrepared(error) if is_definite(error, self.conn) else Lost(error)

    def _copies_still(self, error: psycopg.Error) -> bool:
        """Whether a COPY has been begun, which psycopg refuses and leaves so. A session that is being ended amid a
        pipeline leaves the connection active, too, but waiting.
        """
        wire = self.conn.pgconn
        return error.sqlstate is None and wire.transaction_status == TransactionStatus.ACTIVE and not wire.is_busy()

    def _ended_by_last(self, error: psycopg.Error) -> bool:
        """Whether what prepares has found no transaction, because the handler's last statement had ended it."""
        idle = self.conn.pgconn.transaction_status == TransactionStatus.IDLE
        return self.has_last and idle and said(error) == NOT_USABLE

    def _check_usable(self) -> None:
        self._check_open()
        if self.ended_by_handler:
            raise self._refusal or psycopg.ProgrammingError(_NOT_YOURS)
        if self._copying:
            raise psycopg.ProgrammingError(f"a COPY is running at site {self.site!r}: end its block first")

    def _check_open(self) -> None:
        self._process.check()
        if self._over or self._returned:
            raise RuntimeError(f"the transaction at site {self.site!r} is over")
        if self._last is not None:
            raise RuntimeError(f"the handler has given its last statement at site {self.site!r}")

    @contextlib.contextmanager
    def _telling_of_copy(self) -> Iterator[None]:
        """What to do instead, where a statement has begun a COPY."""
        try:
            yield
        except psycopg.Error as error:
            if self._copies_still(error):
                raise psycopg.ProgrammingError(_USE_COPY) from error
            raise

    def _check_not_ended(self) -> None:
        if self.conn.pgconn.transaction_status != TransactionStatus.INTRANS:
            raise psycopg.ProgrammingError(_NOT_YOURS)

    async def _end(self, sql: bytes, expected: State, request: str | None, result: str | None, timeout: float) -> Vote:
        self._over = True
        # The handler's last statement may wait for a lock as long as any other one of it: the attempt sees to that.
        limit = contextlib.nullcontext() if self.has_last else cut_after(self.conn, timeout)
        try:
            last = [] if self._last is None else [converted(self.conn, *self._last)]
            self._asked = True
            with limit, self._telling_of_copy():
                *_, told = await self._together(*last, Query(sql, request, result, self._key))
        except psycopg.Error as error:
            return await self._without(error)
        except Exception as error:
            if self._asked:
                raise
            return NotPrepared(error)  # the handler's last statement was none
        # The reply itself has to say so: a transaction that has failed before can end without an error.
        if told.ntuples != 1 or self.conn.pgconn.transaction_status != TransactionStatus.IDLE:
            return Lost(psycopg.OperationalError(f"site {self.site!r} did not confirm"))
        if told.get_value(0, 0) is not None:
            return await self._look(expected)
        me = self._instance
        return Prepared((Entry(me.xinst, expected, request, result, me.sites),))

    async def _look(self, expected: State) -> Prepared | Lost:
        """The vote of a branch that has come to its end beside others."""
        mipt = await self._read()
        states = {entry.state for entry in mipt or () if entry.xinst == self._instance.xinst}
        if mipt is None or states != {expected}:
            return Lost(psycopg.OperationalError(f"site {self.site!r} did not confirm: it is {states or 'gone'}"))
        return Prepared(tuple(mipt))

    async def _in_transaction(self) -> None:
        """Begin, for what does not go with it. In one's turn: a begin that was under way before may have failed."""
        if not self.begun:
            await self._together()

    async def _together(self, *queries: Query) -> list[PGresult]:
        """Run these statements, the first ones together with the begin of the transaction and of the instance."""
        before = () if self.begun else self._beginning()
        answers = await self._run_behind(before, queries)
        if before and not answers.results and isinstance(answers.error, _OtherIsolation):
            self.conn.starts = False
            before = self._beginning()
            answers = await self._run_behind(before, queries)
        answers.check()
        if before:
            await self._on_begun(self.site)
        return answers.results[len(before) :]

    async def _run_behind(self, before: Sequence[Query], queries: Sequence[Query]) -> Answers:
        """Run these statements behind those that begin. An error of theirs is in the answers."""
        self.begun = True
        answers = Answers()
        try:
            await together(self.conn, [*before, *queries], answers)
        finally:
            self._asked &= answers.sent == len(before) + len(queries)
            self.begun = not before or (answers.sent > 0 and not self._is_refused(answers))
            if before and len(answers.results) >= len(before):
                beside = answers.results[len(before) - 1].get_value(0, 0)
                if beside is not None:
                    self._on_beside(numbers(beside))
        return answers

    def _is_refused(self, answers: Answers) -> bool:
        """Whether the first of these has failed, and has left no transaction."""
        idle = self.conn.pgconn.transaction_status == TransactionStatus.IDLE
        return answers.error is not None and not answers.results and idle

    def _beginning(self) -> Sequence[Query]:
        me = self._instance
        everywhere = "everywhere" if self.everywhere else None
        of_instance = (me.xid, me.xinst, text_array(me.sites), self._key, everywhere)
        if me.isolation == _USUAL and self.conn.starts:
            return (Query(_sql.START, *of_instance, _USUAL),)
        return Query(f"BEGIN ISOLATION LEVEL {me.isolation}".encode()), Query(_sql.BEGIN, *of_instance)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Whatever is raised in here, an interruption too, has the handler believe that the statement has not been: so
        the branch has failed, unless the handler goes back to a savepoint.
        """
        self._statements += 1
        try:
            yield
        except BaseException as error:
            self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        if isinstance(error, psycopg.Error):
            self._raised.add(error)
        self._failed = self._failed or (self._statements, error)
        self._ended |= self.begun and self.conn.pgconn.transaction_status == TransactionStatus.IDLE
        if self._refusal is None and isinstance(error, psycopg.Error) and (is_protocol(error) or self._ended):
            self._refusal = error


async def _nothing(_: psycopg.AsyncCursor[Any]) -> None:
    pass


async def read_count(cursor: psycopg.AsyncCursor[Any]) -> int:
    return cursor.rowcount


async def read_one(cursor: psycopg.AsyncCursor[Any]) -> Any:
    return await cursor.fetchone()


async def read_all(cursor: psycopg.AsyncCursor[Any]) -> list[Any]:
    return await cursor.fetchall()


class Site:
    """What a handler sees of a branch: `tx.store`. SQL is psycopg's, with `%s` or `%(name)s` for parameters.

    An error of PostgreSQL comes as its psycopg.Error. A handler that goes on after one without `savepoint` cannot
    make the transaction succeed any more: it has failed at this site, and so everywhere. The same goes for a statement
    that the handler interrupts, by a time-out of its own, say, and for one that still runs when the handler returns.

    They are awaited. Where there is no event loop, as in a plain function that a framework runs in a thread, they raise
    RuntimeError.
    """

    def __init__(self, branch: Branch) -> None:
        self._branch = branch

    def execute(self, sql: Statement, params: Params | None = None) -> Awaited[int]:
        """Run a statement; the number of rows it touched, -1 where PostgreSQL tells none."""
        check_can_await()
        return self._branch.run(sql, params, read_count)

    def execute_many(self, sql: Statement, params_seq: Iterable[Params]) -> Awaited[int]:
        """Run a statement once for each of these parameters, in few round trips; the number of rows that all of them
        touched.
        """
        check_can_await()
        return self._branch.run_many(sql, params_seq)

    def fetch_one(self, sql: Statement, params: Params | None = None) -> Awaited[Any]:
        """Run a statement; its first row, with an attribute per column (`row.o_id`), or None."""
        check_can_await()
        return self._branch.run(sql, params, read_one)

    def fetch_all(self, sql: Statement, params: Params | None = None) -> Awaited[list[Any]]:
        """Run a statement; all of its rows, as in `fetch_one`."""
        check_can_await()
        return self._branch.run(sql, params, read_all)

    def copy(self, sql: Statement, params: Params | None = None) -> AbstractAsyncContextManager[Copy]:
        """`async with tx.store.copy("COPY item FROM STDIN") as copy:` writes the rows of a COPY, or with TO STDOUT
        reads them to their end. Until the block has ended the site takes no statements; if it raises, the COPY has
        failed.
        """
        return self._branch.copy(sql, params)

    def finish_with(self, sql: Statement, params: Params | None = None) -> None:
        """Give the handler's last statement here. It runs when the handler has returned, in one round trip with
        mip.prepare (or mip.commit_one_phase), and returns nothing; if it fails, so does the attempt, as with an error
        that a handler raises. No COPY.
        """
        self._branch.finish_with(sql, params)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """`async with tx.store.savepoint():` undoes what was done here since then if the block raises, and nothing
        at other sites. What another task of the handler has done here meanwhile goes, too, and it is not told.
        """
        return self._branch.savepoint()
