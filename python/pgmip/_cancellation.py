"""Cancellations: that none is lost on its way, and that none interrupts what has to be carried to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from typing import Any, TypeVar, cast

__all__ = ["Begun", "begun_here", "ended", "obeyed", "uninterrupted"]

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
    begun = Begun(work)
    return begun.result if begun.is_done else await uninterrupted(begun)


class Begun(Coroutine[Any, Any, T]):
    """One that has been run, in the caller's task, until it waits for something, or to its end. Raises what it raises
    by then.
    """

    result: T
    """What it has returned, where it `is_done`."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._waits_for: list[Any] = []  # until whoever runs it has been told
        try:
            self._waits_for.append(work.send(None))
        except StopIteration as end:
            self.result = end.value
        self.is_done = not self._waits_for

    def send(self, value: Any) -> Any:
        return self._waits_for.pop() if self._waits_for else self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return cast(Generator[Any, Any, T], self)

    def __next__(self) -> Any:
        return self.send(None)


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
