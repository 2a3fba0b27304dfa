"""Waiting for what a server says. psycopg's way to wait makes the event loop learn of a connection for each answer, and
forget it again: together with a timer, that is a sixth of what a transaction costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import socket
from typing import Any, TypeVar, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

__all__ = ["Reader", "begun"]

T = TypeVar("T")


class Reader:
    """Runs one after another of psycopg's generators, as far as they read, on one connection; the event loop looks at
    that as long as nothing else does.

    It looks at a copy of the descriptor. libpq closes its own whenever it finds the connection broken; and what is
    closed while the loop looks at it may be another connection's by then, or is reported for ever where a process that
    was forked from this one has it, too.
    """

    def __init__(self, wire: PGconn) -> None:
        self._wire = wire
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._copy: socket.socket | None = None
        self._work: PQGen[Any] | None = None
        self._answer: asyncio.Future[Any] | None = None

    def start(self) -> bool:
        """Have the event loop look; whether it does. There may be no descriptor to be had."""
        loop = asyncio.get_running_loop()
        if self._copy is not None and self._loop is not loop:
            self.stop()
        if self._copy is None:
            try:
                self._copy = socket.fromfd(self._wire.socket, socket.AF_UNSPEC, socket.SOCK_STREAM)
                self._loop, self._pid = loop, os.getpid()
                # Not in the context of whoever is the first to wait: it would be kept as long as the connection.
                contextvars.Context().run(loop.add_reader, self._copy.fileno(), self._readable)
            except BaseException as error:
                self.stop()
                if not isinstance(error, OSError):
                    raise
        return self._copy is not None

    def stop(self) -> None:
        """Before anything else waits for the connection, or closes it: whoever reads still gets
        psycopg.OperationalError.
        """
        copy, self._copy = self._copy, None
        there = self._loop is not None and not self._loop.is_closed()
        if copy is not None:
            if there and self._pid == os.getpid():  # what a forked process has is its parent's
                assert self._loop is not None
                self._loop.remove_reader(copy.fileno())
            copy.close()
        if there and self._answer is not None and not self._answer.done():
            self._answer.set_exception(psycopg.OperationalError("the connection was closed meanwhile"))

    def drop(self) -> None:
        """Stop some time: nobody has the connection any more, and this is any thread."""
        if self._copy is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # closed, and so it has let go
                self._loop.call_soon_threadsafe(self.stop)

    async def read(self, work: PQGen[T]) -> T:
        """What a generator returns that waits to read, and will wait for nothing else; once `start` has said so. When
        cancelled, it still waits.
        """
        assert self._loop is not None
        self._work, self._answer = work, self._loop.create_future()
        try:
            return cast(T, await self._answer)
        finally:
            self._work = self._answer = None

    def _readable(self) -> None:
        answer = self._answer
        if answer is None or answer.done():  # a farewell, or nobody waits any more
            self.stop()
            return
        assert self._work is not None
        try:
            self._work.send(Ready.R)
        except StopIteration as end:
            answer.set_result(end.value)
        except BaseException as error:  # for who waits, instead of the event loop
            answer.set_exception(error)
        if self._wire.status != ConnStatus.OK:
            self.stop()


def begun(work: PQGen[T], last: Wait | BaseException) -> PQGen[T]:
    """A generator that has begun, for who begins it: it waits for the same once more, or raises."""
    return cast(PQGen[T], _Begun(work, last))


class _Begun:
    def __init__(self, work: PQGen[Any], last: Wait | BaseException) -> None:
        self._work = work
        self._last: Wait | BaseException | None = last

    def __next__(self) -> Wait:
        last, self._last = self._last, None
        if isinstance(last, BaseException):
            raise last
        return next(self._work) if last is None else last

    def send(self, ready: Ready | int) -> Wait:
        return self._work.send(ready)
