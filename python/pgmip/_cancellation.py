"""Cancellations: that none is lost on its way, and that none interrupts what has to be carried to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from typing import Any, TypeVar, cast

__all__ = ["begun_here", "ended", "obeyed", "uninterrupted"]

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


async def begun_here(work: Coroutine[Any, Any, T]) -> T:
    """The same for what hardly ever has to wait, which takes no task then. What it does before it waits for the first
    time is done in the caller's task: it may not look at cancellations there, nor set a time limit.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    return await uninterrupted(_Begun(work, waits_for))


class _Begun(Coroutine[Any, Any, T]):
    """One that waits for something already."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = [waits_for]  # until whoever runs it has been told

    def send(self, value: Any) -> Any:
        return self._waits_for.pop() if self._waits_for else self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("a task runs it")


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
