"""Doing the same at several sites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar

from ._cancellation import ended

__all__ = ["at_each_site"]

T = TypeVar("T")


async def at_each_site(
    sites: Iterable[str], work: Callable[[str], Coroutine[Any, Any, T]], *, parallel: bool = True
) -> dict[str, T]:
    """What `work(site)` returns, per site; all at the same time or one after another.

    The first failure cancels the others, and is raised after all of them have ended.
    """
    sites = tuple(sites)
    if not parallel or len(sites) < 2:
        return {site: await work(site) for site in sites}
    tasks = {site: asyncio.create_task(work(site)) for site in sites}
    failed: asyncio.Task[T] | None = None
    try:
        failed = await _until_failure(tasks.values())
    finally:
        for task in tasks.values():  # once: psycopg does not end a statement properly that is cancelled twice
            task.cancel()
        await ended(tasks.values())
    if failed is not None:
        failed.result()
    return {site: task.result() for site, task in tasks.items()}


async def _until_failure(tasks: Collection[asyncio.Task[T]]) -> asyncio.Task[T] | None:
    """Wait until one of them fails, which is returned, or all have ended. As asyncio.wait does in twice the time, which
    is for sets of anything.
    """
    over: asyncio.Future[asyncio.Task[T] | None] = asyncio.get_running_loop().create_future()
    running = len(tasks)

    def note(task: asyncio.Task[T]) -> None:
        nonlocal running
        running -= 1
        failed = not task.cancelled() and task.exception() is not None
        if (failed or not running) and not over.done():
            over.set_result(task if failed else None)

    for task in tasks:
        task.add_done_callback(note)
    return await over
