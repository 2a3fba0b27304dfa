"""Connections of one site, kept for reuse."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

__all__ = ["Connection", "Pool", "at_site", "cut", "cut_after"]

T = TypeVar("T")

Connection = psycopg.AsyncConnection[Any]


class Pool:
    """At most `size` transactions at a time at one site.

    The limit is for transactions only, never for the statements that finish one: a commit that had to wait for a
    connection of a transaction which itself waits for rows of what is to be committed would wait for ever.
    """

    def __init__(self, site: str, conninfo: str, size: int, timeout: float) -> None:
        self.site = site
        self._conninfo = conninfo
        self._size = size
        self._timeout = timeout
        self._slots = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._closed = False

    async def reserve(self) -> None:
        """Wait for one's turn to run a transaction. To be paired with `unreserve`."""
        await self._slots.acquire()

    def unreserve(self) -> None:
        self._slots.release()

    async def take(self) -> Connection:
        """A connection outside any transaction, to be handed to `give`. Raises psycopg.OperationalError."""
        if self._closed:
            raise psycopg.OperationalError(f"the pool of site {self.site!r} is closed")
        while self._idle:
            conn = self._idle.pop()
            if _usable(conn):
                return conn
            # The server has gone away, and so have most likely its other connections.
            await conn.close()
        try:
            async with asyncio.timeout(self._timeout):
                return await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        except TimeoutError:
            raise psycopg.OperationalError(f"no connection to site {self.site!r} within {self._timeout:g} s") from None

    async def give(self, conn: Connection) -> None:
        """Take a connection back. One that is not clean is closed, which ends what it was doing."""
        if self._closed or len(self._idle) >= self._size or not _usable(conn):
            await conn.close()
        else:
            self._idle.append(conn)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for one statement outside the limit."""
        conn = await self.take()
        try:
            yield conn
        except psycopg.Error:
            await self.give(conn)
            raise
        except BaseException:
            await conn.close()
            raise
        await self.give(conn)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().close()


async def at_site(pool: Pool, work: Callable[[Connection], Awaitable[T]], conn: Connection | None = None) -> T:
    """Do a statement that may be repeated: over `conn` if it is usable, and if not, or if it breaks, over another."""
    if conn is not None and _usable(conn):
        try:
            return await work(conn)
        except psycopg.Error:
            if not conn.closed:
                raise
    async with pool.connection() as other:
        return await work(other)


@contextmanager
def cut_after(conn: Connection, seconds: float) -> Iterator[None]:
    """Cut the connection if the block takes longer.

    Unlike a cancellation this asks nothing of the server, so it also ends a wait for one that has stopped talking.
    """
    timer = asyncio.get_running_loop().call_later(seconds, cut, conn)
    try:
        yield
    finally:
        timer.cancel()


def cut(conn: Connection) -> None:
    """End a connection without a word to the server: what waits for its answer gets psycopg.OperationalError."""
    if not conn.closed:
        with socket.socket(fileno=os.dup(conn.pgconn.socket)) as wire:
            wire.shutdown(socket.SHUT_RDWR)


def _usable(conn: Connection) -> bool:
    if conn.closed or conn.pgconn.transaction_status != TransactionStatus.IDLE:
        return False
    # An idle connection has nothing to say: what can be read is the end of the connection, or a farewell.
    poll = select.poll()
    poll.register(conn.pgconn.socket, select.POLLIN)
    return not poll.poll(0)
