"""Commands that run until they are told to stop, and tell of what happens."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

__all__ = ["telling", "until_signalled"]

E = TypeVar("E")


@contextmanager
def telling(tell: Callable[[E], None], stop: Callable[[], None]) -> Iterator[Callable[[E], None]]:
    """`tell`, for who must not be disturbed. The first OSError, as when the reader has gone away, calls `stop`, and is
    raised at the end of the block.
    """
    unwritten: list[OSError] = []

    def told(event: E) -> None:
        try:
            tell(event)
        except OSError as error:
            unwritten.append(error)
            stop()

    yield told
    if unwritten:
        raise unwritten[0]


async def until_signalled(work: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
    """Carry out `work`. The first SIGINT or SIGTERM calls `stop`, which lets it finish what it is at; the second does
    not wait for that, and raises KeyboardInterrupt.
    """
    task = asyncio.create_task(work)
    stopping = False

    def on_signal() -> None:
        nonlocal stopping
        if stopping:
            task.cancel()
        stopping = True
        stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):
                loop.remove_signal_handler(number)
