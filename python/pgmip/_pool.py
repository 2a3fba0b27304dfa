"""Connections of one site, kept for reuse."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ._cancellation import Begun, begun_here, obeyed, uninterrupted
from ._circuit import Circuit
from ._connection import PooledConnection, cut_after, is_usable
from ._process import Home
from ._spares import Spares
from .exceptions import SiteDown

__all__ = ["Pool", "PoolSettings", "at_site"]

T = TypeVar("T")

_FINISHING = 4  # connections for what finishes instances
_IN_DOUBT = 4  # connections for transactions of requests in doubt where there are no others
_TRUSTED = 5.0  # seconds for which an idle connection is taken to be good as long as its end has not been seen
_PATIENCE = 1.0  # seconds at most for a server to say that a connection is good; there may be a deadline
_FOR_EVER = 1e6


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many transactions may run at a site at a time, and how many connections are kept for them.

    `max_idle`: seconds after which connections that were not needed are closed, down to `min_size`; of those for what
    finishes instances as many are kept, as far as there are so many.
    `prepared_statements`: whether statements are prepared, to be planned and sent only once per connection.
    """

    min_size: int
    max_size: int
    max_idle: float
    prepared_statements: bool = True


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a connection comes back closed which was closed on purpose: any attempt that fails may do that."""
    conn = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return not (isinstance(conn, PooledConnection) and conn.discarded)


logging.getLogger("psycopg.pool").addFilter(_is_news)


class Pool:
    """The connections of one site: at most `max_size` for transactions, a few for those of requests in doubt, and a few
    for what finishes instances.

    The limit is never a limit for the statements that finish one: a commit that had to wait for a connection of a
    transaction which itself waits for rows of what is to be committed would wait for ever. So would a request in doubt.
    """

    def __init__(self, site: str, conninfo: str, settings: PoolSettings, timeout: float, home: Home) -> None:
        """`timeout`: seconds after which a server that does not answer counts as gone. `home`: where it is used."""
        self.site = site
        self._home = home
        self._closed = False
        self._conninfo = conninfo
        self._timeout = timeout
        self._options: dict[str, Any] = {} if settings.prepared_statements else {"prepare_threshold": None}
        self._circuit = Circuit(site, self._probe)
        self._made = weakref.WeakSet[PooledConnection]()
        self._transactions = self._connections("transactions", settings.min_size, settings.max_size, settings.max_idle)
        self._in_doubt = self._connections("in doubt", 0, _IN_DOUBT, settings.max_idle)
        ready = min(settings.min_size, _FINISHING)  # many may have to be finished at once, when another server has died
        self._finishing = self._connections("finishing", ready, _FINISHING, settings.max_idle)
        self.spares = Spares()
        self._stale: asyncio.TimerHandle | None = None  # when to look for such spares
        self._returning = set[asyncio.Task[None]]()

    async def check_up(self) -> None:
        """Raise SiteDown where a transaction could not have a connection for now."""
        await self._check_up(self._transactions)

    async def check_up_to_ask(self) -> None:
        """The same for what finishes instances."""
        await self._check_up(self._finishing)

    def reached(self) -> None:
        """Somebody has connected to the site by himself: it is not down."""
        self._circuit.connected(None)

    async def open(self) -> None:
        """Begin to connect, where connections are to be kept; those for what finishes instances once the site has
        answered, as who wants to ask it would wait for them. What is not open yet opens when it is used; what has been
        closed stays so.
        """
        self._home.check()
        if not self._closed:
            await self._transactions.open()

    async def take(self, patience: float) -> PooledConnection | None:
        """Wait for one's turn to run a transaction. A connection outside any, to be handed to `give`; None where it
        has not come within `patience` seconds.

        Raises SiteDown, at once where that is known, and another psycopg.OperationalError where the pool is closed.
        """
        try:
            return await self._take(self._transactions, patience)
        except PoolTimeout:
            return None

    async def take_in_doubt(self) -> PooledConnection:
        """The same for a request in doubt, which has been waiting for its turn. Does not lose patience."""
        return await self._take(self._in_doubt)

    async def give(self, conn: PooledConnection, *, good: bool = True) -> None:
        """Take a connection back. One that is not `good`, or not clean, is closed, which ends what it was doing."""
        is_spare = False
        try:
            if good and is_usable(conn):
                conn.heard = time.monotonic()
                is_spare = conn.pool is self._transactions and self.spares.add(conn)
            else:
                conn.discarded = True
                self.spares.forget(conn)
                await conn.close()
        finally:
            if is_spare:
                self._look_for_stale()
            else:
                await begun_here(conn.pool.putconn(conn))

    def give_soon(self, conn: PooledConnection) -> None:
        """The same without waiting for it."""
        self._begin(self.give(conn))

    def spare(self) -> PooledConnection | None:
        """One for a transaction that a thread runs by itself, and puts back into `spares`; None where there is none at
        hand.
        """
        return self.spares.take(self._circuit.trusted(_TRUSTED))

    @asynccontextmanager
    async def finishing(self, patience: float = _FOR_EVER) -> AsyncIterator[PooledConnection]:
        """A connection for one statement outside the limit. Raises as `take` does, and PoolTimeout where there is none
        within `patience` seconds.
        """
        conn = await self._take(self._finishing, patience)
        good = True
        try:
            yield conn
        except BaseException as error:
            good = isinstance(error, psycopg.Error) and not _has_forgotten(error)
            raise
        finally:
            await self.give(conn, good=good)

    async def close(self) -> None:
        """Close what is idle, and everything else as it comes back."""
        if not self.abandon():
            await uninterrupted(self._close())

    def abandon(self) -> bool:
        """Close what is there, where the event loop is no more that all else belongs to; whether that is so."""
        gone = self._home.is_gone
        self._closed |= gone
        if gone:
            self.spares.close()
            for conn in tuple(self._made):
                if not conn.in_thread:  # whoever uses it there abandons it himself
                    conn.abandon()
        return gone

    async def _close(self) -> None:
        self._closed = True
        if self._stale is not None:
            self._stale.cancel()
        await self._put_back(self.spares.close())
        await self._circuit.close()
        # A worker of the pool that is connecting just now ends within the timeout.
        pools = (self._transactions, self._in_doubt, self._finishing)
        await asyncio.gather(*(pool.close(timeout=self._timeout + 1) for pool in pools))

    def _connections(
        self, purpose: str, min_size: int, max_size: int, max_idle: float
    ) -> AsyncConnectionPool[PooledConnection]:
        return AsyncConnectionPool(
            self._conninfo,
            connection_class=PooledConnection,
            kwargs={"patience": self._timeout, "ended": self._circuit.connected, **self._options},
            configure=self._note,
            min_size=min_size,
            max_size=max_size,
            max_idle=max_idle,
            name=f"{self.site}, {purpose}",
            reconnect_timeout=0,  # the circuit knows when to try again
            open=False,
        )

    async def _note(self, conn: PooledConnection) -> None:
        """One has been made: the site has answered."""
        self._made.add(conn)
        if self._finishing.closed and not self._closed:
            await self._finishing.open()

    async def _take(
        self, pool: AsyncConnectionPool[PooledConnection], patience: float = _FOR_EVER
    ) -> PooledConnection:
        self._home.check()
        if pool.closed and not self._closed:
            await pool.open()
        clock = asyncio.get_running_loop().time
        end = clock() + patience
        while True:
            # Who finishes instances may have no time left; a transaction may begin later.
            await self._check_up(pool, end - clock() if pool is self._finishing else _FOR_EVER)
            conn: PooledConnection | None = None
            good = False
            try:
                if pool is self._transactions:
                    with self.spares.wanted() as conn:
                        conn = conn or await self._of(pool, max(0.0, end - clock()))
                else:
                    conn = await self._of(pool, max(0.0, end - clock()))
                # Not the pool's own check: that pauses after each bad connection, and all of them go bad together.
                within = max(0.0, end - clock()) if pool is self._finishing else _PATIENCE
                good = await self._check(pool, conn, min(within, _PATIENCE, self._timeout))
                if good:
                    return conn
            except SiteDown:
                continue
            finally:
                if conn is not None:
                    conn.pool = pool
                    if not good:
                        await self.give(conn, good=False)

    async def _of(self, pool: AsyncConnectionPool[PooledConnection], timeout: float) -> PooledConnection:
        """The pool's next one."""
        begun = Begun(pool.getconn(timeout=timeout))
        if begun.is_done:
            conn = begun.result
        else:  # meanwhile one can be cancelled, or told that the site has gone
            async with self._circuit.guard():
                conn = await obeyed(begun, lambda conn: uninterrupted(pool.putconn(conn)))
        conn.taken = time.monotonic()
        return conn

    def _look_for_stale(self) -> None:
        """Some time, and as long as there are spares."""
        if self._stale is None and not self._closed:
            self._stale = asyncio.get_running_loop().call_later(_TRUSTED, self._return_stale)

    def _return_stale(self) -> None:
        self._stale = None
        if self.spares.any_left:
            self._look_for_stale()
        self._begin(self._put_back(self.spares.stale(_TRUSTED)))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._returning.add(task)  # the event loop alone would not keep it
        task.add_done_callback(self._returned)

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._returning.discard(task)
        if not task.cancelled():
            task.exception()  # which nobody is there to be told: the connection is closed, or has been given back

    async def _put_back(self, conns: Iterable[PooledConnection]) -> None:
        for conn in conns:
            await begun_here(conn.pool.putconn(conn))

    async def _check_up(
        self, pool: AsyncConnectionPool[PooledConnection], patience: float = _FOR_EVER
    ) -> None:
        any_idle = pool is self._transactions and self.spares.any_idle
        if self._circuit.broken and not (any_idle or pool.get_stats()["pool_available"]):
            await self._circuit.wait_closed(patience)

    async def _check(
        self, pool: AsyncConnectionPool[PooledConnection], conn: PooledConnection, within: float
    ) -> bool:
        """Whether an idle connection is still good. Asks the server only if that has been long; it has to answer
        `within` so many seconds.
        """
        if not is_usable(conn):
            return False
        if time.monotonic() - conn.heard < self._circuit.trusted(_TRUSTED):
            return True
        began = time.monotonic()
        try:
            with cut_after(conn, within):
                await pool.check_connection(conn)
        except psycopg.Error:
            await pool.drain()  # a server that has fallen silent will not answer over the others either
            for other in self.spares.stale(time.monotonic() - began) if pool is self._transactions else ():
                await self.give(other, good=False)
            return False
        return is_usable(conn)  # it may have been cut as it answered

    async def _probe(self) -> None:
        conn = await PooledConnection.connect(self._conninfo, patience=self._timeout, ended=self._circuit.connected)
        await conn.close()


async def at_site(
    pool: Pool,
    work: Callable[[PooledConnection], Awaitable[T]],
    conn: PooledConnection | None = None,
    *,
    patience: Callable[[], float] = lambda: _FOR_EVER,
) -> T:
    """Do a statement that may be repeated: over `conn` if it is usable, and if not, or if it breaks, over another,
    which has to be there within `patience()` seconds.
    """
    if conn is not None and is_usable(conn):
        try:
            return await work(conn)
        except psycopg.Error as error:
            if not (conn.closed or _has_forgotten(error)):
                raise
            await conn.close()
    async with pool.finishing(patience()) as other:
        return await work(other)


def _has_forgotten(error: psycopg.Error) -> bool:
    """Whether somebody has dropped the prepared statements of a connection: it says the same as long as it lives."""
    return isinstance(error, psycopg.errors.InvalidSqlStatementName)
