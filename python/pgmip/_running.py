"""The operations that an App is at, so that it can end them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .exceptions import Unknown

__all__ = ["Running"]

T = TypeVar("T")


class Running:
    """Runs each operation as a task of its own. Whoever is cancelled gets away only when it has ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()  # by us, not by themselves
        self._closed = False

    async def run(self, work: Coroutine[Any, Any, T], xid: str) -> T:
        """What `work` returns or raises. Raises Unknown where it was not begun, or not finished, because of the end."""
        if self._closed:
            work.close()
            raise Unknown("this App is closed: submit to another server", xid=xid)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await _end_of(task)
            raise
        if task.cancelled() and task in self._ended:
            self._ended.discard(task)
            raise Unknown("this App was closed meanwhile: submit to another server", xid=xid)
        return task.result()

    async def close(self, grace: float) -> None:
        """Begin nothing more, give what runs `grace` seconds to finish, then cancel it."""
        self._closed = True
        current = asyncio.current_task()
        if others := self._tasks - {current}:
            await asyncio.wait(others, timeout=grace)
        for task in self._tasks - {current}:
            self._ended.add(task)
            task.cancel()
        while others := self._tasks - {current}:
            await asyncio.wait(others)


async def _end_of(task: asyncio.Task[Any]) -> None:
    """Wait for it, and not less if asked again to hurry: what it cleans up would stay otherwise."""
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()  # has been seen
