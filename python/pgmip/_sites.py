"""Doing the same at several sites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
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
    try:
        done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks.values():  # once: psycopg does not end a statement properly that is cancelled twice
            task.cancel()
        await ended(tasks.values())
    for task in done:
        task.result()
    return {site: task.result() for site, task in tasks.items()}
