"""The operations that an App is at, so that it can end them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from ._cancellation import ended
from ._process import Home
from .exceptions import Unknown

__all__ = ["Running"]

T = TypeVar("T")


class Running:
    """Runs each operation as a task of its own. Whoever is cancelled gets away only when it has ended, or answered."""

    def __init__(self, home: Home) -> None:
        """`home`: where they run."""
        self._home = home
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._beside: asyncio.Task[None] | None = None
        self._closed = False

    async def run(self, work: Coroutine[Any, Any, T], xid: str, answered: asyncio.Future[T] | None = None) -> T:
        """What `work` returns or raises; or what it has `answered` with before it has ended, which it then does by
        itself, and `close` waits for it. Raises Unknown where it was not begun, or not finished, because of the end,
        and RuntimeError in a process that was forked since the first operation, and in another event loop.
        """
        try:
            self._home.check()
            if self._closed:
                raise Unknown("this App is closed: submit to another server", xid=xid)
        except BaseException:
            work.close()
            raise
        task = self._begin(work)
        try:
            await asyncio.wait({task} if answered is None else {task, answered}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if answered is not None and answered.done():
                task.add_done_callback(_tell_the_loop)
            else:
                self._cancel(task)
                with contextlib.suppress(asyncio.CancelledError):
                    await ended([task])
            raise
        if answered is not None and answered.done() and not task.done():
            task.add_done_callback(_tell_the_loop)
            return answered.result()
        if task.cancelled():  # not because of us
            how = "this App was closed meanwhile: submit to another server" if self._closed else "cancelled from within"
            raise Unknown(how, xid=xid)
        return task.result()

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin what nobody waits for, unless this is the end, which cancels it at once."""
        if self._closed:
            work.close()
        else:
            self._beside = self._begin(work)
            self._beside.add_done_callback(_tell_the_loop)

    def also(self, work: Coroutine[Any, Any, None]) -> bool:
        """Begin what nobody waits for but `close`; whether this is not the end."""
        if self._closed:
            work.close()
        else:
            self._begin(work).add_done_callback(_tell_the_loop)
        return not self._closed

    async def close(self, grace: float) -> None:
        """Begin nothing more, give what runs `grace` seconds to finish, then cancel it."""
        if self._home.is_gone:  # and what ran there
            self._closed = True
            return
        self._home.check()
        self._closed = True
        current = asyncio.current_task()
        if self._beside is not None:
            self._cancel(self._beside)
        if others := self._tasks - {current}:
            await asyncio.wait(others, timeout=grace)
        for task in self._tasks - {current}:
            self._cancel(task)
        while others := self._tasks - {current}:
            await asyncio.wait(others)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        """Once: a second time would interrupt it in cleaning up."""
        if task not in self._cancelled:
            self._cancelled.add(task)
            task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # seen, also by whoever has had an answer before
        self._tasks.discard(task)
        self._cancelled.discard(task)


def _tell_the_loop(task: asyncio.Task[Any]) -> None:
    """Of what nobody waits for any more, and is no Exception: these are logged as those of any operation."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, Exception):
        task.get_loop().call_exception_handler(
            {"message": "pgmip: a request that has been answered was interrupted", "exception": error, "task": task}
        )
