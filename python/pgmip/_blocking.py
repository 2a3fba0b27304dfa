"""Statements in a thread without an event loop: coroutines that wait for nothing but connections are run to their end,
while the thread waits for these.
"""

from __future__ import annotations

import functools
import math
import select
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

__all__ = ["Exchange", "Line", "drive", "driven"]

T = TypeVar("T")

_LONGEST = 3600.0  # seconds to wait at a time


class Line(Protocol):
    """A connection, as far as is needed to wait for it."""

    pgconn: PGconn
    until: float
    """When it is cut, by the monotonic clock, where its server has not answered by then."""

    def cut(self) -> None:
        """End it without a word to the server, which then has something to say: that it has ended."""


class Exchange(Generic[T]):
    """To be awaited in a coroutine that is driven: one of psycopg's generators, on one connection."""

    def __init__(self, line: Line, work: PQGen[T]) -> None:
        self.line = line
        self.work = work

    def __await__(self) -> Generator[Exchange[T], T, T]:
        return (yield self)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns or raises."""
    (driven_,) = driven([work])
    return driven_.result()


class Driven(Generic[T]):
    """A coroutine that is driven, to its end."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._exchange: Exchange[Any]
        self._waits_for = Wait.R
        self._result: T
        self._error: BaseException | None = None
        self.is_done = False
        self._resume(functools.partial(work.send, None))

    def result(self) -> T:
        """Raises what the coroutine has raised."""
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def line(self) -> Line:
        """What it waits for."""
        return self._exchange.line

    def register(self, poll: select.poll) -> int | None:
        """Have this look at the connection; by which number. None where that is closed, which the coroutine learns."""
        try:
            number = self.line.pgconn.socket
        except Exception as error:
            self._go_on(functools.partial(self._exchange.work.throw, error))
            return None
        reads, writes = self._waits_for & Wait.R, self._waits_for & Wait.W
        poll.register(number, (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0))
        return number

    def tell(self, events: int) -> None:
        """Go on, as that has been seen."""
        ended = events & (select.POLLHUP | select.POLLERR)
        reads = Ready.R if events & select.POLLIN or ended else 0
        writes = Ready.W if events & select.POLLOUT or ended else 0
        self._go_on(functools.partial(self._exchange.work.send, reads | writes))

    def _go_on(self, step: Callable[[], Any]) -> None:
        """With what the coroutine waits for."""
        try:
            self._waits_for = step()
        except StopIteration as end:
            self._resume(functools.partial(self._work.send, end.value))
        except BaseException as error:
            self._resume(functools.partial(self._work.throw, error))

    def _resume(self, step: Callable[[], Any]) -> None:
        """With the coroutine itself."""
        try:
            waits_for = step()
        except StopIteration as end:
            self._result, self.is_done = end.value, True
        except BaseException as error:
            self._error, self.is_done = error, True
        else:
            if isinstance(waits_for, Exchange):
                self._exchange = waits_for
                self._go_on(functools.partial(next, waits_for.work))
            else:
                why = RuntimeError(f"a thread that waits for connections cannot wait for {waits_for!r}")
                self._resume(functools.partial(self._work.throw, why))


def driven(works: Sequence[Coroutine[Any, Any, T]]) -> list[Driven[T]]:
    """Run these to their end, all at the same time, each on a connection of its own."""
    all_of_them = [Driven(work) for work in works]
    while running := [one for one in all_of_them if not one.is_done]:
        _wait(running)
    return all_of_them


def _wait(running: Sequence[Driven[Any]]) -> None:
    """For one of them, at least."""
    poll = select.poll()
    by_number = {number: one for one in running if (number := one.register(poll)) is not None}
    if len(by_number) < len(running):
        return
    until = min(one.line.until for one in running)
    left = max(0.0, until - time.monotonic())
    seen = poll.poll(None if until == math.inf else math.ceil(min(left, _LONGEST) * 1000))
    for number, events in seen:
        by_number[number].tell(events)
    if not seen:
        now = time.monotonic()
        for one in running:
            if one.line.until <= now:
                one.line.until = math.inf
                one.line.cut()
