"""Cancellations: that none is lost on its way, and that none interrupts what has to be carried to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

__all__ = ["ended", "obeyed", "uninterrupted"]

T = TypeVar("T")


async def obeyed(work: Awaitable[T], discard: Callable[[T], Awaitable[object]] | None = None) -> T:
    """What `work` returns or raises; a cancellation (and so a time-out) that it has swallowed takes effect here.

    asyncio.wait_for of Python 3.11 swallows one that arrives together with what it waits for. `discard` is called
    with what nobody takes then.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        result = await work
    except Exception as error:
        if task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
    if task.cancelling() > before:
        if discard is not None:
            await discard(result)
        raise asyncio.CancelledError
    return result


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises. A cancellation has to wait for that."""
    task = asyncio.create_task(work)
    await ended([task])
    return task.result()


async def ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until all of them have ended, and not less if cancelled meanwhile. Their exceptions count as seen."""
    asyncio.get_running_loop()  # raises where there is none, in which nothing would ever end
    late: BaseException | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except GeneratorExit:
            raise  # the loop itself has ended
        except BaseException as error:
            late = error
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if late is not None:
        raise late
