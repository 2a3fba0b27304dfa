"""That a handler does not begin operations of its own, whose effects would not end with its attempt."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from ._tx import Handler, Tx

__all__ = ["check_outside", "handled", "handling"]


class _Operation:
    """One that runs handlers, as these see it."""

    def __init__(self, answered: asyncio.Future[Any] | None) -> None:
        self._answered = answered
        self.over = False

    @property
    def running(self) -> bool:
        return not (self.over or (self._answered is not None and self._answered.done()))


# Tasks that a handler makes inherit it, and so do threads of asyncio.to_thread.
_within: ContextVar[_Operation | None] = ContextVar("pgmip.within", default=None)


def check_outside(what: str) -> None:
    """Raise RuntimeError where `what` is asked for by a handler, or by a task of one, whose operation still runs.

    Tasks that have outlived the operation may go on: there are no more attempts that could come again.
    """
    operation = _within.get()
    if operation is not None and operation.running:
        raise RuntimeError(
            f"{what} within a handler: what it does would stay although this attempt fails, and come again with each "
            "retry. Do it in this transaction (declare its sites too, and await the other handler with this tx), "
            "or after this request has been answered"
        )


@contextlib.contextmanager
def handling() -> Iterator[Callable[[], None]]:
    """For an operation that runs a handler in a thread, and lasts as long as the block: what to call in that thread's
    context.
    """
    operation = _Operation(None)
    try:
        yield lambda: _within.set(operation) and None
    finally:
        operation.over = True


@contextlib.contextmanager
def handled(handler: Handler, answered: asyncio.Future[Any] | None = None) -> Iterator[Handler]:
    """The handler, to be run by one operation, which lasts as long as the block, or until it is `answered`."""
    operation = _Operation(answered)

    @functools.wraps(handler)
    async def within(tx: Tx, request: Any) -> Any:
        before = _within.get()
        _within.set(operation)
        try:
            return await handler(tx, request)
        finally:
            _within.set(before)  # not by a token: one that is never finished is closed in another context

    try:
        yield within
    finally:
        operation.over = True
