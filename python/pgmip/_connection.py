"""A connection to a site: how it is made, whether it is any good, and how to end it without asking the server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self, TypeVar, cast

import psycopg
from psycopg import capabilities
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Wait, wait_conn
from psycopg_pool import AsyncConnectionPool

from ._blocking import Exchange
from ._cancellation import ended, obeyed, uninterrupted
from ._reader import Reader, begun

__all__ = [
    "Connection",
    "ObedientConnection",
    "PooledConnection",
    "connected",
    "cut",
    "cut_after",
    "is_silent",
    "is_usable",
]


_AGAIN = 0.05  # seconds until a server is asked again to end a statement, and then twice as long each time

Connection = psycopg.AsyncConnection[Any]
C = TypeVar("C", bound=Connection)
T = TypeVar("T")


class ObedientConnection(Connection):
    """One whose statements end when they are cancelled."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_cut = asyncio.Event()
        self.starts = True
        """Whether a transaction may be begun by mip.start: not where its sessions run at another isolation level."""
        self.reader = Reader(self.pgconn)
        self._again: asyncio.Task[None] | None = None
        self._enough = asyncio.Event()

    async def wait(self, *args: Any, **options: Any) -> Any:
        """As psycopg does; but that of 3.2 may swallow a cancellation. What has been asked of the server for one
        statement does not reach the next one.
        """
        if self._again is not None:
            await self._end_asking()
        self.reader.stop()
        try:
            return await obeyed(super().wait(*args, **options))
        finally:
            if self._again is not None:
                await self._end_asking()

    async def exchange(self, work: PQGen[T]) -> T:
        """As `wait`, for what sends first and then only reads."""
        if self._again is not None:
            await self._end_asking()
        try:
            waits_for = next(work)
            if waits_for == Wait.R and self.reader.start():
                return await self.reader.read(work)
        except StopIteration as end:
            return cast(T, end.value)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
            with contextlib.suppress(psycopg.Error):  # as where the connection has ended, too
                await self.wait(begun(work, error))  # has the server end it, and raises
            raise
        finally:
            if self._again is not None:
                await self._end_asking()
        return cast(T, await self.wait(begun(work, waits_for)))  # there is too much to be sent at once

    async def close(self) -> None:
        self.reader.stop()
        await super().close()

    def __del__(self, *args: Any) -> None:
        if hasattr(self, "reader"):
            self.reader.drop()
        super().__del__(*args)

    async def cancel_safe(self, **options: Any) -> None:
        """Have the server end the statement. It is asked again, without anybody waiting, until the statement has ended:
        what arrives before a statement has begun there is forgotten.
        """
        await self._ask(**options)
        if (self._again is None or self._again.done()) and self._runs():
            self._enough.clear()
            self._again = asyncio.create_task(self._ask_again(**options))

    async def _ask(self, **options: Any) -> None:
        """Ask once. Who is cancelled twice does that nevertheless, or the statement would go on; but nobody waits for a
        server that does not answer once the connection has been cut.
        """
        asked = asyncio.create_task(super().cancel_safe(**options))
        given_up = asyncio.create_task(self.is_cut.wait())
        try:
            await uninterrupted(asyncio.wait({asked, given_up}, return_when=asyncio.FIRST_COMPLETED))
        finally:
            given_up.cancel()
            asked.add_done_callback(lambda task: task.cancelled() or task.exception())  # which counts as seen
        if not asked.done():
            raise psycopg.errors.CancellationTimeout("the connection was cut before the server had been asked")
        asked.result()

    async def _ask_again(self, **options: Any) -> None:
        pause = _AGAIN
        while self._runs():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._enough.wait()
                return
            pause *= 2
            if self._runs():
                with contextlib.suppress(psycopg.Error, OSError):  # the next time, perhaps
                    await self._ask(**options)

    def _runs(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE and not self.is_cut.is_set()

    async def _end_asking(self) -> None:
        """Once the statement has ended."""
        if self._again is not None and not self._runs():
            self._enough.set()
            again, self._again = self._again, None
            await ended([again])


class PooledConnection(ObedientConnection):
    """Outside any transaction until told otherwise (autocommit)."""

    heard: float
    """When the server was last known to answer, by the monotonic clock."""
    discarded = False
    """Whether it is given back closed, on purpose."""
    pool: AsyncConnectionPool[PooledConnection]
    """Where it was taken from."""
    taken: float
    """When that was, by the monotonic clock."""
    in_thread = False
    """Whether a thread uses it, which drives its coroutines (see _blocking.py), and not the event loop."""
    until = math.inf
    was_cut = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # A copy of its descriptor, to cut it by while another thread waits: libpq closes its own whenever it finds the
        # connection broken, and that number is another one's at once.
        self._copy: int | None = None
        self._of_copy = threading.RLock()

    async def wait(self, *args: Any, **options: Any) -> Any:
        return await (Exchange(self, *args) if self.in_thread else super().wait(*args, **options))

    async def exchange(self, work: PQGen[T]) -> T:
        return await (Exchange(self, work) if self.in_thread else super().exchange(work))

    async def cancel_safe(self, **options: Any) -> None:
        """As a statement asks for that is driven in a thread, too: by psycopg where it leaves a COPY early."""
        if not self.in_thread:
            await super().cancel_safe(**options)
        elif capabilities.has_cancel_safe():
            wait_conn(self._cancel_gen(), interval=_AGAIN, timeout=options.get("timeout"))
        else:
            self.cancel()

    async def cancel_from_loop(self, **options: Any) -> None:
        """Have the server end a statement that a thread waits for."""
        await super().cancel_safe(**options)

    def let_go(self) -> bool:
        """In the event loop: have it look at this no more, so that a thread may use it; whether that one can."""
        try:
            if self._copy is None:
                self._copy = os.dup(self.pgconn.socket)
        except (OSError, psycopg.Error):  # there may be no descriptor to be had
            return False
        self.reader.stop()
        return True

    def cut(self) -> None:
        """Have whoever waits for it in a thread get psycopg.OperationalError. From any thread."""
        self.was_cut = True
        with self._of_copy:
            if self._copy is not None:
                _shut_down(self._copy)

    async def close(self) -> None:
        self._close_copy()
        await super().close()

    def abandon(self) -> None:
        """Close it where the event loop is no more that it belongs to, or in the thread that uses it."""
        self._close_copy()
        self.reader.stop()
        self.pgconn.finish()

    def _close_copy(self) -> None:
        with self._of_copy:
            copy, self._copy = self._copy, None
            if copy is not None:
                os.close(copy)

    def __del__(self, *args: Any) -> None:
        if hasattr(self, "_of_copy"):
            self._close_copy()
        super().__del__(*args)

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, patience: float, ended: Callable[[psycopg.OperationalError | None], None],
        **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Connect within `patience` seconds, and tell `ended` of the error, or of None."""
        try:
            # In SQL_ASCII, a database's or $PGCLIENTENCODING's, psycopg would have bytes for text.
            attempt = super().connect(conninfo, autocommit=True, client_encoding="utf-8", **kwargs)
            conn = await connected(attempt, patience)
        except psycopg.OperationalError as error:
            ended(error)
            raise
        ended(None)
        conn.heard = time.monotonic()
        return conn


async def connected(attempt: Awaitable[C], patience: float | None) -> C:
    """What `attempt` connects to. Whatever is in its way is a psycopg.OperationalError: a server that does not answer
    within `patience` seconds (None: it sees to that itself), and a conninfo that libpq or the name service does not
    understand.
    """
    try:
        async with asyncio.timeout(patience):
            return await obeyed(attempt, psycopg.AsyncConnection.close)
    except TimeoutError:
        raise psycopg.OperationalError(f"no connection within {patience:g} s") from None
    except psycopg.OperationalError:
        raise
    except (psycopg.Error, OSError, ValueError) as error:
        raise psycopg.OperationalError(str(error)) from error


def is_silent(conn: Connection) -> bool:
    """Whether the connection stands, as far as is known here, and has nothing to say.

    While no statement runs, what can be read is the end of the connection, or a farewell.
    """
    if conn.closed:
        return False
    poll = select.poll()
    try:
        poll.register(conn.pgconn.socket, select.POLLIN)
    except psycopg.OperationalError:  # by a thread that uses it, meanwhile
        return False
    return not poll.poll(0)


def is_usable(conn: Connection) -> bool:
    """Whether a transaction can begin here."""
    return not conn.closed and conn.pgconn.transaction_status == TransactionStatus.IDLE and is_silent(conn)


@contextlib.contextmanager
def cut_after(conn: Connection, seconds: float) -> Iterator[None]:
    """Cut the connection if the block takes longer: what waits for its answer gets a psycopg.OperationalError that says
    so.

    Unlike a cancellation this asks nothing of the server, so it also ends a wait for one that has stopped talking.
    """
    if isinstance(conn, PooledConnection) and conn.in_thread:
        with _cut_from(conn, seconds):
            yield
        return
    late = False

    def give_up() -> None:
        nonlocal late
        late = True
        cut(conn)

    timer = asyncio.get_running_loop().call_later(seconds, give_up)
    try:
        yield
    except psycopg.OperationalError as error:
        if late and type(error) is psycopg.OperationalError:  # libpq's: the server has closed the connection
            raise psycopg.OperationalError(f"no answer within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()


@contextlib.contextmanager
def _cut_from(conn: PooledConnection, seconds: float) -> Iterator[None]:
    """The same where a thread waits."""
    before = conn.until
    conn.until = until = min(before, time.monotonic() + seconds)
    try:
        yield
    except psycopg.OperationalError as error:
        if time.monotonic() >= until and conn.was_cut and type(error) is psycopg.OperationalError:
            raise psycopg.OperationalError(f"no answer within {seconds:g} s") from error
        raise
    finally:
        conn.until = before


def cut(conn: Connection) -> None:
    """End a connection without a word to the server: what waits for its answer gets psycopg.OperationalError."""
    if isinstance(conn, ObedientConnection):
        conn.is_cut.set()
    if conn.closed:
        return
    if isinstance(conn, PooledConnection) and conn.in_thread:
        conn.cut()
        return
    _shut_down(conn.pgconn.socket)  # not a copy: there may be no descriptor to be had


def _shut_down(number: int) -> None:
    wire = socket.socket(fileno=number)
    try:
        with contextlib.suppress(OSError):  # not connected any more
            wire.shutdown(socket.SHUT_RDWR)
    finally:
        wire.detach()
